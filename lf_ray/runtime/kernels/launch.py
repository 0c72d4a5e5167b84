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


def launch_update(update: "FusedAdamW", grad_N: Tensor) -> None:
    """Finishes the norm, then updates moments, masters and weights."""
    rule = update.rule
    skip = rule.nonfinite is NonFinite.skip
    flat_adamw.finish_norm[(1,)](
        update._partials_P,
        update._scalars,
        update.lr_1,
        update.multiplier_1,
        update._log_betas,
        update.step_1,
        update.skipped_1,
        update._partials_P.numel(),
        rule.clip_norm,
        rule.weight_decay,
        SKIP=skip,
        BLOCK=1024,
    )
    num_programs = triton.cdiv(update.master_N.numel(), UPDATE_BLOCK)
    if update.max_programs is not None:
        num_programs = min(num_programs, update.max_programs)
    has_weight = update.weight_N is not None
    flat_adamw.adamw[(num_programs,)](
        grad_N,
        update.master_N,
        update.m_N,
        update.v_N,
        update.weight_N if has_weight else update.master_N,
        update._scalars,
        update.master_N.numel(),
        rule.beta1,
        rule.beta2,
        1.0 - rule.beta1,
        1.0 - rule.beta2,
        rule.eps,
        SKIP=skip,
        HAS_WEIGHT=has_weight,
        BLOCK=UPDATE_BLOCK,
        num_warps=4,
    )
