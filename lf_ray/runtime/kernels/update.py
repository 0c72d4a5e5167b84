"""AdamW with clipping over flat buffers: who holds its state, and which arithmetic runs.

Sums of squares are taken in float64: the order of summation, and with it how the buffers are
divided, then shows in the float32 norm about once in 1e8 steps.

N elements of the flat buffers, P partial sums of squares, 1 one device number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

# Measured on H200 (docs/log.md, 2026-11-29): 4.1-4.5 TB/s; wider chunks gain nothing.
NORM_BLOCK = 4096
MAX_PARTIALS = 1024
UPDATE_BLOCK = 1024


class NonFinite(Enum):
    """What a gradient that is not finite does to the step."""

    skip = "skip"
    propagate = "propagate"


@dataclass(frozen=True)
class AdamWRule:
    """AdamW's constants; learning rate and step count are device numbers instead.

    Attributes:
        clip_norm: largest gradient norm; inf never clips.
        nonfinite: skip leaves weights, moments and step count as they were and counts the step
            as skipped; propagate does what torch's clip and AdamW do. The norm that is read back
            is not finite in both, so a trial can't pass over it.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 1e-5
    clip_norm: float = 1.0
    nonfinite: NonFinite = NonFinite.skip


def kernel_refusal(device: torch.device) -> str | None:
    """Returns why the Triton kernels can't run on a device, None where they can."""
    if device.type != "cuda":
        return f"the kernels run on cuda, not on {device.type}"
    return None if find_spec("triton") else "triton is not installed"


class FusedAdamW:
    """The update of one step: gradient norm, clip, AdamW, weights in the compute dtype.

    Everything that changes between steps is a device tensor made here, so that a step can be
    captured: `lr_1` and `multiplier_1` (what gradients are scaled by before all else, such as
    1 / ranks) are set by the caller in place; `norm_1`, `scale_1`, `step_1`, `skipped_1` are
    results.

    Attributes:
        parts: slices [start, stop) of N that are updated; all of N unless `divide` says otherwise.
        total_1: float64 sum of squares over the parts, by `add_up`; the caller may add what others
            have summed before `finish_norm` reads it.

    Args:
        master_N: float32 weights, updated in place.
        weight_N: weights in the compute dtype, overwritten from the masters; None without any.
        use_kernels: None takes the Triton kernels where they can run.
        max_programs: cap on the update's grid, to leave multiprocessors to work beside it.
    """

    def __init__(
        self,
        master_N: Tensor,
        weight_N: Tensor | None,
        rule: AdamWRule,
        *,
        use_kernels: bool | None = None,
        max_programs: int | None = None,
    ) -> None:
        assert master_N.dtype == torch.float32
        _check_like(master_N, weight_N)
        self.rule = rule
        self.master_N, self.weight_N = master_N, weight_N
        self.m_N, self.v_N = torch.zeros_like(master_N), torch.zeros_like(master_N)
        device = master_N.device
        self.lr_1 = torch.zeros(1, device=device)
        self.multiplier_1 = torch.ones(1, device=device)
        self.step_1 = torch.zeros(1, dtype=torch.int64, device=device)
        self.skipped_1 = torch.zeros(1, dtype=torch.int64, device=device)
        self._scalars = torch.zeros(8, device=device)
        betas = [math.log(rule.beta1), math.log(rule.beta2)]
        self._log_betas = torch.tensor(betas, dtype=torch.float64, device=device)
        self.total_1 = torch.zeros(1, dtype=torch.float64, device=device)
        self._partials_of: dict[tuple[tuple[int, int], ...], Tensor] = {}
        self.divide(None)
        refused = kernel_refusal(device) is not None
        self.use_kernels = not refused if use_kernels is None else use_kernels
        self.max_programs = max_programs

    @property
    def norm_1(self) -> Tensor:
        """The gradient's norm before clipping, after `multiplier_1`."""
        return self._scalars[0:1]

    @property
    def scale_1(self) -> Tensor:
        """What each gradient was multiplied by: `multiplier_1` times the clip."""
        return self._scalars[1:2]

    def state(self) -> dict[str, Tensor]:
        """Returns the tensors that a checkpoint or a snapshot has to hold, beside the masters."""
        return {"m": self.m_N, "v": self.v_N, "step": self.step_1, "skipped": self.skipped_1}

    def reset(self) -> None:
        """Forgets all steps: moments, step count and skipped count are zero."""
        for tensor in self.state().values():
            tensor.zero_()

    def divide(self, parts: Sequence[tuple[int, int]] | None) -> None:
        """Sets the slices of N that are updated, in this order; None is all of it.

        Partial sums of earlier divisions stay where they are: a captured update writes there.
        """
        self.parts = ((0, self.master_N.numel()),) if parts is None else tuple(parts)
        counts = [_num_partials(stop - start) for start, stop in self.parts]
        if self.parts not in self._partials_of:
            self._partials_of[self.parts] = torch.zeros(
                sum(counts), dtype=torch.float64, device=self.master_N.device
            )
        self._partials_P = self._partials_of[self.parts]
        self._partials = torch.split(self._partials_P, counts)

    def forget_divisions(self) -> None:
        """Goes back to all of N and frees what other divisions took; no graph may use them."""
        self.divide(None)
        self._partials_of = {self.parts: self._partials_P}

    def update(self, grad_N: Tensor) -> None:
        """Runs the whole update on the current stream; the gradient (float32, bfloat16) is read."""
        for number in range(len(self.parts)):
            self.add_norm(grad_N, number)
        self.add_up()
        self.finish_norm()
        for number in range(len(self.parts)):
            self.apply(grad_N, number)

    @torch.no_grad()
    def add_norm(self, grad_N: Tensor, number: int) -> None:
        """Takes the sums of squares of one part."""
        start, stop = self.parts[number]
        if self.use_kernels:
            _kernels().launch_sums(grad_N[start:stop], self._partials[number], NORM_BLOCK)
            return
        norm = torch.linalg.vector_norm(grad_N[start:stop], dtype=torch.float64)
        self._partials[number].zero_()
        self._partials[number][0:1].copy_(norm.square())

    @torch.no_grad()
    def add_up(self) -> None:
        """Adds the parts' sums of squares."""
        torch.sum(self._partials_P, 0, keepdim=True, out=self.total_1)

    @torch.no_grad()
    def finish_norm(self) -> None:
        """Takes norm, clip, step count and bias corrections from the sum of squares."""
        if self.use_kernels:
            _kernels().launch_norm(self)
        else:
            _finish_in_torch(self)

    @torch.no_grad()
    def apply(self, grad_N: Tensor, number: int) -> None:
        """Updates one part of masters, moments and weights."""
        assert grad_N.dtype in (torch.float32, torch.bfloat16)
        _check_like(self.master_N, grad_N)
        if self.use_kernels:
            _kernels().launch_update(self, grad_N, self.parts[number])
        else:
            _update_in_torch(self, grad_N, slice(*self.parts[number]))


