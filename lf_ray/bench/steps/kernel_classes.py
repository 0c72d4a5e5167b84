"""Where a step's time goes on a GPU, by class of kernel, and how much of it the host launches."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

_LAUNCHES = (
    "cudaLaunchKernel",
    "cuLaunchKernel",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "cudaGraphLaunch",
)
# The first class that a part of the name tells; kernel names in lower case.
_CLASSES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("communication", ("nccl",)),
    ("attention", ("flash", "fmha", "attention", "sdpa")),
    ("update", ("adam", "squared_sums", "finish_norm")),
    ("matrix", ("gemm", "nvjet", "cutlass", "xmma", "cublas", "splitk")),
    ("prefix", ("_add_norm", "_norm_rotate", "_swiglu")),
    ("compiled", ("triton_",)),
    ("copies", ("memcpy", "memset", "copy", "catarray", "fill")),
)
OTHER = "elementwise"
_NUM_STEPS = 4


@dataclass(frozen=True, slots=True)
class Kernels:
    """One step's kernels.

    Attributes:
        launches: calls with which the host starts work on the device.
        classes_s: seconds on the device by class; kernels side by side both count.
    """

    launches: float = 0.0
    classes_s: Mapping[str, float] = field(default_factory=dict)


def kernel_class(name: str) -> str:
    """Returns the class of a kernel by its name."""
    lower = name.lower()
    return next((kind for kind, parts in _CLASSES if any(part in lower for part in parts)), OTHER)


def by_class(kernels: Iterable[tuple[str, float]], num_steps: int) -> dict[str, float]:
    """Returns seconds a step by class, largest first, from kernels' names and microseconds."""
    found: dict[str, float] = {}
    for name, micros in kernels:
        kind = kernel_class(name)
        found[kind] = found.get(kind, 0.0) + micros / 1e6 / num_steps
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def profiled(run: Callable[[int], Any]) -> Kernels:
    """Returns the kernels of a step as the profiler sees them; none without a GPU.

    Args:
        run: runs so many steps.
    """
    if not torch.cuda.is_available():
        return Kernels()
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        run(_NUM_STEPS)
    events = list(profile.events() or ())
    on_device = [
        (event.name, event.time_range.elapsed_us())
        for event in events
        if event.device_type == torch._C._autograd.DeviceType.CUDA
    ]
    launches = sum(event.name.startswith(_LAUNCHES) for event in events)
    return Kernels(launches / _NUM_STEPS, by_class(on_device, _NUM_STEPS))
