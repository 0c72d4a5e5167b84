"""Canaries: what the runtime leans on in torch without a promise. Re-audit before bumping torch.

Do not simply update an assertion: read what uses the seam (named in each test) first.
"""

import torch
from torch import Tensor, nn

from lf_ray.runtime.overlap import on_gradient


def _backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def test_queued_callback_runs_when_backward_is_done_and_before_it_returns() -> None:
    """article/overlap_scheduler.py: gradients are reduced before optimizer.step()."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    events: list[str] = []

    def on_ready(parameter: Tensor) -> None:
        if not events:
            torch.autograd.Variable._execution_engine.queue_callback(lambda: events.append("end"))
        events.append("ready")

    for parameter in model.parameters():
        on_gradient(parameter, on_ready)
    _backward(model(torch.ones(1, 2)).sum())
    assert events == ["ready"] * 4 + ["end"]


def test_gradient_hook_may_take_the_gradient_away() -> None:
    """overlap.py: a hook copies the gradient and drops it, so nothing accumulates."""
    layer = nn.Linear(2, 2)
    taken: list[Tensor] = []

    def take(parameter: Tensor) -> None:
        assert parameter.grad is not None
        taken.append(parameter.grad)
        parameter.grad = None

    on_gradient(layer.weight, take)
    for _ in range(2):
        _backward(layer(torch.ones(1, 2)).sum())
    assert layer.weight.grad is None
    assert torch.equal(taken[0], taken[1])


def test_hooks_survive_new_storage_of_the_same_kind() -> None:
    """update/flat.py: parameters become views of flat buffers after hooks were set."""
    layer = nn.Linear(2, 2)
    count: list[int] = []
    on_gradient(layer.weight, lambda parameter: count.append(1))
    layer.weight.data = torch.zeros(8)[2:6].view(2, 2)
    _backward(layer(torch.ones(1, 2)).sum())
    assert count == [1]


def test_fused_adamw_divides_by_grad_scale() -> None:
    """update/optimizer.py: averaging and clipping are folded into the update."""
    moved = []
    for scale in (1.0, 4.0):
        weight, grad = torch.zeros(4), torch.full((4,), 3.0)
        moment, square = torch.zeros(4), torch.zeros(4)
        torch._fused_adamw_(
            [weight],
            [grad],
            [moment],
            [square],
            [],
            [torch.tensor(1.0)],
            lr=torch.tensor(0.1),
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
            grad_scale=torch.tensor(scale),
            found_inf=None,
        )
        moved.append(moment[0].item())
    assert abs(moved[0] - 4 * moved[1]) < 1e-6
