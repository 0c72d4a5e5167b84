"""AlternateVLDiT: blocks that look in turn at text, at themselves, at the images, at themselves.

The residual stream is float32, products run in the weights' dtype. A block is a pure function of
its inputs: dropout masks are drawn outside, so that eager, compiled and captured blocks see the
same. Letters: B batch, T state and action tokens, D width, S keys, C key width, F hidden width,
K time width.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.groot_n1_6.config import DitConfig

BLOCK_EPS = 1e-5
OUTPUT_EPS = 1e-6
TIME_PERIOD = 10_000.0


class Keys(NamedTuple):
    """What a cross block attends to: tokens [B, S, C], and which count [B, S] (None: all)."""

    tokens: Tensor
    valid: Tensor | None


class DropoutMasks(NamedTuple):
    """Which values of one block survive."""

    attention: Tensor
    hidden: Tensor
    output: Tensor


def draw_dropout(
    shape: Sequence[int],
    config: DitConfig,
    device: torch.device,
    generator: torch.Generator | None,
) -> DropoutMasks:
    """Returns the masks of one block for `shape` = (B, T), from one draw.

    The public block drops the attention output twice, with one chance each; two independent drops
    are one with the square of the keep probability.
    """
    keep = 1 - config.dropout_prob
    widths = [config.width, config.mlp_width, config.width]
    draw = torch.rand(*shape, sum(widths), device=device, generator=generator)
    attention, hidden, output = torch.split(draw, widths, dim=-1)
    return DropoutMasks(attention < keep**2, hidden < keep, output < keep)


def drop(x: Tensor, mask: Tensor, keep: float) -> Tensor:
    """Returns x where the mask holds, scaled to keep the mean, zero elsewhere."""
    return x * mask * (1 / keep)


class AdaNorm(nn.Module):
    """LayerNorm without own weights, scaled and shifted by time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * width)

    def forward(self, x_BTD: Tensor, time_BD: Tensor) -> Tensor:
        """Returns the normed tokens in float32; the linear's halves are scale, then shift."""
        scale_BD, shift_BD = self.linear(time_BD).float().chunk(2, dim=-1)
        normed_BTD = functional.layer_norm(x_BTD, x_BTD.shape[-1:], eps=BLOCK_EPS)
        return torch.addcmul(shift_BD[:, None], normed_BTD, 1 + scale_BD[:, None])


class DitAttention(nn.Module):
    """Attention with biases and no norm of queries or keys."""

    def __init__(self, config: DitConfig, key_width: int) -> None:
        super().__init__()
        self.head_width = config.head_width
        self.to_q = nn.Linear(config.width, config.width)
        self.to_k = nn.Linear(key_width, config.width)
        self.to_v = nn.Linear(key_width, config.width)
        self.to_out = nn.ModuleList([nn.Linear(config.width, config.width)])

    def forward(self, x_BTD: Tensor, keys: Keys) -> Tensor:
        """Returns what the tokens collect from the keys."""
        q_BHTE, k_BHSE, v_BHSE = (
            proj(tokens).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for proj, tokens in (
                (self.to_q, x_BTD),
                (self.to_k, keys.tokens),
                (self.to_v, keys.tokens),
            )
        )
        mask = None if keys.valid is None else keys.valid[:, None, None]
        mixed_BHTE = functional.scaled_dot_product_attention(q_BHTE, k_BHSE, v_BHSE, attn_mask=mask)
        out_BTD: Tensor = self.to_out[0](mixed_BHTE.transpose(1, 2).flatten(2))
        return out_BTD


