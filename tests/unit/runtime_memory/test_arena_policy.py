"""The arena's C++ and its Python twin: one rule, run over the same requests on a fake driver."""

import ctypes
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lf_ray.errors import MachineError
from lf_ray.runtime.memory.arena import ArenaLibrary, build_library
from lf_ray.runtime.memory.policy import BlockPolicy, Place

UNIT = 4096
RESERVE = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_int, ctypes.c_uint64)
RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_uint64)


class FakeDriver:
    """A driver with so many bytes, which hands out addresses and checks what comes back."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.held: dict[int, int] = {}
        self._next_address = 1 << 40

    def reserve(self, device: int, num_bytes: int) -> int:
        if sum(self.held.values()) + num_bytes > self.total_bytes:
            return 0
        address = self._next_address
        self._next_address += num_bytes + (1 << 30)
        self.held[address] = num_bytes
        return address

    def release(self, device: int, address: int) -> None:
        del self.held[address]


class FakeArena:
    """The compiled arena of one device, on a fake driver."""

    def __init__(self, library: ArenaLibrary, driver: FakeDriver) -> None:
        self.library, self.driver = library, driver
        self._callbacks = (RESERVE(driver.reserve), RELEASE(driver.release))
        library.lib.lf_arena_use_driver(*self._callbacks)

    def take(self, num_bytes: int) -> int | None:
        address: int | None = self.library.lib.lf_arena_alloc(num_bytes, 0, None)
        return address

    def give(self, address: int) -> None:
        self.library.lib.lf_arena_free(address, 0, 0, None)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ArenaLibrary:
    if shutil.which("g++") is None:
        pytest.skip("needs g++ to compile the arena")
    return ArenaLibrary(build_library(tmp_path_factory.mktemp("arena")))


@pytest.fixture
def arena(library: ArenaLibrary) -> Iterator[FakeArena]:
    arena = FakeArena(library, FakeDriver(1 << 40))
    yield arena
    assert library.close(0) == 0
    assert arena.driver.held == {}
    library.lib.lf_arena_use_driver(None, None)


def test_a_segment_goes_to_the_smallest_block_that_holds_it(arena: FakeArena) -> None:
    arena.library.open(0, [1 * UNIT, 4 * UNIT], 100 * UNIT)
    big = arena.take(3 * UNIT)
    small = arena.take(UNIT)
    assert arena.library.blocks(0) == [(4 * UNIT, 4 * UNIT)]  # the hole of the big block held it
    second = arena.take(UNIT)
    assert arena.library.blocks(0) == [(4 * UNIT, 4 * UNIT), (UNIT, UNIT)]
    for address in (big, small, second):
        assert address is not None
        arena.give(address)
    third = arena.take(UNIT)
    assert third == second  # of two blocks with room, the smaller
    assert third is not None
    arena.give(third)


def test_freed_neighbours_become_one_hole(arena: FakeArena) -> None:
    arena.library.open(0, [4 * UNIT], 4 * UNIT)
    parts = [arena.take(UNIT) for _ in range(4)]
    for index in (0, 2, 1):
        address = parts[index]
        assert address is not None
        arena.give(address)
    joined = arena.take(3 * UNIT)
    assert joined == parts[0]
    assert arena.library.counts(0).fallbacks == 0
    for address in (joined, parts[3]):
        assert address is not None
        arena.give(address)


def test_what_no_block_holds_falls_back_and_is_counted(arena: FakeArena) -> None:
    arena.library.open(0, [2 * UNIT], 2 * UNIT)
    inside = arena.take(2 * UNIT)
    too_large = arena.take(3 * UNIT)
    past_budget = arena.take(UNIT)
    counts = arena.library.counts(0)
    assert (counts.requests, counts.fallbacks, counts.fallback_bytes) == (3, 2, 4 * UNIT)
    assert counts.reserved_bytes == 2 * UNIT
    assert sum(arena.driver.held.values()) == 6 * UNIT
    for address in (inside, too_large, past_budget):
        assert address is not None
        arena.give(address)
    assert arena.library.counts(0).fallback_live_bytes == 0


def test_a_driver_without_memory_is_a_null_and_a_count(arena: FakeArena) -> None:
    arena.driver.total_bytes = UNIT
    arena.library.open(0, [2 * UNIT], 8 * UNIT)
    assert arena.take(2 * UNIT) is None
    assert arena.library.counts(0).refused == 1
    assert arena.library.counts(0).live_segments == 0


def test_trimming_gives_back_empty_blocks_alone(arena: FakeArena) -> None:
    arena.library.open(0, [UNIT], 4 * UNIT)
    first, second = arena.take(UNIT), arena.take(UNIT)
    assert first is not None
    assert second is not None
    arena.give(first)
    assert arena.library.trim(0) == UNIT
    assert arena.library.counts(0).reserved_bytes == UNIT
    arena.give(second)


def test_an_arena_opens_once(arena: FakeArena) -> None:
    assert arena.library.open(0, [UNIT], UNIT)
    assert not arena.library.open(0, [UNIT], UNIT)


def test_a_missing_compiler_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"no-such-compiler.*memory\.backend=caching"):
        build_library(tmp_path, compiler="no-such-compiler")
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=150, deadline=None)
@given(
    ladder=st.lists(st.integers(1, 16), min_size=1, max_size=4, unique=True),
    budget=st.integers(0, 64),
    moves=st.lists(st.tuples(st.booleans(), st.integers(1, 20), st.integers(0, 99)), max_size=80),
)
def test_both_twins_place_every_segment_alike(
    library: ArenaLibrary, ladder: list[int], budget: int, moves: list[tuple[bool, int, int]]
) -> None:
    driver = FakeDriver(1 << 40)
    arena = FakeArena(library, driver)
    sizes = [size * UNIT for size in ladder]
    assert library.open(0, sizes, budget * UNIT)
    policy = BlockPolicy(sizes, budget * UNIT)
    live: list[tuple[int, Place]] = []
    base_of_block: dict[int, int] = {}
    for takes, num_units, pick in moves:
        if takes or not live:
            address = arena.take(num_units * UNIT)
            place = policy.take(num_units * UNIT)
            assert address is not None
            if place.block is not None:
                base = base_of_block.setdefault(place.block, address - place.offset)
                assert address == base + place.offset
            live.append((address, place))
        else:
            address, place = live.pop(pick % len(live))
            arena.give(address)
            policy.give(place)
        counts = library.counts(0)
        assert counts.fallbacks == policy.num_fallbacks
        assert counts.reserved_bytes == policy.reserved_bytes
        _check_apart(live)
    assert [size for size, _ in library.blocks(0)] == policy.block_bytes
    for address, _ in live:
        arena.give(address)
    assert library.close(0) == 0
    assert driver.held == {}


def _check_apart(live: list[tuple[int, Place]]) -> None:
    spans = sorted((address, address + place.num_bytes) for address, place in live)
    assert all(first[1] <= second[0] for first, second in pairwise(spans))
