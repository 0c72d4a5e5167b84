"""Whether the machine itself became faster or slower during a sweep, from re-visited baselines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lf_ray.measure.interval import ASSUMED_BETWEEN, Between, pooled
from lf_ray.measure.quantiles import Z_95
from lf_ray.protocol import Interval

FLAG_FRAC = 0.03
"""Drift above this share is shown as a warning."""
_MIN_SCORE = 3.0


@dataclass(frozen=True, slots=True)
class Drift:
    """Step time of the baseline over the sweep, as factors of its mean.

    Attributes:
        at_s: dates of the baseline visits, rising.
        factors: step time there over the mean; all 1 where no drift was found.
        errors_frac: standard error of each factor; 0 where no drift was found.
        found: the visits differ by more than their intervals allow.
        reason: one line, in words.
    """

    at_s: tuple[float, ...]
    factors: tuple[float, ...]
    errors_frac: tuple[float, ...]
    found: bool
    reason: str

    @property
    def range_frac(self) -> float:
        """Returns how far the slowest baseline visit lies above the fastest."""
        return max(self.factors) / min(self.factors) - 1

    @property
    def flagged(self) -> bool:
        """Returns whether the drift deserves a warning."""
        return self.found and self.range_frac > FLAG_FRAC

    def factor(self, at_s: float) -> float:
        """Returns step time then over the mean, between visits by straight lines."""
        return float(np.interp(at_s, self.at_s, self.factors))

    def corrected(self, step_s: Interval, at_s: float) -> Interval:
        """Returns a visit's step time as it would have been at the sweep's mean speed."""
        if not self.found:
            return step_s
        factor = self.factor(at_s)
        reach = Z_95 * float(np.interp(at_s, self.at_s, self.errors_frac)) * step_s.value
        return Interval(
            value=step_s.value / factor,
            lo=(step_s.value - math.hypot(step_s.value - step_s.lo, reach)) / factor,
            hi=(step_s.value + math.hypot(step_s.hi - step_s.value, reach)) / factor,
            num_steps=step_s.num_steps,
            num_visits=step_s.num_visits,
        )


def drift_of(
    baselines: Sequence[tuple[float, Interval]], between: Between = ASSUMED_BETWEEN
) -> Drift:
    """Returns the drift that re-visited baselines show.

    Args:
        baselines: date and single-visit step time of each baseline visit, at least one.
        between: what visits differ by without drift. When estimated from these same baselines it
            holds the drift already; then pass the assumed one.
    """
    ordered = sorted(baselines, key=lambda item: item[0])
    at_s = tuple(date for date, _ in ordered)
    values = np.array([visit.value for _, visit in ordered])
    pools = [pooled([visit], between) for _, visit in ordered]
    errors = np.array([(pool.hi - pool.lo) / 2 / Z_95 / pool.value for pool in pools])
    weights = 1 / errors**2
    mean = float(weights @ values / weights.sum())
    deviations = values / mean - 1
    score = float((deviations**2 * weights).sum())
    df = len(ordered) - 1
    if df < 1 or _normal_score(score, df) < _MIN_SCORE:
        still = (1.0,) * len(ordered)
        reason = "no drift seen" if df >= 1 else "one baseline visit: drift can't be seen"
        return Drift(at_s, still, (0.0,) * len(ordered), False, reason)
    factors = tuple(float(value) for value in values / mean)
    return Drift(
        at_s,
        factors,
        tuple(float(error) for error in errors),
        True,
        f"the baseline's step moved by {max(factors) / min(factors) - 1:.1%} over "
        f"{len(ordered)} visits",
    )


def _normal_score(chi_square: float, df: int) -> float:
    """Returns the normal deviate of a chi-square value (Wilson-Hilferty)."""
    scale = 2 / (9 * df)
    return float(((chi_square / df) ** (1 / 3) - (1 - scale)) / math.sqrt(scale))