class Widening(nn.Module):
    """The first linear of the feed-forward, named as in the checkpoint."""

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.proj = nn.Linear(config.width, config.mlp_width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Returns the hidden layer before its activation."""
        out_BTF: Tensor = self.proj(x_BTD)
        return out_BTF


class FeedForward(nn.Module):
    """Two linears around a tanh-GELU (not gated)."""

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        narrow = nn.Linear(config.mlp_width, config.width)
        widen = Widening(config)
        self.net = nn.ModuleList([widen, nn.Identity(), narrow])
        self.keep = 1 - config.dropout_prob

    def forward(self, x_BTD: Tensor, masks: DropoutMasks | None) -> Tensor:
        """Returns the transformed tokens."""
        hidden_BTF = functional.gelu(self.net[0](x_BTD), approximate="tanh")
        if masks is not None:
            hidden_BTF = drop(hidden_BTF, masks.hidden, self.keep)
        out_BTD: Tensor = self.net[2](hidden_BTF)
        return out_BTD if masks is None else drop(out_BTD, masks.output, self.keep)


class DitBlock(nn.Module):
    """One block; `key_width` is None for self-attention."""

    def __init__(self, config: DitConfig, key_width: int | None) -> None:
        super().__init__()
        self.keep = 1 - config.dropout_prob
        self.norm1 = AdaNorm(config.width)
        self.attn1 = DitAttention(config, key_width or config.width)
        self.ff = FeedForward(config)

    def forward(
        self, x_BTD: Tensor, time_BD: Tensor, keys: Keys | None, masks: DropoutMasks | None
    ) -> Tensor:
        """Returns the float32 residual stream after this block; no keys: the tokens' own."""
        dtype = self.attn1.to_q.weight.dtype
        normed_BTD = self.norm1(x_BTD, time_BD).to(dtype)
        mixed_BTD = self.attn1(normed_BTD, keys or Keys(normed_BTD, None))
        if masks is not None:
            mixed_BTD = drop(mixed_BTD, masks.attention, self.keep**2)
        x_BTD = x_BTD + mixed_BTD
        normed_BTD = functional.layer_norm(x_BTD, x_BTD.shape[-1:], eps=BLOCK_EPS).to(dtype)
        out_BTD: Tensor = x_BTD + self.ff(normed_BTD, masks)
        return out_BTD


class TimestepEmbedder(nn.Module):
    """Sinusoids to the time vector."""

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(config.time_width, config.width)
        self.linear_2 = nn.Linear(config.width, config.width)

    def forward(self, wave_BK: Tensor) -> Tensor:
        """Returns [B, D]."""
        wave_BK = wave_BK.to(self.linear_1.weight.dtype)
        out_BD: Tensor = self.linear_2(functional.silu(self.linear_1(wave_BK)))
        return out_BD


class TimestepEncoder(nn.Module):
    """Integer time bucket to the time vector."""

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.time_width = config.time_width
        self.timestep_embedder = TimestepEmbedder(config)

    def forward(self, bucket_B: Tensor) -> Tensor:
        """Returns [B, D]."""
        out_BD: Tensor = self.timestep_embedder(dit_time_embedding(bucket_B, self.time_width))
        return out_BD


class AlternateVLDiT(nn.Module):
    """The whole stack."""

    def __init__(self, config: DitConfig, key_width: int) -> None:
        super().__init__()
        self.config = config
        self.timestep_encoder = TimestepEncoder(config)
        self.transformer_blocks = nn.ModuleList(
            DitBlock(config, key_width if index % 2 == 0 else None)
            for index in range(config.num_layers)
        )
        self.proj_out_1 = nn.Linear(config.width, 2 * config.width)
        self.proj_out_2 = nn.Linear(config.width, config.output_width)

    def forward(
        self,
        x_BTD: Tensor,
        bucket_B: Tensor,
        text: Keys,
        image: Keys,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Returns [B, T, output width]; dropout acts in training mode only."""
        x_BTD = x_BTD.float()
        active_BD = functional.silu(self.timestep_encoder(bucket_B))
        kinds: tuple[Keys | None, ...] = (text, None, image, None)
        for index, block in enumerate(self.transformer_blocks):
            masks = None
            if self.training and self.config.dropout_prob > 0:
                masks = draw_dropout(x_BTD.shape[:2], self.config, x_BTD.device, generator)
            x_BTD = block(x_BTD, active_BD, kinds[index % 4], masks)
        return self._project(x_BTD, active_BD)

    def _project(self, x_BTD: Tensor, active_BD: Tensor) -> Tensor:
        """Returns the output; unlike in the blocks, the halves are shift, then scale."""
        shift_BD, scale_BD = self.proj_out_1(active_BD).float().chunk(2, dim=-1)
        normed_BTD = functional.layer_norm(x_BTD, x_BTD.shape[-1:], eps=OUTPUT_EPS)
        scaled_BTD = torch.addcmul(shift_BD[:, None], normed_BTD, 1 + scale_BD[:, None])
        out: Tensor = self.proj_out_2(scaled_BTD.to(self.proj_out_2.weight.dtype))
        return out


def dit_time_embedding(bucket_B: Tensor, width: int) -> Tensor:
    """Returns [cos | sin] of the integer bucket; the last frequency is exactly 1 / period."""
    half = width // 2
    index_K = torch.arange(half, device=bucket_B.device, dtype=torch.float32)
    frequency_K = torch.exp(index_K * (-math.log(TIME_PERIOD) / (half - 1)))
    angle_BK = bucket_B.float()[:, None] * frequency_K
    return torch.cat((angle_BK.cos(), angle_BK.sin()), dim=-1)
