"""Time as an argument: the real clock, and one that tests turn by hand."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where durations and dates come from."""

    def monotonic_s(self) -> float:
        """Returns seconds that only grow; for durations within one machine."""
        ...

    def wall_s(self) -> float:
        """Returns seconds since the epoch; for placing events of several processes on one line."""
        ...

    def sleep(self, seconds: float) -> None:
        """Waits."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic_s(self) -> float:
        """Returns `time.monotonic`."""
        return time.monotonic()

    def wall_s(self) -> float:
        """Returns `time.time`."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Waits for real."""
        time.sleep(seconds)


class FakeClock:
    """A clock for tests and simulations: it moves only when told to, or when someone sleeps."""

    def __init__(self, start_s: float = 0.0, epoch_s: float = 1_800_000_000.0) -> None:
        self._now_s = start_s
        self._epoch_s = epoch_s

    def monotonic_s(self) -> float:
        """Returns the simulated seconds since the start."""
        return self._now_s

    def wall_s(self) -> float:
        """Returns the simulated date."""
        return self._epoch_s + self._now_s

    def sleep(self, seconds: float) -> None:
        """Moves the clock on at once."""
        self._now_s += seconds
