"""Goodput: throughput times what a sample is worth in its batch (Pollux, Qiao et al. 2021).

Pure. One noise scale for the whole sweep, pooled over the visits that measured it; efficiency is
relative to the baseline's batch, so that goodput is in the baseline's samples a second.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lf_ray.analysis.gain import gain_over
from lf_ray.analysis.points import Point, eligible
from lf_ray.measure.gradient_noise import (
    efficiency_interval,
    noise_of,
    noise_scale,
    pooled_noise,
)
from lf_ray.protocol import Interval, TrialRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Worth:
    """What a point achieves for learning.

    Attributes:
        efficiency: what its samples are worth, against the baseline's.
        goodput: throughput times efficiency, in the baseline's samples a second.
        gain: goodput over the baseline's throughput.
    """

    point: Point
    efficiency: Interval
    goodput: Interval
    gain: Interval


def noise_scale_of(records: Iterable[TrialRecord]) -> Interval | None:
    """Returns the noise scale in samples, pooled over records; None where none measured it."""
    parts = [noise for record in records if (noise := noise_of(record.metrics)) is not None]
    pooled = pooled_noise(parts)
    return noise_scale(pooled, len(parts)) if pooled else None


def worths(points: Sequence[Point], baseline: Point, scale: Interval) -> tuple[Worth, ...]:
    """Returns every measured, gated point with its goodput, best first."""
    base = baseline.samples_per_step
    assert baseline.throughput is not None
    found = []
    for point in eligible(points):
        assert point.throughput is not None
        worth = efficiency_interval(scale, point.samples_per_step, base)
        gain = gain_over(baseline, point)
        found.append(
            Worth(
                point=point,
                efficiency=worth,
                goodput=product(point.throughput, worth),
                gain=product(gain, worth),
            )
        )
    return tuple(sorted(found, key=lambda item: -item.goodput.value))


def best_worth(found: Sequence[Worth], baseline: Point) -> Worth | None:
    """Returns the point with the highest goodput, the baseline where none is certainly better."""
    own = next((item for item in found if item.point.id == baseline.id), None)
    best = found[0] if found else None
    if best is None or best.gain.lo <= 1:
        return own
    return best


def product(one: Interval, other: Interval) -> Interval:
    """Returns the product of two independent numbers; their relative errors add in quadrature."""
    value = one.value * other.value
    below = math.hypot(_log(one.value, one.lo), _log(other.value, other.lo))
    above = math.hypot(_log(one.hi, one.value), _log(other.hi, other.value))
    return Interval(
        value=value,
        lo=value * math.exp(-below),
        hi=value * math.exp(above) if above < 700 else math.inf,
        num_steps=one.num_steps,
        num_visits=one.num_visits,
    )


def _log(above: float, below: float) -> float:
    return math.log(above / below) if below > 0 and math.isfinite(above) else math.inf
