"""torch.compile as used here: one function at a time, exact shapes, never silently eager."""

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
