"""What a worker really runs with, read back and compared with what was asked for."""

import os
from collections.abc import Mapping

import torch

from lf_ray.protocol import KnobValue
from lf_ray.runtime.memory import MemoryPool
from lf_ray.settings import MemoryBackend, SweepConfig

_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def settings_in_force(
    config: SweepConfig,
    device: torch.device,
    pool: MemoryPool | None = None,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, KnobValue]:
    """Returns allocator and NCCL settings in force, and `settings_mismatch`: empty if as asked.

    Args:
        config: what was asked for.
        device: of this worker.
        pool: in force, None without one.
        environ: of this process.
    """
    if device.type != "cuda":
        return {"allocator": "host", "settings_mismatch": ""}
    allocator = pool.backend if pool is not None else _allocator(environ)
    found: dict[str, KnobValue] = {
        "allocator": allocator,
        "nccl_algo": environ.get("NCCL_ALGO", "default").lower(),
        "nccl_max_ctas": int(environ.get("NCCL_MAX_CTAS", "0")),
        "nccl_version": _nccl_version(),
    }
    asked = {
        "allocator": config.memory.backend.value,
        "nccl_algo": config.nccl.algo.lower(),
        "nccl_max_ctas": config.nccl.max_ctas,
    }
    differ = [
        f"{name} is {found[name]}, asked {value}"
        for name, value in asked.items()
        if found[name] != value
    ]
    return {**found, "settings_mismatch": "; ".join(differ)}


def _nccl_version() -> str:
    if not torch.cuda.is_available():
        return ""
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(str(part) for part in version)


def _allocator(environ: Mapping[str, str]) -> str:
    text = ",".join(environ.get(name, "") for name in _ALLOCATOR_VARIABLES).lower()
    if "expandable_segments:true" in text.replace(" ", ""):
        return MemoryBackend.expandable.value
    return MemoryBackend.caching.value
