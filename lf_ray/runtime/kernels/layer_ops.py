"""Triton kernels of the frozen prefix: what stands between its matrix products, one pass each.

Inference only. Arithmetic is float32 inside, rounded where the eager model rounds: the residual
stream after each addition, norms after their weights.
R rows (tokens), C width, H heads (queries, then keys), E head width, F hidden width. A width is
taken as its highest power of two plus the rest, so that 1152 columns are not worked on as 2048.
"""

# mypy: ignore-errors
# (a jitted kernel is Triton's own language, not Python's)

import torch
import triton
import triton.language as tl
from torch import Tensor

# Measured on H200 (docs/log.md, 2026-11-29): within 5-25 % of a copy at either width; more rows or
# warps a program are slower.
ROWS = 2
NORM_WARPS = 2
SWIGLU_BLOCK = 1024


@triton.jit
def _summed(stream_ptr, delta_ptr, sum_ptr, offset_RC, inside_RC, HAS_DELTA: tl.constexpr):
    x_RC = tl.load(stream_ptr + offset_RC, mask=inside_RC, other=0.0).to(tl.float32)
    if HAS_DELTA:
        x_RC += tl.load(delta_ptr + offset_RC, mask=inside_RC, other=0.0).to(tl.float32)
        rounded_RC = x_RC.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + offset_RC, rounded_RC, mask=inside_RC)
        x_RC = rounded_RC.to(tl.float32)
    return x_RC


@triton.jit
def _store_normed(  # noqa: PLR0913
    x_RC,
    scale_R1,
    normed_ptr,
    weight_ptr,
    bias_ptr,
    lane_1C,
    offset_RC,
    inside_RC,
    HAS_BIAS: tl.constexpr,
):
    normed_RC = x_RC * scale_R1 * tl.load(weight_ptr + lane_1C).to(tl.float32)
    if HAS_BIAS:
        normed_RC += tl.load(bias_ptr + lane_1C).to(tl.float32)
    tl.store(normed_ptr + offset_RC, normed_RC.to(normed_ptr.dtype.element_ty), mask=inside_RC)


@triton.jit
def _add_norm(  # noqa: PLR0913
    stream_ptr,
    delta_ptr,
    sum_ptr,
    normed_ptr,
    weight_ptr,
    bias_ptr,
    num_rows,
    eps,
    WIDTH: tl.constexpr,
    HIGH: tl.constexpr,
    LOW: tl.constexpr,
    HAS_DELTA: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    NUM_ROWS: tl.constexpr,
):
    row_R1 = tl.program_id(0).to(tl.int64) * NUM_ROWS + tl.arange(0, NUM_ROWS)[:, None]
    inside_R1 = row_R1 < num_rows
    high_1C = tl.arange(0, HIGH)[None, :]
    offset_RC = row_R1 * WIDTH + high_1C
    x_RC = _summed(stream_ptr, delta_ptr, sum_ptr, offset_RC, inside_R1, HAS_DELTA)
    total_R = tl.sum(x_RC, axis=1)
    if LOW > 0:
        low_1C = HIGH + tl.arange(0, LOW)[None, :]
        inside_RC = inside_R1 & (low_1C < WIDTH)
        low_offset_RC = row_R1 * WIDTH + low_1C
        rest_RC = _summed(stream_ptr, delta_ptr, sum_ptr, low_offset_RC, inside_RC, HAS_DELTA)
        total_R += tl.sum(rest_RC, axis=1)
    if HAS_BIAS:
        mean_R1 = (total_R / WIDTH)[:, None]
        x_RC -= mean_R1
        if LOW > 0:
            rest_RC = tl.where(low_1C < WIDTH, rest_RC - mean_R1, 0.0)
    squares_R = tl.sum(x_RC * x_RC, axis=1)
    if LOW > 0:
        squares_R += tl.sum(rest_RC * rest_RC, axis=1)
    scale_R1 = tl.rsqrt(squares_R / WIDTH + eps)[:, None]
    _store_normed(
        x_RC, scale_R1, normed_ptr, weight_ptr, bias_ptr, high_1C, offset_RC, inside_R1, HAS_BIAS
    )
    if LOW > 0:
        lane_1C = tl.minimum(low_1C, WIDTH - 1)
        _store_normed(
            rest_RC,
            scale_R1,
            normed_ptr,
            weight_ptr,
            bias_ptr,
            lane_1C,
            low_offset_RC,
            inside_RC,
            HAS_BIAS,
        )


