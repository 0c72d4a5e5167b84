"""One worker's model, data and step, and the classes that the article's snippets use.

The four names of the article are found on first use, because they bring torch with them and
`runtime.bucket_plan` must be importable without it.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "GraphCapture": "lf_ray.runtime.article.graph_capture",
    "OverlapScheduler": "lf_ray.runtime.article.overlap_scheduler",
    "MemoryPool": "lf_ray.runtime.memory.pool",
    "analyze_tensor_shapes": "lf_ray.runtime.memory.analysis",
}

__all__ = ["GraphCapture", "MemoryPool", "OverlapScheduler", "analyze_tensor_shapes"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
