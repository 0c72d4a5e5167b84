"""The Pareto frontier of throughput, memory and loss at equal samples, with uncertainty.

Pure. A point leaves the frontier only where another one is at least as good in everything and
better, beyond noise, in something.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lf_ray.analysis.gain import peak_bytes
from lf_ray.analysis.points import Point, eligible
from lf_ray.protocol import Interval

_MEMORY_NOISE_FRAC = 0.01
_LOSS_WINDOW_FRAC = 0.1
_MIN_WINDOW_STEPS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """A point's three objectives, and whether anything beats it.

    Attributes:
        loss: mean over the last tenth of the samples that all points have seen.
        loss_error: its standard error.
        beaten_by: ids of the points that are certainly better; empty on the frontier.
    """

    point: Point
    throughput: Interval
    peak_bytes: float | None
    loss: float | None
    loss_error: float
    beaten_by: tuple[str, ...] = ()


def frontier(points: Sequence[Point]) -> list[Standing]:
    """Returns the measured, gated points with what beats them, fastest first."""
    candidates = eligible(points)
    num_samples = shared_samples(candidates)
    standings = [_standing(point, num_samples) for point in candidates]
    judged = [
        Standing(
            point=own.point,
            throughput=own.throughput,
            peak_bytes=own.peak_bytes,
            loss=own.loss,
            loss_error=own.loss_error,
            beaten_by=tuple(other.point.id for other in standings if _beats(other, own)),
        )
        for own in standings
    ]
    return sorted(judged, key=lambda item: -item.throughput.value)


def shared_samples(points: Sequence[Point]) -> int:
    """Returns the samples that every point has trained on in its longest visit."""
    seen = [
        max((len(r.trace.loss) * r.samples_per_step for r in point.records if r.trace), default=0)
        for point in points
    ]
    return min(seen, default=0)


def loss_at(point: Point, num_samples: int) -> tuple[float, float] | None:
    """Returns mean loss over the last tenth of `num_samples`, and its standard error."""
    for record in point.records:
        if not record.trace or len(record.trace.loss) * record.samples_per_step < num_samples:
            continue
        end = num_samples // record.samples_per_step
        window = max(_MIN_WINDOW_STEPS, round(end * _LOSS_WINDOW_FRAC))
        values = np.array(record.trace.loss[max(0, end - window) : end])
        values = values[np.isfinite(values)]
        if values.size > 1:  # one loss has no error that could be told
            return float(values.mean()), float(values.std(ddof=1)) / values.size**0.5
    return None


def _standing(point: Point, num_samples: int) -> Standing:
    assert point.throughput is not None
    loss = loss_at(point, num_samples) if num_samples else None
    return Standing(
        point=point,
        throughput=point.throughput,
        peak_bytes=peak_bytes(point),
        loss=loss[0] if loss else None,
        loss_error=loss[1] if loss else 0.0,
    )


def _beats(one: Standing, other: Standing) -> bool:
    if one.point.id == other.point.id:
        return False
    verdicts = (
        _faster(one, other),
        _smaller(one.peak_bytes, other.peak_bytes, _MEMORY_NOISE_FRAC * (other.peak_bytes or 0)),
        _smaller(one.loss, other.loss, 2 * (one.loss_error**2 + other.loss_error**2) ** 0.5),
    )
    return min(verdicts) >= 0 and max(verdicts) > 0


def _faster(one: Standing, other: Standing) -> int:
    """Returns 1 certainly faster, 0 no difference beyond noise, -1 certainly slower."""
    if one.throughput.lo > other.throughput.hi:
        return 1
    return -1 if one.throughput.hi < other.throughput.lo else 0


def _smaller(one: float | None, other: float | None, noise: float) -> int:
    if one is None or other is None or abs(one - other) <= noise:
        return 0
    return 1 if one < other else -1