def _kernels() -> Any:
    # Triton is an import of seconds that a CPU-only machine doesn't have.
    from lf_ray.runtime.kernels import launch

    return launch


def _num_partials(num_elements: int) -> int:
    return max(1, min(MAX_PARTIALS, -(-num_elements // NORM_BLOCK)))


def _check_like(master_N: Tensor, other_N: Tensor | None) -> None:
    assert master_N.is_contiguous()
    assert other_N is None or (other_N.is_contiguous() and other_N.shape == master_N.shape)


def _finish_in_torch(update: FusedAdamW) -> None:
    rule, scalars = update.rule, update._scalars
    norm_1 = update.total_1.sqrt().float() * update.multiplier_1
    finite_1 = norm_1 < math.inf
    clip_1 = rule.clip_norm / (norm_1 + 1e-6)
    scale_1 = torch.where(clip_1 > 1.0, 1.0, clip_1) * update.multiplier_1
    advance_1 = finite_1 if rule.nonfinite is NonFinite.skip else torch.ones_like(finite_1)
    update.step_1 += advance_1
    update.skipped_1 += ~advance_1
    count_1 = update.step_1.clamp(min=1).double()
    corrections_2 = 1.0 - torch.exp(count_1 * update._log_betas)
    step_size_1 = (update.lr_1.double() / corrections_2[0]).float()
    root_gain_1 = corrections_2[1:].rsqrt().float()
    scalars[0:1], scalars[1:2], scalars[2:3] = norm_1, scale_1, finite_1.float()
    scalars[3:4], scalars[4:5] = step_size_1, root_gain_1
    scalars[5:6] = 1.0 - update.lr_1 * rule.weight_decay


def _update_in_torch(update: FusedAdamW, raw_N: Tensor, part: slice) -> None:
    rule = update.rule
    _, scale_1, finite_1, step_size_1, root_gain_1, decay_1, *_ = torch.split(update._scalars, 1)
    skip = rule.nonfinite is NonFinite.skip
    advance_1 = finite_1 > 0.0 if skip else torch.ones_like(finite_1, dtype=torch.bool)
    old = [item[part] for item in (update.m_N, update.v_N, update.master_N)]
    grad_N = raw_N[part].float() * scale_1
    m_N = rule.beta1 * old[0] + (1.0 - rule.beta1) * grad_N
    v_N = rule.beta2 * old[1] + (1.0 - rule.beta2) * grad_N * grad_N
    master_N = old[2] * decay_1 - step_size_1 * (m_N / (v_N.sqrt() * root_gain_1 + rule.eps))
    for kept_N, new_N in zip(old, (m_N, v_N, master_N)):
        kept_N.copy_(torch.where(advance_1, new_N, kept_N))
    if update.weight_N is not None:
        weight_N = update.weight_N[part]
        weight_N.copy_(torch.where(advance_1, old[2], weight_N))
