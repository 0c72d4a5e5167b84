"""Means with honest intervals: of one visit, of several, of the ratio of two points.

A visit's mean is the long-run mean of its steady steps, spikes included. Its interval combines
batch means of the plain steps (neighbouring steps resemble each other) with a count of the spikes
(few and large, so no normal law holds for them). More steps shrink only this *within* part.
Visits of one point differ by more than that, because a re-capture or a restart lands differently;
`pooled` adds this *between* part.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lf_ray.measure.noise import Series, inflation, lag_correlation, level_of
from lf_ray.measure.quantiles import Z_95, poisson_bounds, t_quantile
from lf_ray.protocol import Interval

ASSUMED_BETWEEN_FRAC = 0.003
"""Between-visit sd assumed while nothing was visited twice (seen: re-captures 0.2 %, hosts 1 %)."""
MIN_STEPS = 8
_MAX_BATCHES = 10
_MIN_BATCH_STEPS = 4
_LONGEST_SCORE = 1.5
_SPIKE_SCALES = 6.0
_SPIKE_FRAC = 0.02
_SPIKE_SPREAD = 0.4
"""Assumed relative spread of spike sizes, weighed as one more spike."""


@dataclass(frozen=True, slots=True)
class VisitMean:
    """The mean of a visit's steady steps and its two one-sided standard errors.

    Attributes:
        smooth_s: a cautious second reading of the error, from scale and memory of the single
            steps, which is far steadier from look to look than batch means.
        fastest_s: the fastest step, below which no mean can lie.
    """

    step_s: float
    below_s: float
    above_s: float
    df: float
    num_steps: int
    smooth_s: float
    fastest_s: float

    def interval(self, between_frac: float = 0.0, prob: float = 0.975) -> Interval:
        """Returns the two-sided interval at 2 x `prob` - 1, with a between-visit part if given."""
        between_s = between_frac * self.step_s
        return Interval(
            value=self.step_s,
            lo=max(
                self.step_s - _reach(self.below_s, between_s, self.df, prob),
                self.fastest_s * (1 - Z_95 * between_frac),
            ),
            hi=self.step_s + _reach(self.above_s, between_s, self.df, prob),
            num_steps=self.num_steps,
            num_visits=1,
        )


def visit_mean(steady_step_s: Sequence[float] | Series) -> VisitMean:
    """Returns the mean of steady steps with its standard errors.

    Raises:
        ValueError: fewer than eight steps, from which no interval follows.
    """
    steps_s = np.asarray(steady_step_s, dtype=np.float64)
    if steps_s.size < MIN_STEPS:
        raise ValueError(f"an interval needs {MIN_STEPS} steady steps, got {steps_s.size}")
    level = level_of(steps_s)
    threshold_s = level.step_s + max(_SPIKE_SCALES * level.scale_s, _SPIKE_FRAC * level.step_s)
    is_spike = steps_s > threshold_s
    plain_s = np.where(is_spike, level.step_s, steps_s)
    phi = lag_correlation(plain_s - plain_s.mean())
    error_s, df = _batch_error(plain_s, phi)
    below_s, above_s = _spike_errors(steps_s[is_spike] - level.step_s, steps_s.size)
    return VisitMean(
        step_s=float(steps_s.mean()),
        below_s=math.hypot(error_s, below_s),
        above_s=math.hypot(error_s, above_s),
        df=df,
        num_steps=int(steps_s.size),
        smooth_s=_smooth_error(plain_s, phi),
        fastest_s=float(steps_s.min()),
    )


def visit_interval(steady_step_s: Sequence[float] | Series) -> Interval:
    """Returns the 95 % interval of the mean steady step of one visit, within part only.

    Raises:
        ValueError: fewer than eight steps.
    """
    return visit_mean(steady_step_s).interval()


def visit_error_frac(visit: Interval) -> float:
    """Returns the standard error of a single visit's mean, as a share of it."""
    reach = (visit.hi - visit.lo) / 2 / visit.value
    return reach / t_quantile(0.975, _batch_df(visit.num_steps))


def throughput(step_s: Interval, samples_per_step: float) -> Interval:
    """Returns samples a second from the interval of the step time."""
    return Interval(
        value=samples_per_step / step_s.value,
        lo=samples_per_step / step_s.hi,
        hi=samples_per_step / step_s.lo if step_s.lo > 0 else math.inf,
        num_steps=step_s.num_steps,
        num_visits=step_s.num_visits,
    )


