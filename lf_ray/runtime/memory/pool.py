"""Who hands out a worker's device memory: PyTorch's allocator as it is, expandable, or the arena.

`MemoryPool` is the article's class. The arena stands behind a `torch.cuda.MemPool`: inside
`scope()` every thread's allocations on the device come from it, backward's too.
"""

import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from lf_ray.errors import ConfigError, MachineError, four_parts
from lf_ray.runtime.memory.arena import (
    ALLOC_NAME,
    FREE_NAME,
    ArenaCounts,
    ArenaLibrary,
    arena_refusal,
    build_library,
)
from lf_ray.runtime.memory.ladder import GIB, arena_budget, check_ladder, parse_ladder

_LOG = logging.getLogger(__name__)
BACKENDS = ("caching", "expandable", "arena")

# Allocation routing is the process's own state in PyTorch, so which pool is in force is too.
_IN_FORCE: dict[int, "MemoryPool"] = {}


@dataclass(frozen=True, slots=True)
class PoolStats:
    """What a pool holds and how well it served.

    Attributes:
        gap_bytes: reserved and not allocated, by PyTorch's own count.
        blocks: size and used bytes of each block (arena).
        fallback_frac: share of segments, by number, that no block held (arena).
    """

    backend: str
    emulated: bool
    allocated_bytes: int
    reserved_bytes: int
    gap_bytes: int
    blocks: tuple[tuple[int, int], ...]
    fallback_frac: float
    counts: ArenaCounts


