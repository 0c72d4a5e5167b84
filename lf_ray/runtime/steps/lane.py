"""Where steps run and how they are timed: the host itself, or a CUDA stream that is never stopped.

On a GPU a step's results and times are read one step late, when the next one is already under way.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from lf_ray.runtime.steps.laps import DeviceLaps, HostLaps, Laps

_NUM_SLOTS = 8


class Lane(Protocol):
    """Runs what is called inside `active`, in order."""

    def active(self) -> Any:
        """Returns a context in which steps are run."""
        ...

    def laps(self) -> Laps:
        """Returns what splits one step into phases."""
        ...

    def mark(self) -> Any:
        """Returns a point in time, after everything that was called so far."""
        ...

    def between_s(self, begin: Any, end: Any) -> float:
        """Returns the seconds between two points; waits for the second one."""
        ...

    def send(self, loss: Tensor, grad_norm: Tensor) -> int:
        """Starts to bring a step's results to the host; returns where they will be."""
        ...

    def read(self, place: int) -> tuple[float, float]:
        """Returns loss and grad norm; only after waiting for a point behind `send`."""
        ...


class HostLane:
    """The calling thread: what was called has happened."""

    def __init__(self) -> None:
        self._results: list[tuple[float, float]] = [(0.0, 0.0)] * _NUM_SLOTS
        self._count = 0

    @contextmanager
    def active(self) -> Iterator[None]:
        """Changes nothing."""
        yield

    def laps(self) -> HostLaps:
        """Returns laps by the host's clock."""
        return HostLaps()

    def mark(self) -> float:
        """Returns the time."""
        return time.perf_counter()

    def between_s(self, begin: float, end: float) -> float:
        """Returns the difference."""
        return end - begin

    def send(self, loss: Tensor, grad_norm: Tensor) -> int:
        """Keeps the results."""
        self._count = (self._count + 1) % _NUM_SLOTS
        self._results[self._count] = float(loss), float(grad_norm)
        return self._count

    def read(self, place: int) -> tuple[float, float]:
        """Returns what was kept."""
        return self._results[place]


class CudaLane:
    """One non-default stream for everything: eager steps, warm-up, capture and replays."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._results = torch.zeros(_NUM_SLOTS, 2, pin_memory=True)
        self._count = 0

    @contextmanager
    def active(self) -> Iterator[None]:
        """Makes the stream current, behind what the caller's stream holds."""
        outside = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(outside)
        with torch.cuda.stream(self.stream):
            yield
        outside.wait_stream(self.stream)

    def laps(self) -> DeviceLaps:
        """Returns laps by events on the stream."""
        return DeviceLaps()

    def mark(self) -> torch.cuda.Event:
        """Records an event."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self.stream)
        return event

    def between_s(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Returns the time on the device between two events."""
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def send(self, loss: Tensor, grad_norm: Tensor) -> int:
        """Copies both to pinned memory behind the step."""
        self._count = (self._count + 1) % _NUM_SLOTS
        self._results[self._count, 0:1].copy_(loss.reshape(1), non_blocking=True)
        self._results[self._count, 1:2].copy_(grad_norm.reshape(1), non_blocking=True)
        return self._count

    def read(self, place: int) -> tuple[float, float]:
        """Returns what has arrived."""
        loss, grad_norm = self._results[place].tolist()
        return loss, grad_norm


def lane_on(device: torch.device) -> HostLane | CudaLane:
    """Returns the lane of a device."""
    return CudaLane(device) if device.type == "cuda" else HostLane()
