"""The Triton kernels against their torch reference, and what a captured step asks of them."""

import math

import pytest
import torch
from torch import Tensor

from lf_ray.runtime.kernels import AdamWRule, FusedAdamW, kernel_refusal

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = torch.device("cuda")


def pair(size: int, rule: AdamWRule | None = None, **kwargs: object) -> list[FusedAdamW]:
    """Returns the kernels' update and the reference's, from the same weights."""
    updates = []
    for use_kernels in (True, False):
        generator = torch.Generator(DEVICE).manual_seed(0)
        master_N = torch.randn(size, device=DEVICE, generator=generator)
        update = FusedAdamW(
            master_N,
            master_N.bfloat16(),
            rule or AdamWRule(),
            use_kernels=use_kernels,
            **kwargs,  # type: ignore[arg-type]
        )
        update.lr_1.fill_(1e-2)
        updates.append(update)
    return updates


def gradient(size: int, step: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(100 + step)
    values_N = torch.randn(size, device=DEVICE, generator=generator) * 10.0 ** (step - 2)
    return values_N.to(dtype)


def test_this_machine_runs_the_kernels() -> None:
    assert kernel_refusal(DEVICE) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 1023, 4096, 1_000_003])
def test_kernels_equal_the_reference(size: int, dtype: torch.dtype) -> None:
    kernel, reference = pair(size)
    for step in range(4):
        grad_N = gradient(size, step, dtype)
        for update in (kernel, reference):
            update.update(grad_N)
        torch.testing.assert_close(kernel.norm_1, reference.norm_1, rtol=1e-6, atol=0)
        torch.testing.assert_close(kernel.m_N, reference.m_N, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(kernel.v_N, reference.v_N, rtol=1e-5, atol=1e-9)
        torch.testing.assert_close(kernel.master_N, reference.master_N, rtol=1e-5, atol=1e-6)
        assert kernel.weight_N is not None
        assert torch.equal(kernel.weight_N, kernel.master_N.bfloat16())
    assert int(kernel.step_1) == int(reference.step_1) == 4


def test_equals_torch_clip_and_adamw() -> None:
    size = 300_001
    kernel, _ = pair(size)
    reference = torch.nn.Parameter(kernel.master_N.clone())
    optimizer = torch.optim.AdamW([reference], lr=1e-2, weight_decay=1e-5, fused=True)
    for step in range(5):
        grad_N = gradient(size, step, torch.float32)
        reference.grad = grad_N.clone()
        norm = torch.nn.utils.clip_grad_norm_([reference], 1.0)
        optimizer.step()
        kernel.update(grad_N)
        torch.testing.assert_close(kernel.norm_1[0], norm, rtol=1e-6, atol=0)
        torch.testing.assert_close(kernel.master_N, reference.detach(), rtol=1e-5, atol=1e-6)


def test_two_runs_and_any_grid_give_the_same_bits() -> None:
    size = 5_000_011
    results = []
    for cap in (None, None, 7, 132):
        kernel, _ = pair(size, max_programs=cap)
        for step in range(3):
            kernel.update(gradient(size, step, torch.bfloat16))
        results.append((kernel.master_N.clone(), kernel.norm_1.clone()))
    for master_N, norm_1 in results[1:]:
        assert torch.equal(master_N, results[0][0])
        assert torch.equal(norm_1, results[0][1])


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_changes_nothing(value: float) -> None:
    kernel, _ = pair(10_001)
    kernel.update(gradient(10_001, 1, torch.float32))
    held = [tensor.clone() for tensor in (kernel.master_N, kernel.m_N, kernel.v_N)]
    bad_N = gradient(10_001, 2, torch.float32)
    bad_N[-1] = value
    kernel.update(bad_N)
    assert not math.isfinite(float(kernel.norm_1))
    assert [int(kernel.step_1), int(kernel.skipped_1)] == [1, 1]
    for before, now in zip(held, (kernel.master_N, kernel.m_N, kernel.v_N)):
        assert torch.equal(before, now)


def test_a_captured_update_reads_rate_and_gradient_anew() -> None:
    size = 100_003
    kernel, reference = pair(size)
    grad_N = gradient(size, 1, torch.float32)
    kernel.update(grad_N)
    kernel.reset()
    kernel.master_N.copy_(reference.master_N)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        kernel.update(grad_N)
    for step, lr in enumerate((1e-2, 3e-3, 0.0)):
        grad_N.copy_(gradient(size, step, torch.float32))
        for update in (kernel, reference):
            update.lr_1.fill_(lr)
        graph.replay()
        reference.update(grad_N)
        torch.testing.assert_close(kernel.master_N, reference.master_N, rtol=1e-5, atol=1e-6)
    assert int(kernel.step_1) == 3
    graph.reset()
