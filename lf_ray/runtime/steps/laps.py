"""Where a step's time goes, on the host: one reading of the clock per phase."""

import time
from typing import Protocol


class Reading(Protocol):
    """Times of one step, perhaps not yet known."""

    def read(self) -> tuple[float, dict[str, float]]:
        """Returns the step's seconds on the device and its phases'; waits until they are known."""
        ...


class Laps(Protocol):
    """Splits a step into named phases; a phase may come back and then adds up."""

    def start(self) -> None:
        """Begins a step."""
        ...

    def lap(self, name: str) -> None:
        """Ends the phase that ran since the last call, and names it."""
        ...

    def skip(self) -> None:
        """Leaves what ran since the last call out of the step."""
        ...

    def stop(self) -> Reading:
        """Ends the step."""
        ...


class HostReading:
    """Times that are known at once."""

    def __init__(self, step_s: float, phases_s: dict[str, float]) -> None:
        self._times = step_s, phases_s

    def read(self) -> tuple[float, dict[str, float]]:
        """Returns the step's seconds and its phases'."""
        return self._times


class HostLaps:
    """Phases on a CPU, where what was called has happened."""

    def __init__(self) -> None:
        self._began_s = self._last_s = 0.0
        self._phases_s: dict[str, float] = {}

    def start(self) -> None:
        """Begins a step."""
        self._phases_s = {}
        self._began_s = self._last_s = time.perf_counter()

    def lap(self, name: str) -> None:
        """Ends the phase that ran since the last call, and names it."""
        now_s = time.perf_counter()
        self._phases_s[name] = self._phases_s.get(name, 0.0) + now_s - self._last_s
        self._last_s = now_s

    def skip(self) -> None:
        """Leaves what ran since the last call out of the step."""
        now_s = time.perf_counter()
        self._began_s += now_s - self._last_s
        self._last_s = now_s

    def stop(self) -> HostReading:
        """Ends the step."""
        return HostReading(time.perf_counter() - self._began_s, self._phases_s)


class NoLaps:
    """Times nothing: rehearsals, references and captures."""

    def start(self) -> None:
        """Does nothing."""

    def lap(self, name: str) -> None:
        """Does nothing."""

    def skip(self) -> None:
        """Does nothing."""

    def stop(self) -> HostReading:
        """Returns an empty reading."""
        return HostReading(0.0, {})
