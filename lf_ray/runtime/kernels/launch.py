"""Starts the Triton kernels with the grids that their sums and passes need."""

from typing import TYPE_CHECKING

import triton
from torch import Tensor

from lf_ray.runtime.kernels import flat_adamw
from lf_ray.runtime.kernels.update import UPDATE_BLOCK, NonFinite

if TYPE_CHECKING:
    from lf_ray.runtime.kernels.update import FusedAdamW


def launch_sums(grad_N: Tensor, partials_P: Tensor, block: int) -> None:
    """Writes P sums of squares that together cover the gradient."""
    grid = (partials_P.numel(),)
    flat_adamw.squared_sums[grid](grad_N, partials_P, grad_N.numel(), BLOCK=block, num_warps=8)


def launch_norm(update: "FusedAdamW") -> None:
    """Turns the sum of squares into what the update multiplies by."""
    rule = update.rule
    flat_adamw.finish_norm[(1,)](
        update.total_1,
        update._scalars,
        update.lr_1,
        update.multiplier_1,
        update._log_betas,
        update.step_1,
        update.skipped_1,
        rule.clip_norm,
        rule.weight_decay,
        SKIP=rule.nonfinite is NonFinite.skip,
    )


def launch_update(update: "FusedAdamW", grad_N: Tensor, part: tuple[int, int]) -> None:
    """Updates one part of moments, masters and weights."""
    rule = update.rule
    first, last = part
    num_programs = triton.cdiv(last - first, UPDATE_BLOCK)
    if update.max_programs is not None:
        num_programs = min(num_programs, update.max_programs)
    master_N = update.master_N[first:last]
    flat_adamw.adamw[(num_programs,)](
        grad_N[first:last],
        master_N,
        update.m_N[first:last],
        update.v_N[first:last],
        update.weight_N[first:last] if update.weight_N is not None else master_N,
        update._scalars,
        last - first,
        rule.beta1,
        rule.beta2,
        1.0 - rule.beta1,
        1.0 - rule.beta2,
        rule.eps,
        SKIP=rule.nonfinite is NonFinite.skip,
        HAS_WEIGHT=update.weight_N is not None,
        BLOCK=UPDATE_BLOCK,
        num_warps=4,
    )
