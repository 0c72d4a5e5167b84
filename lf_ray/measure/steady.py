"""Where the warm-up of a visit ends, found in the data and not assumed.

A fixed number of skipped steps is wrong as soon as a capture, a compilation or a cold cache takes
another number of steps. So: slow steps at the very front and one-off steps near it (a capture) are
cut; then the front is cut wherever the level changes; what remains must be level. Single spikes
later on stay in, because a long training run meets them too. An eager step that waits for a busy
host has no level at all but wanders; a long stretch that does not fall is read whole, with the wide
interval that its batch means give.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lf_ray.measure.noise import Level, Series, inflation, lag_correlation, level_of
from lf_ray.measure.quantiles import t_quantile

MIN_STEADY_STEPS = 8
_OUTLIER_SCALES = 8.0
_CLIP_SCALES = 4.0
_ONE_OFF_ZONE = 10
_ONE_OFF_FRAC = 1.0
_MAX_PHI = 0.5
"""What a curved fall leaves about a straight line looks like memory; real memory is shorter."""
_FALSE_CUT_PROB = 0.005
_FALSE_TREND_PROB = 0.002
_FALSE_TREND_PROB_AFTER_CUT = 0.05
"""A series whose level was seen to move is more likely to move still."""
_WANDER_BATCHES, _WANDER_BATCH_STEPS = 10, 8
_FALL_PROB = 0.025
_RAMP_R2 = 0.7
"""Share of the batch means' variance that a straight line explains where the level ramps."""
_LEVEL_PER_MOVING = 2
"""Level steps asked for each step on a moving level: the tail of a fall looks level when short."""


@dataclass(frozen=True, slots=True)
class Steady:
    """The steady part of a visit.

    Attributes:
        first: index of its first step; the number of steps where none is steady.
        settled: the steps from `first` on are level.
        reason: one line, in words.
    """

    first: int
    settled: bool
    reason: str


