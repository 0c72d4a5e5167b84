"""Device memory: the three backends, the arena's ladder of blocks, and what a step allocates."""

from lf_ray.runtime.memory.analysis import ShapeAnalysis, analyze_tensor_shapes
from lf_ray.runtime.memory.arena import arena_refusal
from lf_ray.runtime.memory.ladder import ladder_name, parse_ladder
from lf_ray.runtime.memory.pool import MemoryPool, PoolStats, capture_room

__all__ = [
    "MemoryPool",
    "PoolStats",
    "ShapeAnalysis",
    "analyze_tensor_shapes",
    "arena_refusal",
    "capture_room",
    "ladder_name",
    "parse_ladder",
]
