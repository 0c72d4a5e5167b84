"""The flat AdamW gives what torch's clip and AdamW give."""

import copy

import pytest
import torch
from torch import nn

from lf_ray.runtime.update.flat import FlatParameters
from lf_ray.runtime.update.optimizer import FlatAdamW
from lf_ray.settings import TrainSettings


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 5))


@pytest.mark.parametrize("clip_norm", [0.05, 1e3])
def test_equals_torch_with_clip_schedule_and_decay(clip_norm: float) -> None:
    settings = TrainSettings(clip_norm=clip_norm, weight_decay=0.1)
    plain = _model()
    ours = copy.deepcopy(plain)
    flat = FlatParameters(list(reversed(list(ours.named_parameters()))))
    optimizer = FlatAdamW(flat, settings)
    reference = torch.optim.AdamW(
        plain.parameters(),
        lr=1.0,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )
    for step in range(8):
        lr = 1e-2 * (step + 1)
        x, y = torch.randn(4, 7), torch.randn(4, 5)
        for group in reference.param_groups:
            group["lr"] = lr
        (plain(x) - y).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(plain.parameters(), clip_norm)
        reference.step()
        reference.zero_grad()
        (ours(x) - y).square().mean().backward()
        for slot in flat.slots:
            assert slot.parameter.grad is not None
            slot.view(flat.grad_N).copy_(slot.parameter.grad * 3)  # as if summed three times
            slot.parameter.grad = None
        optimizer.set_inputs(lr, step + 1)
        optimizer.clip(flat.grad_N, 3)
        optimizer.update(flat.grad_N)
        torch.testing.assert_close(optimizer.grad_norm, norm, rtol=1e-6, atol=0)
    for (name, expected), got in zip(plain.named_parameters(), ours.parameters()):
        torch.testing.assert_close(got, expected, rtol=2e-6, atol=1e-7, msg=name)


def test_learning_rate_is_an_input_and_reset_forgets() -> None:
    model = _model()
    flat = FlatParameters(list(model.named_parameters()))
    start_N = flat.master_N.clone()
    optimizer = FlatAdamW(flat, TrainSettings())
    moved = []
    for lr in (1e-3, 2e-3):
        flat.master_N.copy_(start_N)
        optimizer.reset()
        optimizer.set_inputs(lr, 1)
        flat.grad_N.fill_(1.0)
        optimizer.clip(flat.grad_N, 1)
        optimizer.update(flat.grad_N)
        moved.append((flat.master_N - start_N).abs().max().item())
    assert moved[1] == pytest.approx(2 * moved[0], rel=1e-3)


def test_padding_between_tensors_never_moves() -> None:
    model = _model()
    flat = FlatParameters(list(model.named_parameters()))
    inside = torch.zeros_like(flat.master_N, dtype=torch.bool)
    for slot in flat.slots:
        inside[slot.first : slot.last] = True
        slot.view(flat.grad_N).fill_(1.0)
    assert not inside.all()
    optimizer = FlatAdamW(flat, TrainSettings())
    optimizer.set_inputs(0.1, 1)
    optimizer.clip(flat.grad_N, 1)
    optimizer.update(flat.grad_N)
    assert not flat.master_N[~inside].any()


def test_bf16_weights_follow_fp32_masters() -> None:
    model = _model().to(torch.bfloat16)
    flat = FlatParameters(list(model.named_parameters()))
    flat.grad_N.fill_(1.0)
    optimizer = FlatAdamW(flat, TrainSettings())
    for step in range(3):
        optimizer.set_inputs(1e-4, step + 1)
        optimizer.clip(flat.grad_N, 1)
        optimizer.update(flat.grad_N)
    for slot in flat.slots:
        assert slot.parameter.dtype == torch.bfloat16
        assert torch.equal(slot.parameter, slot.view(flat.master_N).bfloat16())
        assert not torch.equal(slot.parameter.float(), slot.view(flat.master_N))
