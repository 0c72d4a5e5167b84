"""Which block a segment goes to: the arena's rule in Python, for predictions and as a twin.

`arena.cpp` follows the same rule on the device; tests run both over the same requests. Pure.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lf_ray.runtime.memory.ladder import GIB

GRANULE_BYTES = 512


@dataclass(frozen=True, slots=True)
class SegmentEvent:
    """A segment that the caching allocator takes (or gives back), by an id of its own."""

    segment: int
    num_bytes: int
    takes: bool = True


@dataclass(slots=True)
class _Block:
    num_bytes: int
    holes: dict[int, int] = field(default_factory=dict)  # offset -> bytes


@dataclass(frozen=True, slots=True)
class Place:
    """Where a segment lies: block number (in order of reservation) and offset; None fell back."""

    block: int | None
    offset: int
    num_bytes: int


class BlockPolicy:
    """Blocks of a ladder, reserved on demand within a budget, and the segments in them.

    Args:
        block_bytes: sizes that may be reserved.
        budget_bytes: of all blocks together.
    """

    def __init__(self, block_bytes: Sequence[int], budget_bytes: int) -> None:
        self._ladder = sorted(block_bytes)
        self._budget_bytes = budget_bytes
        self._blocks: dict[int, _Block] = {}
        self._next = 0
        self.reserved_bytes = 0
        self.num_requests = 0
        self.request_bytes = 0
        self.num_fallbacks = 0
        self.fallback_bytes = 0

    @property
    def fallback_frac(self) -> float:
        """The share of segments, by number, that no block held."""
        return self.num_fallbacks / self.num_requests if self.num_requests else 0.0

    @property
    def block_bytes(self) -> list[int]:
        """The sizes of the blocks that are reserved, oldest first."""
        return [block.num_bytes for block in self._blocks.values()]

    def take(self, num_bytes: int) -> Place:
        """Returns where a segment goes: the smallest block that holds it, a new one, or none."""
        num_bytes = -(-num_bytes // GRANULE_BYTES) * GRANULE_BYTES
        self.num_requests += 1
        self.request_bytes += num_bytes
        place = self._best_hole(num_bytes) or self._new_block(num_bytes)
        if place is None or place.block is None:
            self.num_fallbacks += 1
            self.fallback_bytes += num_bytes
            return Place(None, 0, num_bytes)
        holes = self._blocks[place.block].holes
        rest = holes.pop(place.offset) - num_bytes
        if rest:
            holes[place.offset + num_bytes] = rest
        return place

    def give(self, place: Place) -> None:
        """Takes a segment back; holes that touch become one."""
        if place.block is None:
            return
        holes = self._blocks[place.block].holes
        holes[place.offset] = place.num_bytes
        merged: dict[int, int] = {}
        last = None
        for offset in sorted(holes):
            if last is not None and last + merged[last] == offset:
                merged[last] += holes[offset]
            else:
                merged[offset] = holes[offset]
                last = offset
        self._blocks[place.block].holes = merged

    def trim(self) -> int:
        """Gives blocks without a segment back; returns their bytes."""
        empty = [
            number for number, block in self._blocks.items() if block.holes == {0: block.num_bytes}
        ]
        trimmed = sum(self._blocks.pop(number).num_bytes for number in empty)
        self.reserved_bytes -= trimmed
        return trimmed

    def _best_hole(self, num_bytes: int) -> Place | None:
        found = [
            (block.num_bytes, hole_bytes, number, offset)
            for number, block in self._blocks.items()
            for offset, hole_bytes in block.holes.items()
            if hole_bytes >= num_bytes
        ]
        if not found:
            return None
        _, _, number, offset = min(found)
        return Place(number, offset, num_bytes)

    def _new_block(self, num_bytes: int) -> Place | None:
        index = bisect_left(self._ladder, num_bytes)
        if index == len(self._ladder):
            return None
        size = self._ladder[index]
        if self.reserved_bytes + size > self._budget_bytes:
            return None
        number = self._next
        self._next += 1
        self._blocks[number] = _Block(size, {0: size})
        self.reserved_bytes += size
        return Place(number, 0, num_bytes)


@dataclass(frozen=True, slots=True)
class LadderForecast:
    """What a ladder would do with a run's segments.

    Attributes:
        fallback_frac: share of segments, by number, that no block would hold.
        fallback_bytes_frac: the same by bytes.
        reserved_bytes: most that the blocks would take, fallbacks not counted.
        num_blocks: blocks at the end.
    """

    fallback_frac: float
    fallback_bytes_frac: float
    reserved_bytes: int
    num_blocks: int


def forecast(
    events: Iterable[SegmentEvent], ladder_gb: Sequence[float], budget_bytes: int
) -> LadderForecast:
    """Returns what a ladder does with the segments of a run."""
    policy = BlockPolicy([int(size * GIB) for size in ladder_gb], budget_bytes)
    places: dict[int, Place] = {}
    peak_bytes = 0
    for event in events:
        if event.takes:
            places[event.segment] = policy.take(event.num_bytes)
            peak_bytes = max(peak_bytes, policy.reserved_bytes)
        elif event.segment in places:
            policy.give(places.pop(event.segment))
    return LadderForecast(
        fallback_frac=policy.fallback_frac,
        fallback_bytes_frac=(
            policy.fallback_bytes / policy.request_bytes if policy.request_bytes else 0.0
        ),
        reserved_bytes=peak_bytes,
        num_blocks=len(policy.block_bytes),
    )


LADDER_SIZES_GB = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
# A power of two may waste nearly half of what a large segment takes; so segments from here on may
# get a block of their own size, to the next 64 MiB.
_OWN_BLOCK_BYTES = GIB // 2
_OWN_BLOCK_STEP = GIB // 16
_MAX_OWN_BLOCKS = 4


def propose_ladder(events: Sequence[SegmentEvent], budget_bytes: int) -> tuple[float, ...]:
    """Returns the ladder that loses least: fewest fallbacks, then least reserved.

    Tried are all runs of powers of two, alone and with sizes of the largest segments. Of equals
    the one with the fewest sizes; empty events propose the smallest size.
    """
    runs = [
        LADDER_SIZES_GB[first:last]
        for first in range(len(LADDER_SIZES_GB))
        for last in range(first, len(LADDER_SIZES_GB) + 1)
        if first == last or LADDER_SIZES_GB[last - 1] * GIB <= budget_bytes
    ]
    own = _own_sizes_gb(events, budget_bytes)
    ladders = [tuple(sorted({*run, *own[:count]})) for run in runs for count in range(len(own) + 1)]
    tried = [ladder for ladder in dict.fromkeys(ladders) if ladder]
    return min(tried, key=lambda ladder: _loss(events, ladder, budget_bytes), default=(0.25,))


def _loss(
    events: Sequence[SegmentEvent], ladder: tuple[float, ...], budget_bytes: int
) -> tuple[float, int, int]:
    expected = forecast(events, ladder, budget_bytes)
    return expected.fallback_bytes_frac, expected.reserved_bytes, len(ladder)


def _own_sizes_gb(events: Sequence[SegmentEvent], budget_bytes: int) -> list[float]:
    """Returns the sizes that hold the most bytes in large segments, most first."""
    held: Counter[int] = Counter()
    for event in events:
        if event.takes and event.num_bytes >= _OWN_BLOCK_BYTES:
            steps = -(-event.num_bytes // _OWN_BLOCK_STEP)
            held[steps * _OWN_BLOCK_STEP] += event.num_bytes
    fitting = [size for size, _ in held.most_common() if size <= budget_bytes]
    return [size / GIB for size in fitting[:_MAX_OWN_BLOCKS]]
