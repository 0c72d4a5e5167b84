"""AdamW over the flat buffers, with averaging and clipping folded into the update.

Learning rate and step count are tensors, so that a captured step reads them as inputs.

Shape suffix: N elements of the flat buffers.
"""

from typing import Protocol

import torch
from torch import Tensor

from lf_ray.runtime.kernels import AdamWRule, FusedAdamW, NonFinite
from lf_ray.runtime.update.flat import FlatParameters
from lf_ray.runtime.update.shares import Shares
from lf_ray.settings import TrainSettings

# torch.nn.utils.clip_grad_norm_ adds the same to the norm before it divides.
_CLIP_EPS = 1e-6
# In float64 it stays in a core's cache.
_CHUNK_ELEMENTS = 2**16


class StepOptimizer(Protocol):
    """Updates the flat parameters of one rank.

    Attributes:
        overwrites_gradient: the reduced gradient is gone after `update`.
    """

    overwrites_gradient: bool

    @property
    def grad_norm(self) -> Tensor:
        """Returns the norm of the mean gradient; known after `clip` or `update`."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Returns moments and counters, as they live on the device."""
        ...

    def reset(self) -> None:
        """Forgets all moments."""
        ...

    def use(self, shares: Shares | None) -> None:
        """Sets who updates what in the coming steps; None: every rank everything."""
        ...

    def release(self) -> None:
        """Has every rank update everything, and frees what only shares needed."""
        ...

    def set_inputs(self, lr: float, num_steps: int) -> None:
        """Sets the rate and the step count (from 1) of the coming update."""
        ...

    def clip(self, grad_N: Tensor, num_summed: int) -> None:
        """Takes the norm of a gradient that is a sum over ranks and micro-batches."""
        ...

    def update(self, grad_N: Tensor) -> None:
        """Updates masters and weights; of what is shared, the weights of other ranks follow."""
        ...

    def wait_for_shares(self) -> None:
        """Returns when the weights that other ranks have updated are there."""
        ...


class FlatAdamW:
    """The optimizer on a CPU: torch's fused AdamW on the flat tensors, or on a rank's parts.

    Args:
        flat: what is updated.
        settings: betas, eps, weight decay and the norm to clip at.
    """

    overwrites_gradient = True

    def __init__(self, flat: FlatParameters, settings: TrainSettings) -> None:
        device = flat.master_N.device
        self._flat = flat
        self._settings = settings
        self._shares: Shares | None = None
        self.exp_avg_N = torch.zeros_like(flat.master_N)
        self.exp_avg_sq_N = torch.zeros_like(flat.master_N)
        self.lr = torch.zeros((), device=device)
        self.num_steps = torch.zeros((), device=device)
        self.grad_norm = torch.zeros((), device=device)
        self.grad_divisor = torch.ones((), device=device)

    def state(self) -> dict[str, Tensor]:
        """Returns moments and step count."""
        return {"m": self.exp_avg_N, "v": self.exp_avg_sq_N, "num_steps": self.num_steps}

    def reset(self) -> None:
        """Forgets all moments."""
        for state in (self.exp_avg_N, self.exp_avg_sq_N, self.lr, self.num_steps, self.grad_norm):
            state.zero_()

    def use(self, shares: Shares | None) -> None:
        """Sets who updates what."""
        self._shares = shares

    def release(self) -> None:
        """Has every rank update everything."""
        self._shares = None

    def set_inputs(self, lr: float, num_steps: int) -> None:
        """Sets the rate and the step count (from 1) of the coming update."""
        self.lr.fill_(lr)
        self.num_steps.fill_(num_steps)

    @torch.no_grad()
    def clip(self, grad_N: Tensor, num_summed: int) -> None:
        """Computes the norm of the mean gradient and what the sum must be divided by.

        Args:
            grad_N: gradient summed over ranks and micro-batches.
            num_summed: ranks times micro-batches.
        """
        # In float64, so that the norm has the same bits however the sum is divided.
        squares = [_squared_sum(grad_N[first:last]) for first, last in self._parts]
        total_1 = torch.stack(squares).sum(0, keepdim=True)
        if self._shares is not None:
            self._shares.sum_over_ranks(total_1)
        norm = total_1[0].sqrt().float() / num_summed
        self.grad_norm.copy_(norm)
        excess = (norm + _CLIP_EPS) / self._settings.clip_norm
        self.grad_divisor.copy_(excess.clamp(min=1.0) * num_summed)

    @torch.no_grad()
    def update(self, grad_N: Tensor) -> None:
        """Updates masters and weights from the summed gradient, which it may overwrite."""
        if grad_N.dtype != torch.float32:
            grad_N = self._flat.grad_N.copy_(grad_N)
        for number, (first, last) in enumerate(self._parts):
            self._update_part(grad_N, slice(first, last))
            self._flat.refresh_weights(first, last)
            if self._shares is not None:
                self._shares.send(number, self._flat.computed_with)

    def wait_for_shares(self) -> None:
        """Waits for the weights that other ranks have updated."""
        if self._shares is not None:
            self._shares.wait()

    @property
    def _parts(self) -> tuple[tuple[int, int], ...]:
        return _whole(self._flat) if self._shares is None else self._shares.parts

    def _update_part(self, grad_N: Tensor, part: slice) -> None:
        torch._fused_adamw_(
            [self._flat.master_N[part]],
            [grad_N[part]],
            [self.exp_avg_N[part]],
            [self.exp_avg_sq_N[part]],
            [],
            [self.num_steps],
            lr=self.lr,
            beta1=self._settings.beta1,
            beta2=self._settings.beta2,
            weight_decay=self._settings.weight_decay,
            eps=self._settings.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=self.grad_divisor,
            found_inf=None,
        )


