"""Triton kernels of the fused update; launched by `lf_ray.runtime.kernels.update` alone.

N elements of the flat buffers or of a part, P partial sums. Every sum here has one fixed order: the
number of partial sums depends on N alone. Squares are summed in float64, so that the norm's float32
bits don't depend on how N is divided. Flat buffers are padded to a multiple of 32 elements, so that
a mask breaks up no vector load (parts of 16 ranks and more may start in the middle of one).
"""

# mypy: ignore-errors
# (a jitted kernel is Triton's own language, not Python's)

import triton
import triton.language as tl

# Rows of the float32 scalars that pass from `finish_norm` to `adamw`.
NORM: tl.constexpr = tl.constexpr(0)
SCALE: tl.constexpr = tl.constexpr(1)
FINITE: tl.constexpr = tl.constexpr(2)
STEP_SIZE: tl.constexpr = tl.constexpr(3)
ROOT_GAIN: tl.constexpr = tl.constexpr(4)
DECAY: tl.constexpr = tl.constexpr(5)


@triton.jit
def squared_sums(grad_ptr, partial_ptr, num_elements, BLOCK: tl.constexpr):
    """Writes the sum of squares of every P-th chunk, one program each."""
    lane_B = tl.arange(0, BLOCK)
    sum_B = tl.zeros([BLOCK], dtype=tl.float64)
    for chunk in range(tl.program_id(0), tl.cdiv(num_elements, BLOCK), tl.num_programs(0)):
        offset_B = tl.cast(chunk, tl.int64) * BLOCK + lane_B
        grad_B = tl.load(grad_ptr + offset_B, mask=offset_B < num_elements, other=0.0)
        # Through float32: bfloat16 has no way of its own to float64.
        grad_B = grad_B.to(tl.float32).to(tl.float64)
        sum_B += grad_B * grad_B
    tl.store(partial_ptr + tl.program_id(0), tl.sum(sum_B, axis=0))


@triton.jit
def finish_norm(  # noqa: PLR0913
    total_ptr,
    scalar_ptr,
    lr_ptr,
    multiplier_ptr,
    log_beta_ptr,
    step_ptr,
    skipped_ptr,
    clip_norm,
    weight_decay,
    SKIP: tl.constexpr,
):
    """Turns the sum of squares into norm, clip scale, step count and bias corrections."""
    multiplier = tl.load(multiplier_ptr)
    norm = tl.sqrt(tl.load(total_ptr)).to(tl.float32) * multiplier
    # false for nan too: a comparison with nan does not hold
    finite = norm < float("inf")
    scale = clip_norm / (norm + 1e-6)
    scale = tl.where(scale > 1.0, 1.0, scale) * multiplier
    lr = tl.load(lr_ptr)
    skipped = tl.load(skipped_ptr)
    if SKIP:
        step = tl.load(step_ptr) + finite.to(tl.int64)
        tl.store(skipped_ptr, skipped + 1 - finite.to(tl.int64))
    else:
        step = tl.load(step_ptr) + 1
    tl.store(step_ptr, step)
    # a first step that is skipped has count 0; its corrections are not used
    count = tl.maximum(step, 1).to(tl.float64)
    correction1 = 1.0 - tl.exp(count * tl.load(log_beta_ptr))
    correction2 = 1.0 - tl.exp(count * tl.load(log_beta_ptr + 1))
    tl.store(scalar_ptr + NORM, norm)
    tl.store(scalar_ptr + SCALE, scale)
    tl.store(scalar_ptr + FINITE, finite.to(tl.float32))
    tl.store(scalar_ptr + STEP_SIZE, (lr.to(tl.float64) / correction1).to(tl.float32))
    tl.store(scalar_ptr + ROOT_GAIN, (1.0 / tl.sqrt(correction2)).to(tl.float32))
    tl.store(scalar_ptr + DECAY, 1.0 - lr * weight_decay)


@triton.jit
def adamw(  # noqa: PLR0913
    grad_ptr,
    master_ptr,
    m_ptr,
    v_ptr,
    weight_ptr,
    scalar_ptr,
    num_elements,
    beta1,
    beta2,
    rest1,
    rest2,
    eps,
    SKIP: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Updates moments, masters and compute weights in one pass; a grid smaller than N loops."""
    if SKIP:
        num_elements = num_elements * tl.load(scalar_ptr + FINITE).to(tl.int32)
    scale = tl.load(scalar_ptr + SCALE)
    step_size = tl.load(scalar_ptr + STEP_SIZE)
    root_gain = tl.load(scalar_ptr + ROOT_GAIN)
    decay = tl.load(scalar_ptr + DECAY)
    lane_B = tl.arange(0, BLOCK)
    for chunk in range(tl.program_id(0), tl.cdiv(num_elements, BLOCK), tl.num_programs(0)):
        offset_B = tl.cast(chunk, tl.int64) * BLOCK + lane_B
        inside_B = offset_B < num_elements
        grad_B = tl.load(grad_ptr + offset_B, mask=inside_B).to(tl.float32) * scale
        m_B = tl.load(m_ptr + offset_B, mask=inside_B)
        v_B = tl.load(v_ptr + offset_B, mask=inside_B)
        master_B = tl.load(master_ptr + offset_B, mask=inside_B)
        m_B = beta1 * m_B + rest1 * grad_B
        v_B = beta2 * v_B + rest2 * grad_B * grad_B
        denominator_B = tl.sqrt(v_B) * root_gain + eps
        master_B = master_B * decay - step_size * (m_B / denominator_B)
        tl.store(m_ptr + offset_B, m_B, mask=inside_B)
        tl.store(v_ptr + offset_B, v_B, mask=inside_B)
        tl.store(master_ptr + offset_B, master_B, mask=inside_B)
        if HAS_WEIGHT:
            weight_B = master_B.to(weight_ptr.dtype.element_ty)
            tl.store(weight_ptr + offset_B, weight_B, mask=inside_B)
