"""From tensors to segments: what PyTorch's caching allocator would ask the device for.

A small model of that allocator, so that a machine without a GPU can predict how a ladder serves a
step. Simplified: one stream, no limit on splitting. Pure.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

from lf_ray.runtime.memory.policy import SegmentEvent

MIB = 2**20
# The caching allocator's own classes (c10/core/CachingDeviceAllocator.h).
ROUND_BYTES = 512
SMALL_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
MEDIUM_BYTES = 10 * MIB
MEDIUM_SEGMENT_BYTES = 20 * MIB
LARGE_STEP_BYTES = 2 * MIB


@dataclass(frozen=True, slots=True)
class TensorEvent:
    """A tensor's memory that comes into use, or falls out of it, by an id of its own."""

    tensor: int
    num_bytes: int
    takes: bool = True


def segment_bytes(num_bytes: int) -> int:
    """Returns the size of the segment that a tensor of so many bytes makes the allocator take."""
    if num_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if num_bytes < MEDIUM_BYTES:
        return MEDIUM_SEGMENT_BYTES
    return -(-num_bytes // LARGE_STEP_BYTES) * LARGE_STEP_BYTES


@dataclass(slots=True)
class _Piece:
    segment: int
    offset: int
    num_bytes: int
    small: bool


class CachingModel:
    """Splits segments for tensors, best fit first, and never gives one back."""

    def __init__(self) -> None:
        self.events: list[SegmentEvent] = []
        self._free: dict[bool, list[tuple[int, int, int]]] = {True: [], False: []}
        self._by_place: dict[tuple[int, int], int] = {}  # free pieces: (segment, offset) -> bytes
        self._by_end: dict[tuple[int, int], int] = {}  # free pieces: (segment, end) -> offset
        self._used: dict[int, _Piece] = {}

    def feed(self, events: Iterable[TensorEvent]) -> None:
        """Follows tensors; the segments that they need are added to `events`."""
        for event in events:
            if event.takes:
                self._take(event)
            elif event.tensor in self._used:
                self._give(self._used.pop(event.tensor))

    def _take(self, event: TensorEvent) -> None:
        num_bytes = max(ROUND_BYTES, -(-event.num_bytes // ROUND_BYTES) * ROUND_BYTES)
        small = num_bytes <= SMALL_BYTES
        free = self._free[small]
        index = bisect_left(free, (num_bytes, -1, -1))
        if index < len(free):
            whole, segment, offset = free[index]
            self._forget(small, whole, segment, offset)
        else:
            whole, segment, offset = segment_bytes(num_bytes), len(self.events), 0
            self.events.append(SegmentEvent(segment, whole))
        rest = whole - num_bytes
        # a large piece keeps a remainder of up to 1 MiB, as the allocator does
        if rest >= ROUND_BYTES if small else rest > SMALL_BYTES:
            self._remember(small, rest, segment, offset + num_bytes)
            whole = num_bytes
        self._used[event.tensor] = _Piece(segment, offset, whole, small)

    def _give(self, piece: _Piece) -> None:
        offset, num_bytes = piece.offset, piece.num_bytes
        after = self._by_place.get((piece.segment, offset + num_bytes))
        if after is not None:
            self._forget(piece.small, after, piece.segment, offset + num_bytes)
            num_bytes += after
        before = self._by_end.get((piece.segment, offset))
        if before is not None:
            before_bytes = offset - before
            self._forget(piece.small, before_bytes, piece.segment, before)
            offset, num_bytes = before, num_bytes + before_bytes
        self._remember(piece.small, num_bytes, piece.segment, offset)

    def _remember(self, small: bool, num_bytes: int, segment: int, offset: int) -> None:
        insort(self._free[small], (num_bytes, segment, offset))
        self._by_place[segment, offset] = num_bytes
        self._by_end[segment, offset + num_bytes] = offset

    def _forget(self, small: bool, num_bytes: int, segment: int, offset: int) -> None:
        free = self._free[small]
        del free[bisect_left(free, (num_bytes, segment, offset))]
        del self._by_place[segment, offset]
        del self._by_end[segment, offset + num_bytes]


def segment_events(events: Iterable[TensorEvent]) -> list[SegmentEvent]:
    """Returns the segments that the tensors of a run make the caching allocator take."""
    model = CachingModel()
    model.feed(events)
    return model.events