def add_norm(
    stream_RC: Tensor,
    delta_RC: Tensor | None,
    weight_C: Tensor,
    bias_C: Tensor | None,
    eps: float,
    num_rows: int = ROWS,
    num_warps: int = NORM_WARPS,
) -> tuple[Tensor, Tensor]:
    """Returns the stream plus delta, and its norm: LayerNorm with a bias, RMS norm without one."""
    width = stream_RC.shape[-1]
    rows = stream_RC.numel() // width
    high = 1 << (width.bit_length() - 1)
    rest = width - high
    sum_RC = stream_RC if delta_RC is None else torch.empty_like(stream_RC)
    normed_RC = torch.empty_like(stream_RC)
    _add_norm[(triton.cdiv(rows, num_rows),)](
        stream_RC,
        stream_RC if delta_RC is None else delta_RC,
        sum_RC,
        normed_RC,
        weight_C,
        weight_C if bias_C is None else bias_C,
        rows,
        eps,
        WIDTH=width,
        HIGH=high,
        LOW=triton.next_power_of_2(rest) if rest else 0,
        HAS_DELTA=delta_RC is not None,
        HAS_BIAS=bias_C is not None,
        NUM_ROWS=num_rows,
        num_warps=num_warps,
    )
    return sum_RC, normed_RC


@triton.jit
def _swiglu(gate_up_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane_F = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside_F = lane_F < width
    gate_F = tl.load(gate_up_ptr + row * 2 * width + lane_F, mask=inside_F).to(tl.float32)
    up_F = tl.load(gate_up_ptr + row * 2 * width + width + lane_F, mask=inside_F).to(tl.float32)
    # the eager model rounds silu(gate) before the product
    active_F = (gate_F * tl.sigmoid(gate_F)).to(out_ptr.dtype.element_ty).to(tl.float32)
    out_F = (active_F * up_F).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * width + lane_F, out_F, mask=inside_F)


def swiglu(gate_up: Tensor) -> Tensor:
    """Returns silu(gate) * up of a product whose last axis holds [gate | up]."""
    width = gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], width)
    grid = (out.numel() // width, triton.cdiv(width, SWIGLU_BLOCK))
    _swiglu[grid](gate_up, out, width, BLOCK=SWIGLU_BLOCK, num_warps=4)
    return out


@triton.jit
def _norm_rotate(  # noqa: PLR0913
    qkv_ptr,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    row_width,
    num_positions,
    num_heads,
    eps,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head_H1 = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    lane_1E = tl.arange(0, HALF)[None, :]
    inside_HE = head_H1 < num_heads
    head_offset_HE = head_H1 * (2 * HALF) + lane_1E
    offset_HE = row * row_width + head_offset_HE
    low_HE = tl.load(qkv_ptr + offset_HE, mask=inside_HE, other=0.0).to(tl.float32)
    high_HE = tl.load(qkv_ptr + offset_HE + HALF, mask=inside_HE, other=0.0).to(tl.float32)
    squares_H = tl.sum(low_HE * low_HE + high_HE * high_HE, axis=1)
    scale_H1 = tl.rsqrt(squares_H / (2 * HALF) + eps)[:, None]
    low_weight = tl.load(weight_ptr + head_offset_HE, mask=inside_HE, other=0.0)
    high_weight = tl.load(weight_ptr + head_offset_HE + HALF, mask=inside_HE, other=0.0)
    dtype = qkv_ptr.dtype.element_ty
    low_HE = (low_HE * scale_H1 * low_weight.to(tl.float32)).to(dtype).to(tl.float32)
    high_HE = (high_HE * scale_H1 * high_weight.to(tl.float32)).to(dtype).to(tl.float32)
    angle_1E = (row % num_positions) * HALF + lane_1E
    cos_1E = tl.load(cos_ptr + angle_1E).to(tl.float32)
    sin_1E = tl.load(sin_ptr + angle_1E).to(tl.float32)
    turned_low_HE = low_HE * cos_1E - high_HE * sin_1E
    turned_high_HE = high_HE * cos_1E + low_HE * sin_1E
    tl.store(qkv_ptr + offset_HE, turned_low_HE.to(dtype), mask=inside_HE)
    tl.store(qkv_ptr + offset_HE + HALF, turned_high_HE.to(dtype), mask=inside_HE)


def norm_rotate_(
    qkv_BLD: Tensor, weight_HE: Tensor, cos_LE: Tensor, sin_LE: Tensor, eps: float
) -> Tensor:
    """Norms and turns queries and keys in place; values, behind them, stay as they are.

    Args:
        qkv_BLD: product whose last axis holds queries, keys, values.
        weight_HE: norm weights of each query head, then of each key head.
        cos_LE: of half the head width, [L, E / 2].
        sin_LE: likewise.
        eps: of the norm.
    """
    num_heads, head_width = weight_HE.shape
    heads = 8
    _norm_rotate[(qkv_BLD.shape[0] * qkv_BLD.shape[1], triton.cdiv(num_heads, heads))](
        qkv_BLD,
        weight_HE,
        cos_LE,
        sin_LE,
        qkv_BLD.shape[2],
        qkv_BLD.shape[1],
        num_heads,
        eps,
        HALF=head_width // 2,
        HEADS=heads,
        num_warps=2,
    )
    return qkv_BLD
