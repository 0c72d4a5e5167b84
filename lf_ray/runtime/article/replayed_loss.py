"""The loss that a replay returns: its backward has already run, so calling it computes nothing."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _AlreadyBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, loss: Tensor, attach: Callable[[], None]) -> Tensor:
        ctx.attach = attach
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        ctx.attach()
        return None, None, None


def replayed_loss(loss: Tensor, attach: Callable[[], None]) -> Tensor:
    """Returns a copy of a loss on which `backward()` neither raises nor adds to any gradient.

    Args:
        loss: of the replay.
        attach: called by `backward()`; many loops call zero_grad between loss and backward.
    """
    anchor = torch.empty((), device=loss.device, requires_grad=True)
    result: Tensor = _AlreadyBackward.apply(anchor, loss, attach)  # type: ignore[no-untyped-call]
    return result
