"""The stored reference of a batch shape: digests of its first steps, and the first gradient.

The reference is the same step without any tuning: one whole fp32 buffer sent after backward, no
graph, no pipelining. It is taken twice; where it differs from itself, that spread is the yardstick.

Shape suffixes: N elements of the flat buffers, P tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lf_ray.runtime.host_copy import HostCopy
from lf_ray.runtime.numerics.digest import Floats, StepDigest
from lf_ray.runtime.update.flat import Slot

# Half a unit in the last place of a sum of two, relative: the rounding of one fp32 addition.
_FP32_ROUNDING = 2.0**-23


@dataclass(frozen=True, slots=True)
class Shard:
    """This rank's share of the first reduced gradient, kept on the host.

    Attributes:
        first: its first element in the flat buffers.
        num_elements: of the share.
        grad_N: the gradient summed over ranks.
        abs_N: sum over ranks of the gradients' magnitudes; None up to two ranks, where the order of
            summation can't move.
    """

    first: int
    num_elements: int
    grad_N: HostCopy
    abs_N: HostCopy | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """What trials of one batch shape are compared with, on one rank."""

    steps: tuple[StepDigest, ...]
    spread_frac: float
    shard: Shard


@dataclass(frozen=True, slots=True)
class FirstStepDifference:
    """How far a trial's first reduced gradient is from the reference's, on this rank's shard.

    Attributes:
        worst_frac: largest difference of an element as a share of what summation order explains.
        diff_sq_P: squared difference by tensor.
        ref_sq_P: squared reference by tensor.
    """

    worst_frac: float
    diff_sq_P: Floats
    ref_sq_P: Floats


def shard_bounds(num_elements: int, rank: int, world_size: int) -> tuple[int, int]:
    """Returns the first and one past the last element that a rank keeps."""
    return rank * num_elements // world_size, (rank + 1) * num_elements // world_size


def shard_room(num_elements: int, world_size: int, device: torch.device) -> list[HostCopy]:
    """Returns room for any rank's share of a gradient, and of magnitudes where they are kept."""
    num_copies = 2 if world_size > 2 else 1
    return [HostCopy(-(-num_elements // world_size), device) for _ in range(num_copies)]


def spread_frac(once: Sequence[StepDigest], again: Sequence[StepDigest]) -> float:
    """Returns how far two runs of the reference are apart, relative; 0 if they have equal bits."""
    if all(a.same_bits(b) for a, b in zip(once, again)):
        return 0.0
    worst = 0.0
    for a, b in zip(once, again):
        assert a.sums_P is not None
        assert a.abs_sums_P is not None
        assert b.sums_P is not None
        worst = max(
            worst,
            _relative(a.loss, b.loss),
            _relative(a.grad_norm, b.grad_norm),
            float(np.max(np.abs(a.sums_P - b.sums_P) / (a.abs_sums_P + _tiny(a.abs_sums_P)))),
        )
    return max(worst, _FP32_ROUNDING)


@torch.no_grad()
def first_step_difference(
    slots: Sequence[Slot], reduced_N: Tensor, shard: Shard, world_size: int
) -> FirstStepDifference:
    """Returns the difference of a reduced gradient from the reference's, on this rank's shard."""
    bound_frac = (world_size - 1) * _FP32_ROUNDING
    worst = 0.0
    diff_sq, ref_sq = [], []
    # Tensor by tensor, so that no second gradient is ever in memory.
    for slot in slots:
        low = max(slot.first, shard.first)
        high = max(low, min(slot.last, shard.first + shard.num_elements))
        own_N = reduced_N[low:high].float()
        ref_N = torch.empty_like(own_N)
        shard.grad_N.give(ref_N, low - shard.first)
        diff_N = own_N - ref_N
        diff_sq.append(float(diff_N.double().square().sum()))
        ref_sq.append(float(ref_N.double().square().sum()))
        if shard.abs_N is not None and len(diff_N):
            abs_N = torch.empty_like(own_N)
            shard.abs_N.give(abs_N, low - shard.first)
            share_N = torch.where(diff_N == 0, 0.0, diff_N.abs() / (abs_N * bound_frac))
            worst = max(worst, float(share_N.nan_to_num(nan=float("inf")).max()))
    return FirstStepDifference(worst, np.array(diff_sq), np.array(ref_sq))


def _relative(one: float, other: float) -> float:
    return abs(one - other) / max(abs(one), np.finfo(np.float64).tiny)


def _tiny(values_P: Floats) -> float:
    return float(np.finfo(np.float64).tiny + values_P.mean() * 1e-12)
