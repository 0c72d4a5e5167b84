"""What is kept of a step to tell later whether another step computed the same.

A digest does not depend on the bucket plan: it speaks of tensors, not of buckets.

Shape suffixes: N elements of the flat buffers, P tensors.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lf_ray.runtime.update.flat import Slot

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# An odd multiplier and a shift, so that differences in the last bits of several elements do not
# cancel in the sum as they would in a sum of plain bit patterns.
_MIX_FACTOR = -1640531527
_MIX_SHIFT = 15


@dataclass(frozen=True, slots=True)
class StepDigest:
    """One step on one rank.

    Attributes:
        loss: this rank's, before any communication.
        grad_norm: of the mean gradient over all ranks.
        checksums_P: of every reduced gradient's bits.
        sums_P: of its elements in fp64; None where only bits are compared.
        abs_sums_P: likewise of their magnitudes.
    """

    loss: float
    grad_norm: float
    checksums_P: Ints
    sums_P: Floats | None = None
    abs_sums_P: Floats | None = None

    @property
    def shared_word(self) -> str:
        """Returns a word that is equal on all ranks if they hold the same gradient."""
        text = np.float64(self.grad_norm).tobytes() + self.checksums_P.tobytes()
        return hashlib.sha256(text).hexdigest()[:16]

    def same_bits(self, other: "StepDigest") -> bool:
        """Returns whether loss, grad norm and every checksum are equal."""
        return (
            self.loss == other.loss
            and self.grad_norm == other.grad_norm
            and bool(np.array_equal(self.checksums_P, other.checksums_P))
        )


@torch.no_grad()
def step_digest(
    slots: Sequence[Slot], reduced_N: Tensor, loss: Tensor, grad_norm: Tensor, *, with_sums: bool
) -> StepDigest:
    """Returns the digest of a step whose gradients are reduced; it waits for the device."""
    parts = [reduced_N[slot.first : slot.last] for slot in slots]
    checksums_P = _to_host([checksum(part) for part in parts])
    sums_P = abs_sums_P = None
    if with_sums:
        sums_P = _to_host([part.sum(dtype=torch.float64) for part in parts])
        abs_sums_P = _to_host([part.abs().sum(dtype=torch.float64) for part in parts])
    return StepDigest(
        loss=float(loss),
        grad_norm=float(grad_norm),
        checksums_P=checksums_P,
        sums_P=sums_P,
        abs_sums_P=abs_sums_P,
    )


def checksum(values_N: Tensor) -> Tensor:
    """Returns a sum over the mixed bits of a tensor, on its device."""
    kind = torch.int32 if values_N.element_size() == 4 else torch.int16
    mixed_N = values_N.view(kind).to(torch.int32).mul(_MIX_FACTOR)
    mixed_N ^= mixed_N >> _MIX_SHIFT
    return mixed_N.sum(dtype=torch.int64)


def _to_host(values: list[Tensor]) -> Any:
    return torch.stack(values).cpu().numpy()
