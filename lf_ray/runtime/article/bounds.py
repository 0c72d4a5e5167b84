"""Buckets that a user cuts by hand, or sizes differently for the action head.

Pure: names in, names out. Layer order is the order in which the model names its parameters.
"""

from collections.abc import Sequence
from itertools import groupby

from lf_ray.errors import ConfigError, four_parts, nearest
from lf_ray.protocol import GradientTensor
from lf_ray.runtime.bucket_plan import bucket_plan

Bounds = Sequence[str | Sequence[str] | tuple[int, int]]


def hand_cut(names: Sequence[str], layers: Sequence[str], bounds: Bounds) -> list[list[str]]:
    """Returns the parameters of each bucket, in layer order.

    Args:
        names: all parameters that learn, in layer order.
        layers: the layer of each of them.
        bounds: one item a bucket: the names of its layers or parameters; or the name of its last
            one; or the (first, one past the last) of its layers by number.

    Raises:
        ConfigError: a bucket is not contiguous in layer order, or a parameter is in none or two.
    """
    order = list(dict.fromkeys(layers))
    buckets: list[list[str]] = []
    for bound in bounds:
        if isinstance(bound, str):
            last = _places(bound, names, layers)[-1]
            taken = sum(len(bucket) for bucket in buckets)
            buckets.append(list(names[taken : last + 1]))
        elif len(bound) == 2 and all(isinstance(item, int) for item in bound):
            chosen = order[int(bound[0]) : int(bound[1])]
            buckets.append([name for name, layer in zip(names, layers) if layer in chosen])
        else:
            places = [place for item in bound for place in _places(str(item), names, layers)]
            buckets.append([names[place] for place in places])
    if [name for bucket in buckets for name in bucket] != list(names) or not all(buckets):
        raise ConfigError(
            four_parts(
                "cutting gradient buckets at bucket_bounds",
                "buckets are contiguous in layer order, hold every parameter that learns and "
                f"share none; the layers are {', '.join(order)}",
                str(list(bounds)),
                "List neighbouring layers, first to last.",
            )
        )
    return buckets


def head_cut(
    gradients: Sequence[GradientTensor],
    bucket_size_mb: float,
    head_bucket_size_mb: float,
    comm_dtype: str,
) -> list[str]:
    """Returns the last tensor of each bucket where the head's buckets have their own size.

    Args:
        gradients: in ready order.
        bucket_size_mb: for everything but the head.
        head_bucket_size_mb: for parameters below a module whose name ends in "head".
        comm_dtype: sizes are as sent.
    """

    def in_head(gradient: GradientTensor) -> bool:
        return any(part.endswith("head") for part in gradient.name.split(".")[:-1])

    if not any(in_head(gradient) for gradient in gradients):
        raise ConfigError(
            four_parts(
                "sizing the head's gradient buckets",
                "some module's name ends in head",
                ", ".join(dict.fromkeys(gradient.layer for gradient in gradients)),
                "Leave head_bucket_size_mb out, or cut by hand with bucket_bounds.",
            )
        )
    ends = []
    for is_head, run in groupby(gradients, key=in_head):
        size_mb = head_bucket_size_mb if is_head else bucket_size_mb
        plan = bucket_plan(list(run), size_mb, comm_dtype)
        ends += [bucket.names[-1] for bucket in plan.buckets]
    return ends


def _places(wanted: str, names: Sequence[str], layers: Sequence[str]) -> list[int]:
    places = [
        place
        for place, (name, layer) in enumerate(zip(names, layers))
        if wanted in (name, layer) or name.startswith(f"{wanted}.")
    ]
    if not places:
        raise ConfigError(
            four_parts(
                "cutting gradient buckets at bucket_bounds",
                "bounds name layers or parameters of the model",
                repr(wanted),
                f"The nearest are {nearest(wanted, {*names, *layers})}.",
            )
        )
    return places
