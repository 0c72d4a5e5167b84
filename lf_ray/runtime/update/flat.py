"""All trainable tensors as flat buffers in ready order, so that a bucket is one slice.

Shape suffix: N elements of the flat buffers, padding included.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lf_ray.protocol import GradientTensor
from lf_ray.runtime.bucket_plan import padded_elements


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one tensor lies in the flat buffers."""

    name: str
    parameter: nn.Parameter
    shape: torch.Size
    first: int
    last: int

    def view(self, flat_N: Tensor) -> Tensor:
        """Returns this tensor's part of a flat buffer, in its own shape."""
        return flat_N[self.first : self.last].view(self.shape)


class FlatGradients:
    """Where each tensor lies, and one fp32 buffer for all gradients.

    Args:
        named: parameters that receive a gradient, in ready order.
    """

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        self.slots = _slots(named)
        num_elements = padded_elements(self.slots[-1].last)
        self.grad_N = torch.zeros(num_elements, device=named[0][1].device)


class FlatParameters(FlatGradients):
    """fp32 masters, gradients and (where the model computes in bf16) weights, each one buffer.

    The module's parameters become views: of the masters where they are fp32, of the bf16 weights
    otherwise. Padding between tensors stays zero.

    Args:
        named: parameters that receive a gradient, in ready order.
        masters: fp32 values of the parameters that are kept in bf16, by name; they are used up.
    """

    def __init__(
        self, named: Sequence[tuple[str, nn.Parameter]], masters: dict[str, Tensor] | None = None
    ) -> None:
        super().__init__(named)
        self.master_N = torch.zeros_like(self.grad_N)
        self.weight_N: Tensor | None = None
        if any(parameter.dtype == torch.bfloat16 for _, parameter in named):
            self.weight_N = torch.zeros_like(self.grad_N, dtype=torch.bfloat16)
        self._adopt(masters or {})

    @property
    def computed_with(self) -> tuple[Tensor, ...]:
        """Returns the buffers that the module's parameters lie in."""
        dtypes = {slot.parameter.dtype for slot in self.slots}
        weights = () if self.weight_N is None else (self.weight_N,)
        return weights if dtypes == {torch.bfloat16} else (self.master_N, *weights)

    @torch.no_grad()
    def refresh_weights(self, first: int = 0, last: int | None = None) -> None:
        """Rounds masters first .. last - 1 into the bf16 weights, where there are any."""
        if self.weight_N is not None:
            self.weight_N[first:last].copy_(self.master_N[first:last])

    @torch.no_grad()
    def _adopt(self, masters: dict[str, Tensor]) -> None:
        for slot in self.slots:
            master = slot.view(self.master_N)
            master.copy_(masters.pop(slot.name, slot.parameter.data))
            if slot.parameter.dtype == torch.bfloat16:
                assert self.weight_N is not None
                slot.parameter.data = slot.view(self.weight_N)
            else:
                slot.parameter.data = master
        self.refresh_weights()


def layer_of(name: str) -> str:
    """Returns the layer (block) of a parameter: its name up to the first number, else its owner."""
    parts = name.split(".")
    for index, part in enumerate(parts[:-1]):
        if part.isdigit():
            return ".".join(parts[: index + 1])
    return ".".join(parts[:-1]) or name


def gradient_tensors(named: Sequence[tuple[str, nn.Parameter]]) -> tuple[GradientTensor, ...]:
    """Returns the gradients in the given order, as records and the bucket plan know them."""
    return tuple(
        GradientTensor(name=name, num_elements=parameter.numel(), layer=layer_of(name))
        for name, parameter in named
    )


def _slots(named: Sequence[tuple[str, nn.Parameter]]) -> tuple[Slot, ...]:
    slots = []
    first = 0
    for name, parameter in named:
        last = first + parameter.numel()
        slots.append(Slot(name, parameter, parameter.shape, first, last))
        first += padded_elements(parameter.numel())
    return tuple(slots)
