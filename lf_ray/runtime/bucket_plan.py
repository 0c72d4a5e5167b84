"""Which gradients are sent together, and how many of those messages leave during backward.

Pure and without torch, so that search can tell beforehand which suggestions come to the same plan.
A plan follows from the gradients in ready order, the bucket size and the dtype on the wire; the
overlap ratio only says how many of its leading buckets are issued while backward still runs.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from lf_ray.errors import ConfigError, four_parts
from lf_ray.protocol import GradientTensor

MIB = 2**20
WIRE_BYTES = {"fp32": 4, "bf16": 2}

# Every tensor starts on a multiple of this many elements of the flat buffers: 64 bytes of bf16,
# enough for vector loads and for the fast matrix kernels that read weights from such views.
ALIGN_ELEMENTS = 32


def padded_elements(num_elements: int) -> int:
    """Returns the elements that a tensor takes in the flat buffers, its padding included."""
    return -(-num_elements // ALIGN_ELEMENTS) * ALIGN_ELEMENTS


@dataclass(frozen=True, slots=True)
class Bucket:
    """One message: neighbouring tensors of the flat gradient buffer.

    Attributes:
        names: its tensors in ready order.
        num_bytes: as sent, padding included.
        first: first element of the flat buffer.
        last: one past the last element.
    """

    names: tuple[str, ...]
    num_bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """All messages of a step, in the order in which they are sent.

    Attributes:
        split_layers: layers that are larger than a bucket and were therefore split (between
            tensors, never inside one).
    """

    buckets: tuple[Bucket, ...]
    comm_dtype: str
    split_layers: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Returns the bytes that one step sends."""
        return sum(bucket.num_bytes for bucket in self.buckets)

    @property
    def num_elements(self) -> int:
        """Returns the length of the flat buffers that the plan speaks of."""
        return self.buckets[-1].last if self.buckets else 0

    def signature(self, ratio: float) -> str:
        """Returns the same word for every setting that sends the same messages at the same time."""
        bounds = ",".join(str(bucket.last) for bucket in self.buckets)
        leading = issued_during_backward(self, ratio)
        text = f"{self.comm_dtype}:{bounds}:{leading}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def bucket_plan(
    gradients: Sequence[GradientTensor],
    bucket_size_mb: float,
    comm_dtype: str,
    bounds: Sequence[str] | None = None,
) -> BucketPlan:
    """Returns the plan for gradients given in ready order.

    Args:
        gradients: what is sent, in the order in which backward makes it ready.
        bucket_size_mb: MiB as sent. A bucket holds whole neighbouring layers up to this size; only
            a layer that is larger by itself is split, between its tensors.
        comm_dtype: "fp32" or "bf16".
        bounds: names of the last tensor of each bucket, instead of a size.
    """
    if comm_dtype not in WIRE_BYTES:
        raise ConfigError(
            four_parts(
                "planning gradient buckets",
                f"overlap.comm_dtype is one of {', '.join(WIRE_BYTES)}",
                repr(comm_dtype),
                "Use one of them.",
            )
        )
    if bounds is not None:
        return _plan(_cut_at(gradients, bounds), comm_dtype, ())
    if not bucket_size_mb > 0:
        raise ConfigError(
            four_parts(
                "planning gradient buckets",
                "overlap.bucket_size_mb is a size in MiB above 0",
                f"{bucket_size_mb}",
                "Use a power of two, or 25.",
            )
        )
    limit = int(bucket_size_mb * MIB) // WIRE_BYTES[comm_dtype]
    groups, split_layers = _fill(gradients, limit)
    return _plan(groups, comm_dtype, split_layers)


def issued_during_backward(plan: BucketPlan, ratio: float) -> int:
    """Returns how many leading buckets hold the share of bytes nearest to `ratio`.

    Of two equally near counts it is the smaller one: fewer bytes beside backward is the cheaper
    side.
    """
    total = plan.num_bytes
    sent, best, best_gap = 0, 0, abs(ratio)
    for count, bucket in enumerate(plan.buckets, start=1):
        sent += bucket.num_bytes
        gap = abs(sent / total - ratio)
        if gap < best_gap - 1e-12:
            best, best_gap = count, gap
    return best


def share_during_backward(plan: BucketPlan, ratio: float) -> float:
    """Returns the share of bytes that is really issued during backward at `ratio`."""
    leading = plan.buckets[: issued_during_backward(plan, ratio)]
    return sum(bucket.num_bytes for bucket in leading) / plan.num_bytes if leading else 0.0


def own_part(first: int, last: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """Returns the part of elements first .. last - 1 that is a rank's, where each has as much."""
    assert (last - first) % num_ranks == 0, "parts of one length"
    length = (last - first) // num_ranks
    return first + rank * length, first + (rank + 1) * length


def _fill(
    gradients: Sequence[GradientTensor], limit: int
) -> tuple[list[list[GradientTensor]], tuple[str, ...]]:
    groups: list[list[GradientTensor]] = []
    current: list[GradientTensor] = []
    held = 0
    split_layers: list[str] = []
    for layer, run in groupby(gradients, key=lambda gradient: gradient.layer):
        tensors = list(run)
        sizes = [padded_elements(tensor.num_elements) for tensor in tensors]
        fits = sum(sizes) <= limit
        if current and (not fits or held + sum(sizes) > limit):
            groups.append(current)
            current, held = [], 0
        for tensor, size in zip(tensors, sizes):
            if current and held + size > limit:
                groups.append(current)
                current, held = [], 0
                split_layers.append(layer)
            current.append(tensor)
            held += size
    if current:
        groups.append(current)
    return groups, tuple(dict.fromkeys(split_layers))


def _cut_at(
    gradients: Sequence[GradientTensor], bounds: Sequence[str]
) -> list[list[GradientTensor]]:
    places = {gradient.name: index for index, gradient in enumerate(gradients)}
    unknown = [name for name in bounds if name not in places]
    ends = [places[name] for name in bounds if name in places]
    if unknown or ends != sorted(set(ends)) or not ends or ends[-1] != len(gradients) - 1:
        order = ", ".join(gradient.name for gradient in gradients)
        raise ConfigError(
            four_parts(
                "cutting gradient buckets at given bounds",
                "bounds name the last tensor of each bucket, in ready order, and end with the "
                f"last one ({order})",
                ", ".join(bounds) or "none",
                "Name existing tensors in that order.",
            )
        )
    starts = [0, *(end + 1 for end in ends[:-1])]
    return [list(gradients[start : end + 1]) for start, end in zip(starts, ends)]


def _plan(
    groups: Sequence[Sequence[GradientTensor]], comm_dtype: str, split_layers: tuple[str, ...]
) -> BucketPlan:
    buckets = []
    first = 0
    for group in groups:
        length = sum(padded_elements(tensor.num_elements) for tensor in group)
        buckets.append(
            Bucket(
                names=tuple(tensor.name for tensor in group),
                num_bytes=length * WIRE_BYTES[comm_dtype],
                first=first,
                last=first + length,
            )
        )
        first += length
    return BucketPlan(buckets=tuple(buckets), comm_dtype=comm_dtype, split_layers=split_layers)
