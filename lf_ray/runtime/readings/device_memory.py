"""Puts the memory backend that was asked for in force, and says how it served."""

from contextlib import ExitStack

import torch

from lf_ray.runtime.memory import MemoryPool
from lf_ray.settings import MemoryBackend, MemorySettings

_DEFAULT_LADDER = "1-2-4-8"


class DeviceMemory:
    """The allocator of one worker's device, for the worker's whole life.

    Args:
        settings: backend and ladder; the caching backend and a CPU need nothing.
        device: where the model will be.

    Raises:
        ConfigError: the ladder makes no sense.
        MachineError: this machine can't have an arena.
    """

    def __init__(self, settings: MemorySettings, device: torch.device) -> None:
        self._scope = ExitStack()
        self.pool: MemoryPool | None = None
        if device.type != "cuda" or settings.backend is MemoryBackend.caching:
            return
        ladder = _DEFAULT_LADDER if settings.block_sizes == "none" else settings.block_sizes
        self.pool = MemoryPool(
            settings.total_size_gb, ladder, backend=settings.backend.value, device=device
        )
        self._scope.enter_context(self.pool.scope())

    def bytes(self) -> dict[str, float]:
        """Returns what the pool holds, beside PyTorch's own numbers."""
        if self.pool is None:
            return {}
        stats = self.pool.stats()
        found = {"pool_reserved": float(stats.reserved_bytes), "pool_gap": float(stats.gap_bytes)}
        if stats.blocks:
            found["blocks"] = float(sum(size for size, _ in stats.blocks))
            found["num_blocks"] = float(len(stats.blocks))
            found["fallback_frac"] = stats.fallback_frac
        return found

    def close(self) -> None:
        """Goes back to PyTorch's own allocator."""
        self._scope.close()
        if self.pool is not None:
            self.pool.close()
        self.pool = None
