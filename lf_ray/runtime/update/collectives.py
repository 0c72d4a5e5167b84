"""How slices of the flat buffers travel between ranks: on the host, or on a stream of their own.

A slice that is scattered or gathered has one part a rank, all of one length, in the order of ranks.

Shape suffix: N elements of a slice.
"""

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from lf_ray.runtime.bucket_plan import own_part

# Newer versions of torch have other names for the same.
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Collective(Protocol):
    """Works on slices in place, in the order in which they are started."""

    def start(self, values_N: Tensor) -> None:
        """Begins to sum a slice over the ranks, without waiting for it."""
        ...

    def start_scatter(self, values_N: Tensor) -> None:
        """Begins to sum a slice; only this rank's part of it will hold the sum."""
        ...

    def start_gather(self, values_N: Tensor) -> None:
        """Begins to bring every rank's part of a slice to all of them."""
        ...

    def wait(self) -> None:
        """Returns when all that was started is there (on a GPU: makes the stream wait)."""
        ...

    def sum_now(self, values_N: Tensor) -> None:
        """Sums a few numbers over the ranks, behind what the caller has computed so far."""
        ...


class GroupCollective:
    """Collectives of a process group on the host."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._works: list[Any] = []

    def start(self, values_N: Tensor) -> None:
        """Begins the all-reduce of a slice."""
        self._works.append(dist.all_reduce(values_N, group=self._group, async_op=True))

    def start_scatter(self, values_N: Tensor) -> None:
        """Begins the reduce-scatter of a slice."""
        part_N = _part(values_N, self._group)
        self._works.append(_reduce_scatter(part_N, values_N, group=self._group, async_op=True))

    def start_gather(self, values_N: Tensor) -> None:
        """Begins the all-gather of a slice."""
        part_N = _part(values_N, self._group)
        self._works.append(_all_gather(values_N, part_N, group=self._group, async_op=True))

    def wait(self) -> None:
        """Waits for all of them, in order."""
        for work in self._works:
            work.wait()
        self._works.clear()

    def sum_now(self, values_N: Tensor) -> None:
        """Returns when the sum is there."""
        dist.all_reduce(values_N, group=self._group)


class StreamCollective:
    """Collectives on a stream beside the one that computes; may be captured with it."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self._group = group
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._started = False

    def start(self, values_N: Tensor) -> None:
        """Enqueues the all-reduce behind what the current stream holds so far."""
        with self._beside():
            dist.all_reduce(values_N, group=self._group)

    def start_scatter(self, values_N: Tensor) -> None:
        """Enqueues the reduce-scatter behind what the current stream holds so far."""
        with self._beside():
            _reduce_scatter(_part(values_N, self._group), values_N, group=self._group)

    def start_gather(self, values_N: Tensor) -> None:
        """Enqueues the all-gather behind what the current stream holds so far."""
        with self._beside():
            _all_gather(values_N, _part(values_N, self._group), group=self._group)

    def wait(self) -> None:
        """Makes the current stream wait for all of them."""
        if self._started:
            torch.cuda.current_stream().wait_stream(self._stream)
        self._started = False

    def sum_now(self, values_N: Tensor) -> None:
        """Makes the current stream wait for the sum."""
        self.start(values_N)
        self.wait()

    def _beside(self) -> Any:
        self._stream.wait_stream(torch.cuda.current_stream())
        self._started = True
        return torch.cuda.stream(self._stream)


class NoCollective:
    """Sends nothing: one rank, a rehearsal, or a step timed without communication."""

    def start(self, values_N: Tensor) -> None:
        """Does nothing."""

    def start_scatter(self, values_N: Tensor) -> None:
        """Does nothing."""

    def start_gather(self, values_N: Tensor) -> None:
        """Does nothing."""

    def wait(self) -> None:
        """Returns at once."""

    def sum_now(self, values_N: Tensor) -> None:
        """Does nothing."""


def collective_for(group: Any, device: torch.device) -> Collective:
    """Returns the collective of a process group; None is a single rank."""
    if group is None or dist.get_world_size(group) == 1:
        return NoCollective()
    if device.type == "cuda":
        return StreamCollective(group, device)
    return GroupCollective(group)


def _part(values_N: Tensor, group: Any) -> Tensor:
    place = dist.get_rank(group), dist.get_world_size(group)
    first, last = own_part(0, values_N.numel(), *place)
    return values_N[first:last]
