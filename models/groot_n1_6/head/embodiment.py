"""Layers with one set of weights for each embodiment slot.

A run that trains one embodiment activates its slot: the layers then hold that slice as their
parameter and are plain linears; the resting slots stay on the host, untouched (their gradient is
exactly zero, and AdamW at the recipe's rates leaves such rows bit-identical), until an export
merges them back. With lr x weight decay from 2^-25 on, AdamW would shrink those rows; here other
embodiments stay as they were.
Letters: B batch, T tokens, I input width, O output width, E slots held, D width, K time width.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

ACTION_TIME_PERIOD = 10_000.0


class CategorySpecificLinear(nn.Module):
    """y = x W[slot] + b[slot], in float32 after the product."""

    def __init__(self, num_slots: int, input_width: int, output_width: int) -> None:
        super().__init__()
        self.num_slots = num_slots
        self.W = nn.Parameter(torch.empty(num_slots, input_width, output_width))
        self.b = nn.Parameter(torch.empty(num_slots, output_width))
        self.active: tuple[int, ...] = tuple(range(num_slots))
        self.resting: dict[str, Tensor] = {}

    def activate(self, slots: Sequence[int]) -> None:
        """Keeps the slots as parameters, in this order, and the whole tables on the host."""
        chosen = list(slots)
        tables = {name: self.table(name) for name in ("W", "b")}
        for name, table in tables.items():
            old: Tensor = getattr(self, name)
            rows = table[chosen].to(device=old.device, dtype=old.dtype)
            setattr(self, name, nn.Parameter(rows, requires_grad=old.requires_grad))
        self.active = tuple(chosen)
        whole = self.active == tuple(range(self.num_slots))
        self.resting = {} if whole else tables

    def table(self, name: str, active: Tensor | None = None) -> Tensor:
        """Returns W or b of all slots on the host; `active` replaces the parameter's values."""
        current: Tensor = getattr(self, name).detach() if active is None else active
        if not self.resting or current.is_meta:
            return current.clone() if current.is_meta else current.cpu().clone()
        whole = self.resting[name].clone().to(current.dtype)
        whole[list(self.active)] = current.cpu()
        return whole

    def set_table(self, name: str, table: Tensor) -> None:
        """Takes over W or b of all slots: active ones into the parameter, others to the host."""
        parameter: Tensor = getattr(self, name)
        parameter.copy_(table[list(self.active)])
        if self.resting:
            self.resting[name].copy_(table)

    def forward(self, x_BTI: Tensor, row_B: Tensor) -> Tensor:
        """Returns [B, T, O]; `row_B` is each sample's place among the active slots."""
        x_BTI = x_BTI.to(self.W.dtype)
        if len(self.active) == 1:
            product_BTO = x_BTI @ self.W.squeeze(0)
            return product_BTO.float() + self.b.squeeze(0).float()
        return torch.bmm(x_BTI, self.W[row_B]).float() + self.b[row_B][:, None].float()


class CategorySpecificMlp(nn.Module):
    """Two category-specific layers around a ReLU."""

    def __init__(self, num_slots: int, widths: tuple[int, int, int]) -> None:
        super().__init__()
        self.layer1 = CategorySpecificLinear(num_slots, widths[0], widths[1])
        self.layer2 = CategorySpecificLinear(num_slots, widths[1], widths[2])

    def forward(self, x_BTI: Tensor, row_B: Tensor) -> Tensor:
        """Returns [B, T, O] float32."""
        out: Tensor = self.layer2(functional.relu(self.layer1(x_BTI, row_B)), row_B)
        return out


class ActionEncoder(nn.Module):
    """Noisy actions and their time bucket to tokens."""

    def __init__(self, num_slots: int, action_width: int, width: int) -> None:
        super().__init__()
        self.W1 = CategorySpecificLinear(num_slots, action_width, width)
        self.W2 = CategorySpecificLinear(num_slots, 2 * width, width)
        self.W3 = CategorySpecificLinear(num_slots, width, width)

    def forward(self, noisy_BTA: Tensor, bucket_B: Tensor, row_B: Tensor) -> Tensor:
        """Returns action tokens [B, T, D] float32."""
        action_BTD = self.W1(noisy_BTA, row_B)
        time_BD = action_time_embedding(bucket_B, action_BTD.shape[-1])
        time_BTD = time_BD[:, None].expand_as(action_BTD)
        hidden_BTD = functional.silu(self.W2(torch.cat((action_BTD, time_BTD), dim=-1), row_B))
        out_BTD: Tensor = self.W3(hidden_BTD, row_B)
        return out_BTD


def action_time_embedding(bucket_B: Tensor, width: int) -> Tensor:
    """Returns [sin | cos] of the integer bucket, frequencies falling over width / 2 steps."""
    half = width // 2
    index_K = torch.arange(half, device=bucket_B.device, dtype=torch.float32)
    frequency_K = torch.exp(index_K * (-math.log(ACTION_TIME_PERIOD) / half))
    angle_BK = bucket_B.float()[:, None] * frequency_K
    return torch.cat((angle_BK.sin(), angle_BK.cos()), dim=-1)