class MemoryPool:
    """Device memory in a ladder of blocks.

    Args:
        total_size_gb: most that the blocks may take, in GiB; clipped to free memory less 3 GiB,
            with a word in `words`. None takes all of that.
        block_sizes: sizes in GiB that may be reserved on demand, or a ladder's name "1-2-4-8".
        enable_defrag: give blocks without a segment back to the driver on `release`, so that the
            next trial's ladder starts from nothing.
        backend: caching (PyTorch's allocator as it is), expandable (its expandable segments) or
            arena. The ladder acts in the arena only.
        device: None takes the current CUDA device, or the CPU where there is none.

    Raises:
        ConfigError: ladder, total or backend make no sense.
        MachineError: this machine can't have an arena; `arena_refusal` says so beforehand.
    """

    def __init__(
        self,
        total_size_gb: float | None = None,
        block_sizes: Sequence[float] | str = (1, 2, 4, 8),
        enable_defrag: bool = True,
        *,
        backend: str = "arena",
        device: torch.device | None = None,
    ) -> None:
        if backend not in BACKENDS:
            raise ConfigError(
                four_parts(
                    "making a memory pool",
                    f"backend is one of {', '.join(BACKENDS)}",
                    repr(backend),
                    "Use one of them.",
                )
            )
        named = isinstance(block_sizes, str)
        self.block_sizes = parse_ladder(str(block_sizes)) if named else check_ladder(block_sizes)  # type: ignore[arg-type]
        self.enable_defrag = enable_defrag
        self.backend = backend
        self.device = device or default_device()
        self.emulated = self.device.type != "cuda"
        self.words: list[str] = []
        self._library: ArenaLibrary | None = None
        self._allocator: Any = None
        self._pools: dict[str, Any] = {}
        if self.emulated:
            self._check_emulated(total_size_gb)
        elif backend == "arena":
            self._open_arena(total_size_gb)

    @contextmanager
    def scope(self) -> Iterator["MemoryPool"]:
        """Routes every allocation on the device to this pool, from all threads.

        Tensors made inside may be used and freed outside. While a graph is being captured, use
        `capture_room` for the graph's own part of the pool.

        Raises:
            MachineError: a pool is in force on this device already.
        """
        index = self._index
        if index in _IN_FORCE:
            raise MachineError(
                four_parts(
                    "entering a memory pool's scope",
                    "one pool is in force on a device at a time",
                    f"a {_IN_FORCE[index].backend} pool in force on {self.device}",
                    "Leave its scope first.",
                )
            )
        _IN_FORCE[index] = self
        self._begin("step")
        try:
            yield self
        finally:
            self._end("step")
            del _IN_FORCE[index]

    @contextmanager
    def paused(self) -> Iterator[Any]:
        """Suspends the scope; yields the id of the pool that a graph captured meanwhile takes.

        What warm-up steps have left in the step's pool can go back to the blocks: PyTorch keeps
        every segment of a pool that is alive, and the graph would find no room beside them.
        """
        self._end("step")
        self._pools.pop("step", None)
        try:
            yield self._pool("graph").id if self._has_arena else None
        finally:
            self._begin("step")

    def stats(self) -> PoolStats:
        """Returns what the pool holds now."""
        allocated = reserved = 0
        counts, blocks = ArenaCounts(), []
        if not self.emulated:
            allocated = torch.cuda.memory_allocated(self.device)
            reserved = torch.cuda.memory_reserved(self.device)
        if self._library is not None:
            counts = self._library.counts(self._index)
            blocks = self._library.blocks(self._index)
            # PyTorch counts segments; what the blocks hold beyond them is reserved as well.
            reserved += sum(size - used for size, used in blocks)
        return PoolStats(
            backend=self.backend,
            emulated=self.emulated,
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            gap_bytes=reserved - allocated,
            blocks=tuple(blocks),
            fallback_frac=counts.fallback_frac,
            counts=counts,
        )

    def release(self) -> int:
        """Gives back what nothing uses: for between trials, once graphs are reset.

        Returns:
            Bytes that went back to the driver's free memory by way of the arena's blocks.

        Raises:
            MachineError: the pool is in force.
        """
        if self._index in _IN_FORCE:
            raise MachineError(
                four_parts(
                    "releasing a memory pool",
                    "no scope of it is open",
                    f"an open scope on {self.device}",
                    "Leave the scope, then release.",
                )
            )
        if self.emulated:
            return 0
        gc.collect()
        # MemPools are dropped before emptying: PyTorch frees nothing of a pool that is alive.
        self._pools.clear()
        torch.cuda.empty_cache()
        if self._library is None or not self.enable_defrag:
            return 0
        return self._library.trim(self._index)

    def close(self) -> int:
        """Ends the pool; returns how many of its segments something still holds."""
        self.release()
        if self.backend == "expandable" and not self.emulated:
            _set_expandable(False)
        if self._library is None:
            return 0
        live = self._library.close(self._index)
        self._library = None
        return live

    @property
    def _index(self) -> int:
        if self.emulated:
            return -1
        return self.device.index if self.device.index is not None else torch.cuda.current_device()

    @property
    def _has_arena(self) -> bool:
        return self._library is not None

    def _check_emulated(self, total_size_gb: float | None) -> None:
        # The same checks as on a GPU, against what was asked for: there is no card to clip to.
        asked = 80.0 if total_size_gb is None else total_size_gb
        arena_budget(asked, int(asked * GIB) + 3 * GIB, self.block_sizes[0])
        self.words.append("memory pool emulated: without a GPU its scope changes nothing")

    def _open_arena(self, total_size_gb: float | None) -> None:
        refusal = arena_refusal(self.device)
        if refusal is not None:
            raise MachineError(
                four_parts(
                    "opening the memory arena",
                    "it needs a CUDA device and a C++ compiler",
                    refusal,
                    "Choose memory.backend=caching or expandable.",
                )
            )
        free_bytes, _ = torch.cuda.mem_get_info(self.device)
        budget = arena_budget(total_size_gb, free_bytes, self.block_sizes[0])
        if budget.word is not None:
            self.words.append(budget.word)
            _LOG.warning(budget.word)
        library = ArenaLibrary(build_library())
        sizes = [int(size * GIB) for size in self.block_sizes]
        if not library.open(self._index, sizes, budget.num_bytes):
            raise MachineError(
                four_parts(
                    "opening the memory arena",
                    "a device has one arena at a time",
                    f"an arena open on {self.device}, or segments of an earlier one in use",
                    "Close the earlier pool and drop its tensors first.",
                )
            )
        self._library = library

    def _pool(self, role: str) -> Any:
        if role not in self._pools:
            assert self._library is not None
            if self._allocator is None:
                self._allocator = torch.cuda.memory.CUDAPluggableAllocator(
                    str(self._library.path), ALLOC_NAME, FREE_NAME
                )
            self._pools[role] = torch.cuda.MemPool(self._allocator.allocator())
        return self._pools[role]

    def _begin(self, role: str) -> None:
        if self.emulated or self.backend == "caching":
            return
        if self.backend == "expandable":
            _set_expandable(True)
            return
        # Not torch.cuda.use_mem_pool: that routes the calling thread alone, and backward runs in
        # a thread of its own (tests/canaries/test_memory_routing_canary.py).
        torch._C._cuda_beginAllocateToPool(self._index, self._pool(role).id)

    def _end(self, role: str) -> None:
        if self.emulated or not self._has_arena:
            return
        pool_id = self._pool(role).id
        torch._C._cuda_endAllocateToPool(self._index, pool_id)
        torch._C._cuda_releasePool(self._index, pool_id)


@contextmanager
def capture_room(device: torch.device) -> Iterator[Any]:
    """Yields the pool that a graph captured on this device should take, None for its own.

    Inside a `MemoryPool.scope()` routing is suspended meanwhile: allocations of the capture have to
    land in memory that belongs to the graph, or later ones would be handed the same addresses.
    """
    index = device.index if device.index is not None else 0
    pool = _IN_FORCE.get(index) if device.type == "cuda" else None
    if pool is None:
        yield None
        return
    with pool.paused() as pool_id:
        yield pool_id


def default_device() -> torch.device:
    """Returns the current CUDA device, or the CPU where there is none."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _set_expandable(enabled: bool) -> None:
    torch._C._accelerator_setAllocatorSettings(f"expandable_segments:{enabled}")
