"""The blocks that learn, as pure functions of tensors: one compiled function serves all alike.

Projections of one input run as one product, dropout compares 16 random bits an element inside the
block instead of drawing float32 masks beside it, and each kind of attention takes the kernel that
measured fastest.
B batch, T state and action tokens, D width, S keys, C key width, F hidden width, L sequence.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

BLOCK_EPS = 1e-5
_BITS = 16
# Measured on H200 (docs/log.md, 2026-11-29): of 51 x 51 tokens the memory-efficient kernel is the
# fastest, of longer keys and of masked ones cuDNN's; each list ends with what any shape can take.
_SELF_KERNELS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_CROSS_KERNELS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


class BlockWeights(NamedTuple):
    """One DiT block's parameters."""

    norm: Tensor
    norm_bias: Tensor
    q: Tensor
    q_bias: Tensor
    k: Tensor
    k_bias: Tensor
    v: Tensor
    v_bias: Tensor
    out: Tensor
    out_bias: Tensor
    widen: Tensor
    widen_bias: Tensor
    narrow: Tensor
    narrow_bias: Tensor


class LayerWeights(NamedTuple):
    """One language layer's parameters."""

    first_norm: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    q_norm: Tensor
    k_norm: Tensor
    out: Tensor
    second_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


def dit_block(
    x_BTD: Tensor,
    time_BD: Tensor,
    tokens_BSC: Tensor | None,
    valid_BS: Tensor | None,
    bits: Tensor | None,
    weights: BlockWeights,
    sizes: tuple[int, float],
) -> Tensor:
    """Returns the float32 residual stream after one block; no tokens: self-attention.

    Args:
        x_BTD: float32 residual stream.
        time_BD: time vector, activated.
        tokens_BSC: what a cross block attends to.
        valid_BS: which of them count; None for all.
        bits: int16 random bits for attention, hidden and output values; None drops nothing.
        weights: the block's.
        sizes: head width and keep probability.
    """
    head_width, keep = sizes
    dtype = weights.q.dtype
    modulation_BD = functional.linear(time_BD, weights.norm, weights.norm_bias).float()
    scale_BD, shift_BD = modulation_BD.chunk(2, dim=-1)
    normed_BTD = functional.layer_norm(x_BTD, x_BTD.shape[-1:], eps=BLOCK_EPS)
    normed_BTD = torch.addcmul(shift_BD[:, None], normed_BTD, 1 + scale_BD[:, None]).to(dtype)
    if tokens_BSC is None:
        mixed_BTD = _attend_self(normed_BTD, weights, head_width)
    else:
        mixed_BTD = _attend_keys(normed_BTD, tokens_BSC, valid_BS, weights, head_width)
    mixed_BTD = functional.linear(mixed_BTD, weights.out, weights.out_bias)
    width, hidden_width = x_BTD.shape[-1], weights.widen.shape[0]
    if bits is not None:
        mixed_BTD = drop(mixed_BTD, bits[..., :width], keep**2)
    x_BTD = x_BTD + mixed_BTD
    normed_BTD = functional.layer_norm(x_BTD, x_BTD.shape[-1:], eps=BLOCK_EPS).to(dtype)
    hidden_BTF = functional.linear(normed_BTD, weights.widen, weights.widen_bias)
    hidden_BTF = functional.gelu(hidden_BTF, approximate="tanh")
    if bits is not None:
        hidden_BTF = drop(hidden_BTF, bits[..., width : width + hidden_width], keep)
    out_BTD = functional.linear(hidden_BTF, weights.narrow, weights.narrow_bias)
    if bits is not None:
        out_BTD = drop(out_BTD, bits[..., width + hidden_width :], keep)
    return x_BTD + out_BTD


def language_layer(
    x_BLD: Tensor,
    cos_LE: Tensor,
    sin_LE: Tensor,
    weights: LayerWeights,
    sizes: tuple[int, float],
) -> Tensor:
    """Returns the residual stream after one causal layer; `sizes` are head width and epsilon."""
    head_width, eps = sizes
    widths = [weights.q.shape[0], weights.k.shape[0], weights.v.shape[0]]
    normed_BLD = functional.rms_norm(x_BLD, x_BLD.shape[-1:], weights.first_norm, eps)
    qkv_BLD = functional.linear(normed_BLD, torch.cat((weights.q, weights.k, weights.v)))
    q_BHLE, k_BGLE, v_BGLE = (
        part.view(*part.shape[:2], -1, head_width).transpose(1, 2)
        for part in torch.split(qkv_BLD, widths, dim=-1)
    )
    q_BHLE = _turned(
        functional.rms_norm(q_BHLE, (head_width,), weights.q_norm, eps), cos_LE, sin_LE
    )
    k_BGLE = _turned(
        functional.rms_norm(k_BGLE, (head_width,), weights.k_norm, eps), cos_LE, sin_LE
    )
    mixed_BHLE = functional.scaled_dot_product_attention(
        q_BHLE, k_BGLE, v_BGLE, is_causal=True, enable_gqa=True
    )
    x_BLD = x_BLD + functional.linear(mixed_BHLE.transpose(1, 2).flatten(2), weights.out)
    normed_BLD = functional.rms_norm(x_BLD, x_BLD.shape[-1:], weights.second_norm, eps)
    both = functional.linear(normed_BLD, torch.cat((weights.gate, weights.up)))
    gate, up = both.chunk(2, dim=-1)
    return x_BLD + functional.linear(functional.silu(gate) * up, weights.down)


