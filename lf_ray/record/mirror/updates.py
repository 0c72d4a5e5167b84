"""Updates of runs: what is sent to MLflow, as values that a file can hold; and MLflow's names."""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lf_ray.protocol import Wire

SWEEP = "sweep"
RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"
PARAM_NAMES = {
    "overlap.bucket_size_mb": "bucket_size_mb",
    "overlap.ratio": "overlap_ratio",
    "memory.block_sizes": "block_sizes",
}
# Sorts behind the knobs, which MLflow's Compare page then shows first.
EFFECTIVE = "run_effective."
# Which groups of knobs an effective value follows from; one that is not here counts as varying.
EFFECTIVE_OF: dict[str, set[str]] = {
    "num_buckets": {"overlap"},
    "share_during_backward": {"overlap"},
    "bytes_on_wire": {"overlap"},
    # Follows from the count, which the Compare page should draw in their place.
    "bucket_bytes_min": set(),
    "bucket_bytes_max": set(),
    "split_layers": set(),
    "ready_order": set(),
    "kernels": set(),
    "node": set(),
    "gradient_bytes": set(),
    "bucket_plan": set(),
    "world_size": set(),
    "settings_mismatch": set(),
    "global_batch": {"batch"},
    "lr": {"batch"},
    "warmup_steps": {"batch"},
    "prefix": {"pipeline"},
    "update": {"update"},
    "graph": {"graph"},
    "allocator": {"memory"},
    "ladder": {"memory"},
    "base_global_batch": set(),
    "data_workers": {"data"},
    "data_prefetch": {"data"},
    "data_cache": {"data"},
    "data_decode_threads": {"data"},
    "nccl_algo": {"nccl"},
    "nccl_max_ctas": {"nccl"},
    "nccl_version": set(),
}
MAX_PARAM_LENGTH = 500
MAX_TAG_LENGTH = 4000


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricPoint(Wire):
    """One finite number of a run."""

    name: str
    value: float
    step: int
    at_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunUpdate(Wire):
    """What one run gains. A run is made by the first update that names it.

    Attributes:
        key: of the run within its sweep.
        parent: key of the run above; empty for the sweep's own.
        status: to set; empty leaves it.
        texts: artifacts by file name.
        files: paths of files to add as artifacts.
    """

    key: str
    parent: str = ""
    name: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[MetricPoint, ...] = ()
    status: str = ""
    start_ms: int = 0
    end_ms: int = 0
    texts: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()


def param_name(knob: str) -> str:
    """Returns MLflow's name of a knob."""
    return PARAM_NAMES.get(knob, knob.replace(".", "_"))


def param_text(value: object) -> str:
    """Returns a parameter's text: numbers plain, so that they sort and plot as numbers."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if len(text) <= MAX_PARAM_LENGTH:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{text[: MAX_PARAM_LENGTH - 30]}... sha256 {digest}"


def clean_key(key: str) -> str:
    """Returns a key with what MLflow refuses replaced, and at a length that it takes."""
    return re.sub(r"[^\w\-. /]", "_", key)[:200] or "_"


def clean_tags(tags: Mapping[str, object]) -> dict[str, str]:
    """Returns tags with keys and lengths that MLflow takes."""
    return {clean_key(name): str(value)[:MAX_TAG_LENGTH] for name, value in tags.items()}


def finite(points: Sequence[MetricPoint]) -> tuple[list[MetricPoint], dict[str, str]]:
    """Returns the finite points, and a tag for each metric that had others."""
    kept = [point for point in points if math.isfinite(point.value)]
    odd = {
        f"non_finite.{point.name}": str(point.value)
        for point in points
        if not math.isfinite(point.value)
    }
    return kept, odd


def in_ms(seconds: float) -> int:
    """Returns MLflow's time unit."""
    return round(seconds * 1e3)
