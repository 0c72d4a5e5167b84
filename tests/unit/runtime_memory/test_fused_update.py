"""The fused update in plain torch: the kernels' reference, itself held to torch's AdamW.

The kernels themselves are compared with it on a GPU (tests/gpu/test_kernels_update.py).
"""

import math

import pytest
import torch
from torch import Tensor

from lf_ray.runtime.kernels import AdamWRule, FusedAdamW, NonFinite, kernel_refusal

SIZE = 10_001  # no multiple of any chunk


def fused(rule: AdamWRule, weight: bool = True, **kwargs: object) -> FusedAdamW:
    master_N = torch.randn(SIZE, generator=torch.Generator().manual_seed(0))
    weight_N = master_N.bfloat16() if weight else None
    update = FusedAdamW(master_N, weight_N, rule, use_kernels=False, **kwargs)  # type: ignore[arg-type]
    update.lr_1.fill_(1e-2)
    return update


def gradients(num_steps: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(SIZE, generator=generator) * 10.0 ** (step - 2)).to(dtype)
        for step in range(num_steps)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clip_norm", [1.0, math.inf])
def test_equals_torch_adamw_after_torch_clipping(dtype: torch.dtype, clip_norm: float) -> None:
    update = fused(AdamWRule(clip_norm=clip_norm, weight_decay=0.01))
    reference = torch.nn.Parameter(update.master_N.clone())
    optimizer = torch.optim.AdamW([reference], lr=1e-2, weight_decay=0.01)
    for grad_N in gradients(5, dtype):
        reference.grad = grad_N.float().clone()
        norm = torch.nn.utils.clip_grad_norm_([reference], clip_norm)
        optimizer.step()
        update.update(grad_N)
        torch.testing.assert_close(update.norm_1[0], norm, rtol=1e-5, atol=0)
        torch.testing.assert_close(update.master_N, reference.detach(), rtol=2e-6, atol=2e-6)
        assert update.weight_N is not None
        assert torch.equal(update.weight_N, update.master_N.bfloat16())
    assert int(update.step_1) == 5
    assert int(update.skipped_1) == 0


def test_a_zero_gradient_is_not_scaled_and_moves_nothing_but_decay() -> None:
    update = fused(AdamWRule(weight_decay=0.0))
    before_N = update.master_N.clone()
    update.update(torch.zeros(SIZE))
    assert float(update.norm_1) == 0.0
    assert float(update.scale_1) == 1.0
    assert torch.equal(update.master_N, before_N)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_is_skipped_and_shown(value: float) -> None:
    update = fused(AdamWRule())
    good = gradients(2)
    update.update(good[0])
    held = [tensor.clone() for tensor in (update.master_N, update.m_N, update.v_N)]
    bad_N = good[1].clone()
    bad_N[77] = value
    update.update(bad_N)
    assert not math.isfinite(float(update.norm_1))
    assert [int(update.step_1), int(update.skipped_1)] == [1, 1]
    for before, now in zip(held, (update.master_N, update.m_N, update.v_N)):
        assert torch.equal(before, now)


def test_it_propagates_where_that_is_asked_for_as_torch_does() -> None:
    update = fused(AdamWRule(nonfinite=NonFinite.propagate))
    bad_N = gradients(1)[0]
    bad_N[77] = math.nan
    update.update(bad_N)
    assert bool(update.master_N.isnan().all())
    assert [int(update.step_1), int(update.skipped_1)] == [1, 0]


def test_the_multiplier_acts_before_norm_and_clip() -> None:
    grad_N = gradients(3)[2]
    plain, summed = fused(AdamWRule()), fused(AdamWRule())
    summed.multiplier_1.fill_(0.25)
    plain.update(grad_N)
    summed.update(grad_N * 4)
    assert torch.equal(plain.master_N, summed.master_N)
    assert torch.equal(plain.norm_1, summed.norm_1)


def test_parts_give_the_bits_of_the_whole() -> None:
    whole, parts = fused(AdamWRule()), fused(AdamWRule())
    parts.divide([(0, 4000), (4000, 4032), (4032, SIZE)])
    for grad_N in gradients(3):
        whole.update(grad_N)
        parts.update(grad_N)
        assert torch.equal(whole.norm_1, parts.norm_1)
        assert torch.equal(whole.master_N, parts.master_N)
    parts.divide(None)
    assert parts.parts == ((0, SIZE),)


def test_partial_sums_stay_where_a_captured_update_writes_until_all_is_forgotten() -> None:
    update = fused(AdamWRule())
    bounds = [(0, 4000), (4000, SIZE)]
    update.divide(bounds)
    kept = update._partials_P
    update.divide(None)
    update.divide(list(bounds))
    assert update._partials_P is kept
    update.forget_divisions()
    assert update.parts == ((0, SIZE),)
    update.divide(bounds)
    assert update._partials_P is not kept


def test_two_that_share_give_the_bits_of_one_that_does_not() -> None:
    """Each updates its own part, with the sum of squares of both."""
    whole, *sharing = fused(AdamWRule()), fused(AdamWRule()), fused(AdamWRule())
    bounds = ((0, 4000), (4000, SIZE))
    for update, part in zip(sharing, bounds):
        update.divide([part])
    grad_N = gradients(3)[2] * 100
    whole.update(grad_N)
    for update in sharing:
        update.add_norm(grad_N, 0)
        update.add_up()
    total_1 = sharing[0].total_1 + sharing[1].total_1
    for update, (first, last) in zip(sharing, bounds):
        update.total_1.copy_(total_1)
        update.finish_norm()
        update.apply(grad_N, 0)
        assert torch.equal(update.norm_1, whole.norm_1)
        assert torch.equal(update.master_N[first:last], whole.master_N[first:last])


def test_reset_forgets_all_steps() -> None:
    update = fused(AdamWRule(), weight=False)
    start_N = update.master_N.clone()
    for grad_N in gradients(3):
        update.update(grad_N)
    first_N = update.master_N.clone()
    update.reset()
    update.master_N.copy_(start_N)
    for grad_N in gradients(3):
        update.update(grad_N)
    assert torch.equal(first_N, update.master_N)


def test_a_cpu_runs_no_kernel_and_says_why() -> None:
    reason = kernel_refusal(torch.device("cpu"))
    assert reason is not None
    assert "cpu" in reason
