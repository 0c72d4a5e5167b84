"""torch.compile as used here: one function at a time, exact shapes, never silently eager."""

import sys
import warnings
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

# Block kinds times batch sizes that one warm worker may meet.
_RECOMPILE_LIMIT = 64


def compiled(function: Callable[..., Tensor], *, wanted: bool) -> Callable[..., Tensor]:
    """Returns the function compiled for each shape it meets, or as it is."""
    if not wanted:
        return function
    # Past the limit dynamo would run the function eagerly without a word; so it has to fail.
    torch._dynamo.config.recompile_limit = _RECOMPILE_LIMIT
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    # Resizing stays in full float32; the compiler suggests otherwise.
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    return cast(Callable[..., Tensor], torch.compile(function, dynamic=False))


def compile_s() -> float:
    """Returns the seconds that this process has spent compiling so far."""
    # Only what has compiled something has the module; importing it costs a second.
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return 0.0
    return float(dynamo.calculate_time_spent().get("total_wall_time", 0.0))
