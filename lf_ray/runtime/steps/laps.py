"""Where a step's time goes: one reading of the clock, or one event on the stream, per phase."""

import time
from typing import Any, Protocol

import torch


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


class DeviceLaps:
    """Phases on the current CUDA stream.

    Args:
        in_graph: the events become part of the graph that is being captured; every replay records
            them anew, so they are read before the next one.
    """

    def __init__(self, *, in_graph: bool = False) -> None:
        self._in_graph = in_graph
        self._events: list[tuple[str, Any]] = []

    def start(self) -> None:
        """Begins a step."""
        self._events = [("", self._event())]

    def lap(self, name: str) -> None:
        """Ends the phase that ran since the last call, and names it."""
        self._events.append((name, self._event()))

    def skip(self) -> None:
        """Leaves what ran since the last call out of the phases."""
        self._events.append(("", self._event()))

    def stop(self) -> "DeviceReading":
        """Ends the step."""
        return DeviceReading(self._events)

    def _event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True, external=self._in_graph)  # type: ignore[no-untyped-call]
        event.record()
        return event


class DeviceReading:
    """Times that are known when the last event has passed."""

    def __init__(self, events: list[tuple[str, Any]]) -> None:
        self._events = events

    def read(self) -> tuple[float, dict[str, float]]:
        """Returns the seconds of all phases together and of each; waits for the last event."""
        phases_s: dict[str, float] = {}
        if self._events:
            self._events[-1][1].synchronize()
        for (_, begin), (name, end) in zip(self._events, self._events[1:]):
            if name:
                seconds = begin.elapsed_time(end) / 1e3
                phases_s[name] = phases_s.get(name, 0.0) + seconds
        return sum(phases_s.values()), phases_s


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