def pooled(visits: Sequence[Interval], between_frac: float = ASSUMED_BETWEEN_FRAC) -> Interval:
    """Returns one interval from a point's visits, within and between part.

    Args:
        visits: single-visit intervals (step time or throughput), at least one.
        between_frac: standard deviation between visits, as `between_visits` gives it.
    """
    values = np.array([visit.value for visit in visits])
    steps = np.array([visit.num_steps for visit in visits], dtype=np.float64)
    dfs = np.array([_batch_df(visit.num_steps) for visit in visits])
    below = np.array(
        [
            (visit.value - visit.lo) / t_quantile(0.975, _batch_df(visit.num_steps))
            for visit in visits
        ]
    )
    above = np.array(
        [
            (visit.hi - visit.value) / t_quantile(0.975, _batch_df(visit.num_steps))
            for visit in visits
        ]
    )
    # Weights from the common noise, not from each visit's own: a visit that happened to meet no
    # spike is both faster and quieter, and would pull the mean down.
    step_variance = float(np.mean((below**2 + above**2) / 2 * steps / values**2))
    weights = 1 / (between_frac**2 + step_variance / steps + 1e-18)
    weights /= weights.sum()
    value = float(weights @ values)
    between_part = between_frac * value * math.sqrt(float(weights @ weights))
    sides = []
    for side in (below, above):
        parts = np.append((weights * side) ** 2, between_part**2)
        free = np.append(dfs, math.inf)
        df = parts.sum() ** 2 / max(float((parts**2 / free).sum()), 1e-300)
        sides.append(math.sqrt(parts.sum()) * t_quantile(0.975, min(max(1.0, round(df, 1)), 1e6)))
    return Interval(
        value=value,
        lo=value - sides[0],
        hi=value + sides[1],
        num_steps=int(steps.sum()),
        num_visits=sum(visit.num_visits for visit in visits),
    )


def widened(interval: Interval, frac: float) -> Interval:
    """Returns the interval with one more independent error, a standard deviation as a share."""
    if not frac:
        return interval
    reach = Z_95 * frac * interval.value
    return Interval(
        value=interval.value,
        lo=interval.value - math.hypot(interval.value - interval.lo, reach),
        hi=interval.value + math.hypot(interval.hi - interval.value, reach),
        num_steps=interval.num_steps,
        num_visits=interval.num_visits,
    )


def start_part(
    between_frac: float, num_starts: int, num_visits: int, starts_frac: float = 0.0
) -> float:
    """Returns what `pooled` leaves out where visits share starts of the workers, as a share.

    It takes visits as independent. Against a point of the same workers that is right, because what
    they share cancels; against one of other workers there are only as many readings as starts.

    `starts_frac` is a standard deviation between starts that was taken out of the readings before,
    so that `between_frac` holds nothing of it.
    """
    frac = max(between_frac, ASSUMED_BETWEEN_FRAC)
    shared = frac**2 * max(0.0, 1 / num_starts - 1 / num_visits)
    return math.sqrt(shared + starts_frac**2 / num_starts)


def ratio(numerator: Interval, denominator: Interval) -> Interval:
    """Returns the interval of the ratio of two pooled numbers.

    Visits of the two that were interleaved (A B B A) share drift, so it cancels in the ratio.
    """
    value = numerator.value / denominator.value
    lo = math.hypot(
        math.log(numerator.value / numerator.lo), math.log(denominator.hi / denominator.value)
    )
    hi = math.hypot(
        math.log(numerator.hi / numerator.value), math.log(denominator.value / denominator.lo)
    )
    return Interval(
        value=value,
        lo=value * math.exp(-lo),
        hi=value * math.exp(hi),
        num_steps=min(numerator.num_steps, denominator.num_steps),
        num_visits=min(numerator.num_visits, denominator.num_visits),
    )


def _num_batches(num_steps: int) -> int:
    return max(4, min(_MAX_BATCHES, num_steps // _MIN_BATCH_STEPS))


def _batch_df(num_steps: int) -> float:
    return float(_num_batches(num_steps) - 1)


def _batch_error(plain_s: Series, phi: float) -> tuple[float, float]:
    """Returns the standard error of the mean by batch means, and its degrees of freedom."""
    num_steps = plain_s.size
    num_batches = _num_batches(num_steps)
    size = num_steps // num_batches
    means_s = plain_s[num_steps - num_batches * size :].reshape(num_batches, size).mean(axis=1)
    whole = inflation(phi, num_steps) / num_steps
    # Short batches still resemble their neighbours: expected share of the variance they show.
    shown = (inflation(phi, size) / size - whole) * num_batches / (num_batches - 1)
    variance = float(means_s.var(ddof=1)) * whole / shown
    return math.sqrt(variance), float(num_batches - 1)


def _smooth_error(plain_s: Series, phi: float) -> float:
    """Returns the standard error of the mean with the longest memory that is likely."""
    num_steps = plain_s.size
    longest = min(0.9, phi + _LONGEST_SCORE * math.sqrt((1 - phi**2) / num_steps))
    return float(plain_s.std()) * math.sqrt(inflation(longest, num_steps) / num_steps)


def _spike_errors(excess_s: Series, num_steps: int) -> tuple[float, float]:
    """Returns the errors that the spikes add below and above the mean, as standard errors."""
    count = excess_s.size
    if count == 0:
        return 0.0, 0.0
    mean_s = float(excess_s.mean())
    spread = (float(excess_s.var()) * count / mean_s**2 + _SPIKE_SPREAD**2) / count
    low, high = poisson_bounds(count)
    scale_s = mean_s * math.sqrt(1 + spread) / num_steps / Z_95
    return (count - low) * scale_s, (high - count) * scale_s


def _reach(error_s: float, between_s: float, df: float, prob: float) -> float:
    total = error_s**2 + between_s**2
    if total <= 0:
        return 0.0
    effective = df * (total / max(error_s**2, 1e-300)) ** 2
    return math.sqrt(total) * t_quantile(prob, round(min(effective, 1e6), 1))
