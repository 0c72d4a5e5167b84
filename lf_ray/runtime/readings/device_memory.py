"""Puts the memory backend that was asked for in force, and says how it served."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from lf_ray.runtime.memory import MemoryPool, analyze_tensor_shapes, ladder_name
from lf_ray.runtime.memory.ladder import GIB
from lf_ray.settings import MemoryBackend, MemorySettings

# The ladder that is taken from the step's own segments; also what no ladder at all comes to.
ANALYSED = "analysed"
_NONE = "none"
_NUM_ANALYSED_STEPS = 3


class DeviceMemory:
    """The allocator of one worker's device, for the worker's whole life.

    An arena with a ladder given by numbers is in force from the start. With an analysed one the
    model and its buffers, which never move, lie outside; the arena opens at `fit`.

    Args:
        settings: backend, ladder and limit; a CPU needs nothing.
        device: where the model will be.

    Raises:
        ConfigError: the ladder makes no sense.
        MachineError: this machine can't have an arena.
    """

    def __init__(self, settings: MemorySettings, device: torch.device) -> None:
        self._scope = ExitStack()
        self._settings, self._device = settings, device
        self.pool: MemoryPool | None = None
        self._limit_bytes: float | None = None
        self._predicted_frac: float | None = None
        if device.type != "cuda":
            return
        self._limit()
        if settings.backend is MemoryBackend.caching:
            return
        if not self._waits:
            self._open(settings.block_sizes)

    def fit(self, step: Callable[[], Any]) -> None:
        """Opens an arena with the ladder that the step's segments ask for, if one waits for that.

        Args:
            step: one step's allocations; it is run a few times.
        """
        if self._device.type != "cuda" or self.pool is not None or not self._waits:
            return
        found = analyze_tensor_shapes(
            step, _NUM_ANALYSED_STEPS, device=self._device, with_held=False
        )
        torch.cuda.empty_cache()
        self._predicted_frac = found.predicted_fallback_frac
        self._open(found.ladder_name)

    @property
    def ladder(self) -> str:
        """Returns the ladder in force by its numbers; "none" without an arena."""
        if self.pool is None or self.pool.backend != MemoryBackend.arena.value:
            return _NONE
        return ladder_name(self.pool.block_sizes)

    def bytes(self) -> dict[str, float]:
        """Returns what the pool holds, beside PyTorch's own numbers; a limit is all there is."""
        found: dict[str, float] = {}
        if self._limit_bytes is not None:
            found["device_total"] = self._limit_bytes
        if self.pool is None:
            return found
        stats = self.pool.stats()
        found |= {"pool_reserved": float(stats.reserved_bytes), "pool_gap": float(stats.gap_bytes)}
        if stats.blocks:
            found["blocks"] = float(sum(size for size, _ in stats.blocks))
            found["num_blocks"] = float(len(stats.blocks))
            found["peak_blocks"] = float(stats.counts.peak_reserved_bytes)
            found["fallback_frac"] = stats.fallback_frac
        if self._predicted_frac is not None:
            found["predicted_fallback_frac"] = self._predicted_frac
        return found

    def give_back(self) -> None:
        """Returns to the device what nothing uses: for between trials, once graphs are reset."""
        if self._device.type != "cuda":
            return
        if self.pool is None:
            torch.cuda.empty_cache()
            return
        # PyTorch frees nothing of a pool that is in force.
        self._scope.close()
        self.pool.release()
        self._scope.enter_context(self.pool.scope())

    def close(self) -> None:
        """Goes back to PyTorch's own allocator."""
        self._scope.close()
        if self.pool is not None:
            self.pool.close()
        self.pool = None

    def _most_gb(self) -> float | None:
        """Returns what a pool may take: an arena's blocks are no part of PyTorch's own limit."""
        if self._limit_bytes is None:
            return self._settings.total_size_gb
        left_gb = (self._limit_bytes - torch.cuda.memory_reserved(self._device)) / GIB
        return min(left_gb, self._settings.total_size_gb or left_gb)

    def _limit(self) -> None:
        """Lets PyTorch's allocator reserve no more than the settings say."""
        if self._settings.limit_gb is None:
            return
        total_bytes = torch.cuda.get_device_properties(self._device).total_memory
        self._limit_bytes = min(self._settings.limit_gb * GIB, float(total_bytes))
        torch.cuda.set_per_process_memory_fraction(self._limit_bytes / total_bytes, self._device)

    @property
    def _waits(self) -> bool:
        arena = self._settings.backend is MemoryBackend.arena
        return arena and self._settings.block_sizes in (ANALYSED, _NONE)

    def _open(self, ladder: str) -> None:
        # expandable segments have no ladder; the pool's own default stands for none
        given = {} if ladder == _NONE else {"block_sizes": ladder}
        self.pool = MemoryPool(
            self._most_gb(),
            backend=self._settings.backend.value,
            device=self._device,
            **given,  # type: ignore[arg-type]
        )
        self._scope.enter_context(self.pool.scope())