def steady_state(
    step_s: Sequence[float] | Series,
    tolerance_frac: float = 0.01,
    min_steps: int = MIN_STEADY_STEPS,
) -> Steady:
    """Returns where the warm-up ends, or why it can't be told.

    Args:
        step_s: all steps of the visit so far, the first one included.
        tolerance_frac: a significant trend that moves the level by less than this share over the
            steady part is let pass.
        min_steps: steady steps without which nothing is said.
    """
    steps_s = np.asarray(step_s, dtype=np.float64)
    num_steps = steps_s.size
    if num_steps < min_steps:
        return Steady(num_steps, False, f"{num_steps} steps: at least {min_steps} are needed")
    level = level_of(steps_s[num_steps // 2 :])
    first = _after_one_offs(steps_s, level)
    num_one_off = first
    clipped_s = _without_spikes(steps_s, level)
    while num_steps - first >= min_steps:
        cut = _change_point(clipped_s[first:])
        if cut == 0:
            break
        first += cut
    moving = _moving(clipped_s, first, num_one_off, tolerance_frac, min_steps)
    if not moving:
        return Steady(first, True, f"level from step {first} of {num_steps}")
    if _wanders(clipped_s[num_one_off:]):
        return Steady(num_one_off, True, f"wanders, from step {num_one_off} of {num_steps}")
    return Steady(num_steps, False, moving)


def _moving(
    clipped_s: Series, first: int, num_one_off: int, tolerance_frac: float, min_steps: int
) -> str:
    """Returns in words how the steps from `first` on still move, empty where they are level."""
    num_steps = clipped_s.size
    if num_steps - first < max(min_steps, _LEVEL_PER_MOVING * (first - num_one_off)):
        return f"still warming up: no level stretch in {num_steps} steps"
    prob = _FALSE_TREND_PROB if first == num_one_off else _FALSE_TREND_PROB_AFTER_CUT
    moved_frac = _trend_frac(clipped_s[first:], prob)
    if abs(moved_frac) > tolerance_frac:
        return f"still moving: {moved_frac:+.1%} over {num_steps - first} steps"
    return ""


def _wanders(steps_s: Series) -> bool:
    """Returns whether a long series moves about without falling and without a ramp.

    A warm-up falls; a ramp is a straight line. Told by the means of ten batches, which are long
    enough to forget each other.
    """
    num_batches = _WANDER_BATCHES
    if steps_s.size < num_batches * _WANDER_BATCH_STEPS:
        return False
    means_s = np.array([part.mean() for part in np.array_split(steps_s, num_batches)])
    at = np.arange(num_batches) - (num_batches - 1) / 2
    centred_s = means_s - means_s.mean()
    total = float(centred_s @ centred_s)
    slope = float(at @ centred_s)
    r2 = slope**2 / (float(at @ at) * total) if total > 0 else 0.0
    df = num_batches - 2
    falls = slope < 0 and df * r2 > t_quantile(1 - _FALL_PROB, df) ** 2 * (1 - r2)
    return not falls and r2 < _RAMP_R2


def _after_one_offs(steps_s: Series, level: Level) -> int:
    """Returns the index after the slow front and after one-off steps (a capture) near it."""
    half = steps_s.size // 2
    far = np.abs(steps_s - level.step_s) > _OUTLIER_SCALES * level.scale_s
    first = int(np.argmin(far[: half + 1])) if not far[: half + 1].all() else half
    zone = range(first, min(first + _ONE_OFF_ZONE, half))
    excess_s = steps_s - level.step_s
    for index in reversed(zone):
        is_large = far[index] and excess_s[index] > _ONE_OFF_FRAC * level.step_s
        if is_large and excess_s[max(index + 1, zone.stop) :].max() < excess_s[index] / 2:
            return index + 1
    return first


def _without_spikes(steps_s: Series, level: Level) -> Series:
    reach_s = _CLIP_SCALES * level.scale_s
    return np.clip(steps_s, level.step_s - reach_s, level.step_s + reach_s)


def _change_point(steps_s: Series) -> int:
    """Returns how many steps at the front lie on another level, 0 where none do."""
    num_steps = steps_s.size
    left = np.arange(1, num_steps // 2 + 1)
    right = num_steps - left
    sums_s = np.cumsum(steps_s)
    left_mean_s = sums_s[left - 1] / left
    right_mean_s = (sums_s[-1] - sums_s[left - 1]) / right
    gap_s = left_mean_s - right_mean_s
    best = int(np.argmax(gap_s**2 * left * right))
    cut = int(left[best])
    residuals_s = steps_s - np.where(
        np.arange(num_steps) < cut, left_mean_s[best], right_mean_s[best]
    )
    phi = min(_MAX_PHI, lag_correlation(residuals_s, num_fitted=2))
    sd_s = np.sqrt(residuals_s @ residuals_s / (num_steps - 2))
    error_s = sd_s * np.sqrt(
        inflation(phi, cut) / cut + inflation(phi, num_steps - cut) / (num_steps - cut)
    )
    limit = t_quantile(1 - _FALSE_CUT_PROB / num_steps, num_steps - 2)
    return cut if abs(gap_s[best]) > limit * error_s else 0


def _trend_frac(steps_s: Series, false_prob: float) -> float:
    """Returns by what share a significant trend moves the level over the series, else 0."""
    num_steps = steps_s.size
    at = np.arange(num_steps) - (num_steps - 1) / 2
    mean_s = float(steps_s.mean())
    slope_s = float(at @ steps_s) / float(at @ at)
    residuals_s = steps_s - mean_s - slope_s * at
    phi = min(_MAX_PHI, lag_correlation(residuals_s, num_fitted=2))
    variance = float(residuals_s @ residuals_s) / (num_steps - 2)
    error_s = np.sqrt(variance * inflation(phi, num_steps) / float(at @ at))
    limit = t_quantile(1 - false_prob / 2, num_steps - 2)
    return slope_s * (num_steps - 1) / mean_s if abs(slope_s) > limit * error_s else 0.0
