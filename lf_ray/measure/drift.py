"""Whether the machine itself became faster or slower during a sweep, from re-visited baselines."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lf_ray.measure.interval import ASSUMED_BETWEEN_FRAC, pooled
from lf_ray.measure.quantiles import Z_95
from lf_ray.protocol import Interval

FLAG_FRAC = 0.03
"""A baseline that moves by more than this share is shown as a warning."""
_MIN_SCORE = 3.0
_FEW_VISITS = 3
_LARGE_FRAC = 0.08
_MIN_SMOOTH_SCORE = 1.65
_MIN_JUMP_SCATTERS = 12.0
_MIN_REPEATS = 2
_MIN_OTHER_REPEATS = 3
_MUCH_WORSE = 2.0
"""A variance ratio: visits of one setting that part this much by a correction did not drift."""
_ASSUMED_DF = 2
"""Repeats that the assumed scatter within a start of the workers counts for."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Step time of the baseline over the sweep, as factors of its mean.

    Attributes:
        at_s: dates of the baseline visits, rising.
        factors: step time there over the mean; all 1 where no drift was found.
        errors_frac: standard error of each factor; 0 where no drift was found.
        range_frac: how far the slowest baseline visit lies above the fastest, drift or not.
        found: the visits differ by more than their intervals allow, and do so with time.
        reason: one line, in words.
        borders_s: dates at which the workers were started anew: what lies between two of them is
            compared with the baselines there, as long as there is one.
        alone: the baseline moved, but what else was visited again did not: nothing is taken out.
        starts_frac: standard deviation between starts; 0 where none was found. Then the factors
            are levels of starts, and a start without a baseline is taken at the mean.
    """

    at_s: tuple[float, ...]
    factors: tuple[float, ...]
    errors_frac: tuple[float, ...]
    range_frac: float
    found: bool
    reason: str
    borders_s: tuple[float, ...] = ()
    starts_frac: float = 0.0
    alone: bool = False

    @property
    def flagged(self) -> bool:
        """Returns whether the baseline moved enough for a warning, whatever the cause."""
        return self.range_frac > FLAG_FRAC

    def factor(self, at_s: float) -> float:
        """Returns step time then over the mean, between visits of a start by straight lines."""
        return self._read(at_s, self.factors, 1.0)

    def _read(self, at_s: float, values: Sequence[float], unseen: float) -> float:
        start = bisect_right(self.borders_s, at_s)
        places = range(len(self.at_s))
        own = [i for i in places if bisect_right(self.borders_s, self.at_s[i]) == start]
        if not own and self.starts_frac:
            return unseen
        own = own or list(places)
        return float(np.interp(at_s, [self.at_s[i] for i in own], [values[i] for i in own]))

    def corrected(self, step_s: Interval, at_s: float) -> Interval:
        """Returns a visit's step time as it would have been at the sweep's mean speed."""
        if not self.found:
            return step_s
        factor = self.factor(at_s)
        reach = Z_95 * self._read(at_s, self.errors_frac, 0.0) * step_s.value
        return Interval(
            value=step_s.value / factor,
            lo=(step_s.value - math.hypot(step_s.value - step_s.lo, reach)) / factor,
            hi=(step_s.value + math.hypot(step_s.hi - step_s.value, reach)) / factor,
            num_steps=step_s.num_steps,
            num_visits=step_s.num_visits,
        )


def drift_of(
    baselines: Sequence[tuple[float, Interval]],
    between_frac: float = ASSUMED_BETWEEN_FRAC,
    borders_s: Sequence[float] = (),
) -> Drift:
    """Returns the drift that re-visited baselines show.

    Visits that differ need not mean drift: eager baselines scatter by per cents from visit to
    visit. Drift is what later visits share with earlier ones, so it is called only where
    neighbours in time are clearly more alike than visits at large. Likewise with starts of the
    workers: they differ where visits of one are clearly more alike than visits of all.

    Args:
        baselines: date and single-visit step time of each baseline visit, at least one.
        between_frac: the least that visits differ by without drift. When estimated from these same
            baselines it holds the drift already; then pass the assumed one.
        borders_s: dates at which the workers were started anew, rising.
    """
    ordered = sorted(baselines, key=lambda item: item[0])
    at_s = tuple(date for date, _ in ordered)
    values = np.array([visit.value for _, visit in ordered])
    pools = [pooled([visit], between_frac) for _, visit in ordered]
    errors = np.array([(pool.hi - pool.lo) / 2 / Z_95 / pool.value for pool in pools])
    weights = 1 / errors**2
    mean = float(weights @ values / weights.sum())
    deviations = values / mean - 1
    range_frac = float(values.max() / values.min() - 1)
    if len(ordered) < 2:
        return _still(at_s, range_frac, "one baseline visit: drift can't be seen")
    levels = _levels(at_s, deviations, errors, tuple(borders_s), range_frac)
    if levels is not None:
        return levels
    score = float((deviations**2 * weights).sum())
    if _normal_score(score, len(ordered) - 1) < _MIN_SCORE:
        return _still(at_s, range_frac, "no drift seen")
    if not _goes_with_time(deviations):
        reason = f"the baseline scatters by {range_frac:.1%}, but not with time: no drift taken out"
        return _still(at_s, range_frac, reason)
    scatter = float(np.median(np.abs(np.diff(deviations)))) / 2
    return Drift(
        at_s,
        tuple(float(value) for value in values / mean),
        tuple(float(max(error, scatter)) for error in errors),
        range_frac,
        True,
        f"the baseline's step moved by {range_frac:.1%} over {len(ordered)} visits",
        tuple(borders_s),
    )


def shared_by(drift: Drift, others: Iterable[Sequence[tuple[float, Interval]]]) -> Drift:
    """Returns the drift where other settings went along, or one that takes nothing out.

    A machine that becomes slower slows all; an eager baseline may also move with its host, which
    a captured step does not feel. Then the correction would make visits of one setting differ
    that were alike. Few repeats prove nothing: the drift stays.

    Args:
        drift: of the baseline.
        others: date and single-visit step time of the visits of each other setting.
    """
    if not drift.found:
        return drift
    before, after, repeats = 0.0, 0.0, 0
    for visits in others:
        values = np.log([visit.value for _, visit in visits])
        factors = np.log([drift.factor(at_s) for at_s, _ in visits])
        before += float(((values - values.mean()) ** 2).sum())
        after += float(((values - factors - (values - factors).mean()) ** 2).sum())
        repeats += len(visits) - 1
    if repeats < _MIN_OTHER_REPEATS or after <= _MUCH_WORSE * before:
        return drift
    reason = (
        f"the baseline's step moved by {drift.range_frac:.1%} over {len(drift.at_s)} visits, those"
        f" of other settings did not ({repeats} repeats)"
    )
    return replace(_still(drift.at_s, drift.range_frac, reason), alone=True)


def _levels(
    at_s: tuple[float, ...],
    deviations: NDArray[np.float64],
    errors: NDArray[np.float64],
    borders_s: tuple[float, ...],
    range_frac: float,
) -> Drift | None:
    """Returns the level of each start, None where starts don't differ beyond chance.

    An analysis of variance: the scatter within starts comes from the visits themselves, because
    an eager baseline scatters more than is assumed, and a little from what is assumed.
    """
    starts = np.searchsorted(borders_s, at_s, side="right")
    names, places, counts = np.unique(starts, return_inverse=True, return_counts=True)
    repeats = deviations.size - names.size
    if names.size < 2 or repeats < _MIN_REPEATS:
        return None
    means = np.bincount(places, deviations) / counts
    rest = deviations - means[places]
    df = repeats + _ASSUMED_DF
    variance = float(rest @ rest + _ASSUMED_DF * (errors**2).mean()) / df
    center = float(deviations.mean())
    apart = float(counts @ (means - center) ** 2) / (names.size - 1)
    if _normal_score_f(apart / variance, names.size - 1, df) < _MIN_SCORE:
        return None
    return Drift(
        at_s,
        tuple(float(level) for level in 1 + means[places]),
        tuple(float(error) for error in np.sqrt(variance / counts)[places]),
        range_frac,
        True,
        f"{names.size} starts of the workers differ by {np.ptp(means):.1%} at the baseline",
        borders_s,
        float(means.std(ddof=1)),
    )


def _still(at_s: tuple[float, ...], range_frac: float, reason: str) -> Drift:
    ones, zeros = (1.0,) * len(at_s), (0.0,) * len(at_s)
    return Drift(at_s, ones, zeros, range_frac, False, reason)


def _goes_with_time(deviations: NDArray[np.float64]) -> bool:
    """Returns whether neighbours in time are more alike than chance has it.

    Either all along (von Neumann's ratio), or but for a few jumps between levels. Two or three
    visits can't show that; of them only a large move in one direction counts.
    """
    num = deviations.size
    steps = np.diff(deviations)
    range_frac = float(np.ptp(deviations))
    if num <= _FEW_VISITS:
        one_way = bool((steps > 0).all() or (steps < 0).all())
        return one_way and range_frac > _LARGE_FRAC
    likeness = float(steps @ steps) / float(((deviations - deviations.mean()) ** 2).sum())
    if (2 - likeness) / math.sqrt(4 * (num - 2) / (num**2 - 1)) > _MIN_SMOOTH_SCORE:
        return True
    typical = float(np.median(np.abs(steps))) / (0.6745 * math.sqrt(2))
    return range_frac > _MIN_JUMP_SCATTERS * typical


def _normal_score(chi_square: float, df: int) -> float:
    """Returns the normal deviate of a chi-square value (Wilson-Hilferty)."""
    scale = 2 / (9 * df)
    return float(((chi_square / df) ** (1 / 3) - (1 - scale)) / math.sqrt(scale))


def _normal_score_f(ratio: float, above: int, below: int) -> float:
    """Returns the normal deviate of a ratio of two mean squares (Paulson)."""
    scale, other = 2 / (9 * above), 2 / (9 * below)
    root = math.cbrt(ratio)
    return ((1 - other) * root - (1 - scale)) / math.sqrt(other * root**2 + scale)
