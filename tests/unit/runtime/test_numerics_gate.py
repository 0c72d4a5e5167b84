"""The gate's verdict from digests: bounds, agreement, spread, words that name the cause."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lf_ray.protocol import GradientTensor
from lf_ray.runtime.bucket_plan import BucketPlan, bucket_plan
from lf_ray.runtime.numerics.digest import StepDigest, checksum
from lf_ray.runtime.numerics.gate import RankView, gate_result
from lf_ray.runtime.numerics.reference import FirstStepDifference, spread_frac

NAMES = ["head.weight", "head.bias", "noise.bias"]
SIZES = [1000.0, 10.0, 1e-6]


def _plan(dtype: str = "fp32") -> BucketPlan:
    gradients = [GradientTensor(name=name, num_elements=64, layer=name) for name in NAMES]
    return bucket_plan(gradients, 256 / 2**20, dtype)


def _digest(step: int = 0, *, rank: int = 0, scale: float = 1.0, bits: int = 0) -> StepDigest:
    return StepDigest(
        loss=(1.0 + step + 0.1 * rank) * scale,
        grad_norm=(3.0 + step) * scale,
        checksums_P=np.array([11 + step + bits, 22, 33]),
        sums_P=np.array(SIZES) * scale / 10,
        abs_sums_P=np.array(SIZES) * scale,
    )


def _views(num_ranks: int, num_steps: int = 3) -> list[RankView]:
    views = []
    for rank in range(num_ranks):
        steps = tuple(_digest(step, rank=rank) for step in range(num_steps))
        views.append(RankView(rank, steps, steps, 0.0, None))
    return views


def _with_own(view: RankView, step: int, digest: StepDigest) -> RankView:
    own = [*view.own[:step], digest, *view.own[step + 1 :]]
    return replace(view, own=tuple(own))


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_equal_digests_pass_with_equal_bits(num_ranks: int) -> None:
    verdict = gate_result(_views(num_ranks), _plan(), NAMES)
    assert verdict.passed
    assert verdict.bit_equal
    assert (verdict.worst_frac, verdict.num_steps, verdict.reason) == (0.0, 3, "")


def test_two_ranks_need_equal_bits_in_every_step() -> None:
    views = [_with_own(view, 2, _digest(2, rank=view.rank, bits=1)) for view in _views(2)]
    verdict = gate_result(views, _plan(), NAMES)
    assert not verdict.passed
    assert "first head.weight" in verdict.reason


def test_more_ranks_may_differ_by_summation_order() -> None:
    moved = [_with_own(v, 1, _digest(1, rank=v.rank, scale=1 + 1e-4, bits=1)) for v in _views(4)]
    far = [_with_own(v, 1, _digest(1, rank=v.rank, scale=1.01, bits=1)) for v in _views(4)]
    verdict = gate_result(moved, _plan(), NAMES)
    assert verdict.passed
    assert not verdict.bit_equal
    assert not gate_result(far, _plan(), NAMES).passed


def test_first_step_is_held_to_the_elementwise_bound() -> None:
    nothing = np.zeros(3)
    views = [
        replace(view, first_step=FirstStepDifference(worst, nothing, nothing))
        for view, worst in zip(_views(4), [0.1, 0.2, 1.5, 0.0])
    ]
    verdict = gate_result(views, _plan(), NAMES)
    assert not verdict.passed
    assert verdict.worst_frac == 1.5
    assert "summation order" in verdict.reason


@pytest.mark.parametrize(
    ("num_ranks", "error", "passed"),
    [(2, 2.0**-9, True), (2, 2.0**-7, False), (4, 1.1 * 2.0**-8, False), (8, 1.1 * 2.0**-8, True)],
)
def test_bf16_wire_has_a_relative_bound_per_bucket(
    num_ranks: int, error: float, passed: bool
) -> None:
    ref_sq = np.array([4.0, 1.0, 1e-12])
    first = FirstStepDifference(0.0, ref_sq * error**2 / num_ranks, ref_sq / num_ranks)
    views = [replace(view, first_step=first) for view in _views(num_ranks)]
    verdict = gate_result(views, _plan("bf16"), NAMES)
    assert verdict.passed is passed
    assert verdict.worst_frac == pytest.approx(error * 2**8 / max(1, num_ranks / 4) ** 0.5)


def test_first_loss_is_computed_before_anything_is_sent() -> None:
    own = replace(_digest(0, rank=1), loss=1.1000001)
    views = _views(4)
    views[1] = _with_own(views[1], 0, own)
    verdict = gate_result(views, _plan(), NAMES)
    assert not verdict.passed
    assert "step 0, rank 1: loss" in verdict.reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss": math.nan}, "rank 1: loss is nan"),
        ({"loss": 0.0}, "rank 1: loss is 0.0"),
        ({"grad_norm": math.inf}, "rank 1: grad norm is inf"),
    ],
)
def test_numbers_that_are_none_are_named_with_their_rank(
    change: dict[str, float], words: str
) -> None:
    views = _views(2)
    views[1] = _with_own(views[1], 1, replace(views[1].own[1], **change))  # type: ignore[arg-type]
    verdict = gate_result(views, _plan(), NAMES)
    assert not verdict.passed
    assert words in verdict.reason


def test_ranks_must_hold_the_same_gradient() -> None:
    views = _views(4)
    views[2] = _with_own(views[2], 0, _digest(0, rank=2, bits=5))
    verdict = gate_result(views, _plan(), NAMES)
    assert not verdict.passed
    assert "ranks [2] hold other gradients" in verdict.reason


def test_reference_that_differs_from_itself_widens_the_bound() -> None:
    spread = spread_frac([_digest(0)], [_digest(0, scale=1 + 1e-5, bits=1)])
    assert spread == pytest.approx(1e-5, rel=0.1)
    for scale, passed in ((1 + 2e-5, True), (1 + 1e-3, False)):
        views = [
            replace(
                _with_own(view, 0, _digest(0, rank=view.rank, scale=scale, bits=1)),
                spread_frac=spread,
            )
            for view in _views(2)
        ]
        assert gate_result(views, _plan(), NAMES).passed is passed


def test_same_buckets_must_give_the_same_bits_from_trial_to_trial() -> None:
    views = [replace(view, plan_words=("other", "x", "y")) for view in _views(4)]
    verdict = gate_result(views, _plan(), NAMES)
    assert not verdict.passed
    assert "same buckets gave another gradient" in verdict.reason


def test_checksum_sees_last_bits_that_a_plain_sum_would_cancel() -> None:
    values = torch.randn(64)
    moved = values.clone()
    bits = moved.view(torch.int32)
    bits[3] += 1
    bits[7] -= 1
    assert checksum(values) != checksum(moved)
    assert checksum(values) == checksum(values.clone())
    assert checksum(values.bfloat16()) != checksum(-values.bfloat16())