def random_bits(x_BTD: Tensor, width: int, generator: torch.Generator | None) -> Tensor:
    """Returns int16 of all values alike, [B, T, width rounded up to 4]."""
    words = torch.empty((*x_BTD.shape[:2], -(-width // 4)), dtype=torch.int64, device=x_BTD.device)
    return words.random_(-(2**63), None, generator=generator).view(torch.int16)


def rotation(
    config: Any, num_positions: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Returns cosine and sine of each position and half head, as the model rounds them."""
    even = torch.arange(0, config.head_width, 2, device=device, dtype=torch.float32)
    frequency = 1.0 / (config.rope_theta ** (even / config.head_width))
    position_L = torch.arange(num_positions, device=device, dtype=torch.float32)
    angle_LE = torch.outer(position_L, frequency)
    return angle_LE.cos().to(dtype), angle_LE.sin().to(dtype)


def block_weights(block: Any) -> BlockWeights:
    """Returns a DiT block's parameters."""
    attention, widen, narrow = block.attn1, block.ff.net[0].proj, block.ff.net[2]
    linears = (
        block.norm1.linear,
        attention.to_q,
        attention.to_k,
        attention.to_v,
        attention.to_out[0],
        widen,
        narrow,
    )
    return BlockWeights(*(item for linear in linears for item in (linear.weight, linear.bias)))


def layer_weights(layer: Any) -> LayerWeights:
    """Returns a language layer's parameters."""
    attention, mlp = layer.self_attn, layer.mlp
    modules = (
        layer.input_layernorm,
        attention.q_proj,
        attention.k_proj,
        attention.v_proj,
        attention.q_norm,
        attention.k_norm,
        attention.o_proj,
        layer.post_attention_layernorm,
        mlp.gate_proj,
        mlp.up_proj,
        mlp.down_proj,
    )
    return LayerWeights(*(module.weight for module in modules))


def _attend_self(normed_BTD: Tensor, weights: BlockWeights, head_width: int) -> Tensor:
    weight = torch.cat((weights.q, weights.k, weights.v))
    bias = torch.cat((weights.q_bias, weights.k_bias, weights.v_bias))
    q_BHTE, k_BHTE, v_BHTE = _heads(functional.linear(normed_BTD, weight, bias), 3, head_width)
    with sdpa_kernel(_SELF_KERNELS):
        mixed_BHTE = functional.scaled_dot_product_attention(q_BHTE, k_BHTE, v_BHTE)
    return mixed_BHTE.transpose(1, 2).flatten(2)


def _attend_keys(
    normed_BTD: Tensor,
    tokens_BSC: Tensor,
    valid_BS: Tensor | None,
    weights: BlockWeights,
    head_width: int,
) -> Tensor:
    weight = torch.cat((weights.k, weights.v))
    bias = torch.cat((weights.k_bias, weights.v_bias))
    query = functional.linear(normed_BTD, weights.q, weights.q_bias)
    (q_BHTE,) = _heads(query, 1, head_width)
    k_BHSE, v_BHSE = _heads(functional.linear(tokens_BSC, weight, bias), 2, head_width)
    mask = None if valid_BS is None else valid_BS[:, None, None]
    with sdpa_kernel(_CROSS_KERNELS):
        mixed_BHTE = functional.scaled_dot_product_attention(q_BHTE, k_BHSE, v_BHSE, attn_mask=mask)
    return mixed_BHTE.transpose(1, 2).flatten(2)


def _heads(product: Tensor, num_parts: int, head_width: int) -> Sequence[Tensor]:
    """Returns the parts of a product's last axis, each as [B, H, tokens, E]."""
    split = product.view(*product.shape[:2], num_parts, -1, head_width)
    return split.permute(2, 0, 3, 1, 4).unbind(0)


def drop(x: Tensor, bits: Tensor, keep: float) -> Tensor:
    """Returns x where its bits are below the share that is kept, scaled to keep the mean."""
    bound = round((keep - 0.5) * 2**_BITS)
    out: Tensor = x * (bits < bound) * (1 / keep)
    return out


def _turned(x_BHLE: Tensor, cos_LE: Tensor, sin_LE: Tensor) -> Tensor:
    low, high = x_BHLE.chunk(2, dim=-1)
    return torch.cat((low * cos_LE - high * sin_LE, high * cos_LE + low * sin_LE), dim=-1)