class KernelAdamW:
    """The optimizer on a GPU: the norm in one pass, everything else in a second one, by parts.

    Args:
        flat: what is updated.
        settings: betas, eps, weight decay and the norm to clip at.
    """

    overwrites_gradient = False

    def __init__(self, flat: FlatParameters, settings: TrainSettings) -> None:
        rule = AdamWRule(
            beta1=settings.beta1,
            beta2=settings.beta2,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            clip_norm=settings.clip_norm,
            nonfinite=NonFinite.propagate,
        )
        self._flat = flat
        self._shares: Shares | None = None
        self._fused = FusedAdamW(flat.master_N, flat.weight_N, rule)

    @property
    def grad_norm(self) -> Tensor:
        """Returns the norm of the mean gradient; known after `update`."""
        return self._fused.norm_1

    def state(self) -> dict[str, Tensor]:
        """Returns moments and counters."""
        return self._fused.state()

    def reset(self) -> None:
        """Forgets all moments."""
        self._fused.reset()

    def use(self, shares: Shares | None) -> None:
        """Sets who updates what."""
        self._shares = shares
        self._fused.divide(None if shares is None else shares.parts)

    def release(self) -> None:
        """Has every rank update everything, and frees what only shares needed."""
        self._shares = None
        self._fused.forget_divisions()

    def set_inputs(self, lr: float, num_steps: int) -> None:
        """Sets the rate; the step count is on the device and goes up with every update."""
        self._fused.lr_1.fill_(lr)

    def clip(self, grad_N: Tensor, num_summed: int) -> None:
        """Takes the sums of squares."""
        self._fused.multiplier_1.fill_(1 / num_summed)
        for number in range(len(self._fused.parts)):
            self._fused.add_norm(grad_N, number)
        self._fused.add_up()
        if self._shares is not None:
            self._shares.sum_over_ranks(self._fused.total_1)

    def update(self, grad_N: Tensor) -> None:
        """Updates masters, moments and weights; the gradient is only read."""
        self._fused.finish_norm()
        for number in range(len(self._fused.parts)):
            self._fused.apply(grad_N, number)
            if self._shares is not None:
                self._shares.send(number, self._flat.computed_with)

    def wait_for_shares(self) -> None:
        """Makes the stream wait for the weights that other ranks have updated."""
        if self._shares is not None:
            self._shares.wait()


def step_optimizer(flat: FlatParameters, settings: TrainSettings) -> StepOptimizer:
    """Returns the optimizer that fits the parameters' device."""
    kind = KernelAdamW if flat.master_N.device.type == "cuda" else FlatAdamW
    return kind(flat, settings)


def _whole(flat: FlatParameters) -> tuple[tuple[int, int], ...]:
    return ((0, flat.master_N.numel()),)


def _squared_sum(values_N: Tensor) -> Tensor:
    """Returns the sum of squares in float64; torch's own norm takes seven times as long for it."""
    total = torch.zeros((), dtype=torch.float64)
    for chunk_N in torch.split(values_N, _CHUNK_ELEMENTS):
        wide_N = chunk_N.double()
        total += torch.dot(wide_N, wide_N)
    return total
