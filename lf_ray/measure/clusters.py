"""Ratios of sums over parts that are alike within: waits by runs of steps, errors by episode.

Pure. Neighbouring steps, and samples of one episode, resemble each other, so that the number of
parts says how sure a ratio is, not the number of single values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lf_ray.measure.quantiles import t_quantile


@dataclass(frozen=True, kw_only=True, slots=True)
class PartRatio:
    """A ratio of sums with its 95 % interval.

    Attributes:
        lo: and hi, the ends; None where a single part says nothing of others.
        num_parts: that it rests on.
    """

    value: float
    lo: float | None
    hi: float | None
    num_parts: int


def part_ratio(sums: Sequence[float], sizes: Sequence[float]) -> PartRatio | None:
    """Returns sum over size of all parts; None where they have no size.

    The error is that of a ratio of means (Cochran, Sampling Techniques, 3rd ed., 6.4), with
    Student's t. Sums are not negative, so neither is `lo`.

    Args:
        sums: of each part.
        sizes: of each part, in the same order.
    """
    count, whole = len(sizes), math.fsum(sizes)
    if whole <= 0:
        return None
    value = math.fsum(sums) / whole
    if count < 2:
        return PartRatio(value=value, lo=None, hi=None, num_parts=count)
    squares = math.fsum((one - value * size) ** 2 for one, size in zip(sums, sizes, strict=True))
    error = math.sqrt(count / (count - 1) * squares) / whole
    reach = t_quantile(0.975, count - 1) * error
    return PartRatio(value=value, lo=max(0.0, value - reach), hi=value + reach, num_parts=count)
