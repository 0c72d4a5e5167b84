"""What a step does, in seconds of a GPU alone, and which gradients it sends.

Times are straight lines in the batch, fitted to the probes named beside them.
"""

from dataclasses import dataclass

from lf_ray.protocol import GradientTensor


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds as a straight line in the batch of one GPU."""

    fixed_s: float
    per_sample_s: float

    def at(self, batch: int) -> float:
        """Returns the seconds at a batch."""
        return self.fixed_s + self.per_sample_s * batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """One model on one kind of GPU.

    Attributes:
        prefix: the frozen part of a micro-batch.
        head: forward and backward of the rest.
        backward_frac: share of the head's time that is backward.
        update_s: clip and optimizer.
        gap_s: idle time of a captured step.
        update_gap_s: launch gaps of an update that is not captured.
        host_s: what the host takes to launch an eager step.
        host_bucket_s: host time of each bucket that is issued inside an eager backward.
        bf16_bytes: that the update moves for a parameter beyond what it does with fp32 on the
            wire: casts to bf16 and back, or less where gradients are copied as bf16 at once.
        eager_frac: device time of a step that is not captured, over a captured one's.
        load_s_per_sample: what one loader process takes for a sample; 0: batches are at hand.
        gradients: what is sent, in ready order.
    """

    prefix: Line
    head: Line
    backward_frac: float
    update_s: float
    gap_s: float
    update_gap_s: float
    host_s: float
    host_bucket_s: float
    load_s_per_sample: float
    gradients: tuple[GradientTensor, ...]
    bf16_bytes: float = 12.0
    eager_frac: float = 1.0

    @property
    def num_elements(self) -> int:
        """Returns the trainable parameters."""
        return sum(item.num_elements for item in self.gradients)


def transformer_gradients(
    num_blocks: int, width: int, hidden: int, *, norm_width: int, tail: tuple[int, ...] = ()
) -> tuple[GradientTensor, ...]:
    """Returns the gradients of a DiT in ready order, last block first, then those of `tail`.

    Args:
        num_blocks: transformer blocks.
        width: of the residual stream.
        hidden: of the MLP.
        norm_width: inputs of the adaptive norm's projection.
        tail: elements of further layers, one tensor each quarter.
    """
    shapes = {
        "mlp.down": width * hidden,
        "mlp.down.bias": width,
        "mlp.up": width * hidden,
        "mlp.up.bias": hidden,
        **{f"attention.{part}": width * width for part in ("out", "value", "key", "query")},
        **{f"attention.{part}.bias": width for part in ("out", "value", "key", "query")},
        "norm": norm_width * width * 2,
        "norm.bias": width * 2,
    }
    blocks = [
        GradientTensor(
            name=f"block{block:02d}.{part}", num_elements=size, layer=f"block{block:02d}"
        )
        for block in reversed(range(num_blocks))
        for part, size in shapes.items()
    ]
    rest = [
        GradientTensor(name=f"tail{index}.{part}", num_elements=size // 4, layer=f"tail{index}")
        for index, size in enumerate(tail)
        for part in range(4)
    ]
    return (*blocks, *rest)


def stand_in() -> Workload:
    """Returns the probe's stand-in: 1.09 B trainable, measured at batch 16, 32 and 64."""
    return Workload(
        prefix=Line(0.0, 34.9e-3 / 32),
        head=Line(17.1e-3, 0.695e-3),
        backward_frac=26.9 / 39.7,
        update_s=12.3e-3,
        gap_s=0.7e-3,
        update_gap_s=0.1e-3,
        host_s=119e-3,
        host_bucket_s=0.3e-3,
        load_s_per_sample=0.0,
        gradients=transformer_gradients(32, 1536, 6144, norm_width=1536, tail=(22_000_000,)),
    )


def real_shapes() -> Workload:
    """Returns our own step of the 3B model: 1.30 B trainable with one embodiment slot.

    Fitted to its phases on one H200 at batch 16 and to its steps without communication at 16, 32,
    64 and 128 (bf16 and fp32; S 220, 224 px; docs/log.md). Eager steps, which the host holds up,
    differ from machine to machine.
    """
    return Workload(
        prefix=Line(0.0, 1.25e-3),
        head=Line(7.0e-3, 1.265e-3),
        backward_frac=0.69,
        update_s=10.9e-3,
        gap_s=0.3e-3,
        update_gap_s=0.5e-3,
        host_s=95e-3,
        host_bucket_s=0.3e-3,
        load_s_per_sample=0.0,
        gradients=transformer_gradients(
            32, 1536, 6144, norm_width=1536, tail=(33_000_000,) + (50_300_000,) * 4
        ),
        # It reads 2 x 2 bytes less.
        bf16_bytes=-4.0,
        eager_frac=1.25,
    )


def article() -> Workload:
    """Returns the article's model on A100: step, shares and slope as it reports them."""
    return Workload(
        prefix=Line(0.0, 3.1e-3),
        head=Line(0.447, 7.1e-3),
        backward_frac=0.89,
        update_s=0.2,
        gap_s=4e-3,
        update_gap_s=5e-3,
        host_s=1.56,
        host_bucket_s=0.3e-3,
        load_s_per_sample=2.34e-3,
        gradients=transformer_gradients(48, 2048, 8192, norm_width=2048, tail=(50_000_000,) * 3),
    )
