"""When a visit may stop: tight enough, certainly beaten, or at its cap. Touches nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lf_ray.measure.interval import ASSUMED_BETWEEN_FRAC, VisitMean, throughput, visit_mean
from lf_ray.measure.noise import Series
from lf_ray.measure.quantiles import Z_95
from lf_ray.measure.steady import MIN_STEADY_STEPS, steady_state
from lf_ray.protocol import Budget

_SLACK = 1.25
"""How far the reported half-width may lie above the target when the smooth reading meets it."""
_BEATEN_PROB = 0.9995
_LEAST_STEPS = MIN_STEADY_STEPS + 4
"""What a reading takes with a short warm-up ahead: a cap in seconds that leaves fewer buys none."""
_MOST_CAPS = 4.0
_FUTILE_FROM = 3
"""Multiples of a visit's least steps from which on its noise is known well enough to give up."""
_FUTILE_TARGETS = 1.5


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a visit stops, by which rule (settled | raced | cap, empty while it goes on)."""

    stop: bool
    rule: str
    reason: str


def tolerance(budget: Budget) -> float:
    """Returns the trend that a visit with this budget lets pass, as a share of the level."""
    return max(0.01, budget.target_frac)


def decide(
    step_s: Sequence[float] | Series,
    budget: Budget,
    samples_per_step: float,
    between_frac: float = ASSUMED_BETWEEN_FRAC,
) -> Decision:
    """Returns whether a visit with these step times so far should stop.

    The target is asked of the within-visit part, which is all that more steps can shrink. A race
    is lost when even the upper end of a 99.9 % interval, between-visit part of both sides
    included, lies more than `delta_frac` below the incumbent; that may be seen from eight steady
    steps on. Where the noise is such that the cap itself would miss the target by far, the visit
    stops early, as at its cap.
    """
    steps_s = np.asarray(step_s, dtype=np.float64)
    steady = steady_state(steps_s, tolerance(budget))
    if steady.settled:
        mean = visit_mean(steps_s[steady.first :])
        if _is_beaten(mean, budget, samples_per_step, between_frac):
            rate = samples_per_step / mean.step_s
            return Decision(
                True,
                "raced",
                f"{rate:.4g}/s is certainly more than {budget.delta_frac:.0%} below "
                f"{budget.incumbent_samples_per_s:.4g}/s after {mean.num_steps} steady steps",
            )
        half_frac = mean.interval().half_width_frac
        if mean.num_steps >= budget.min_steps and _is_tight(mean, budget.target_frac):
            return Decision(
                True, "settled", f"+-{half_frac:.2%} after {mean.num_steps} steady steps"
            )
        state = f"+-{half_frac:.2%} after {mean.num_steps} steady steps"
        if _is_futile(mean, budget):
            return Decision(
                True, "cap", f"{state}: {budget.max_steps} would not bring it to the target either"
            )
    else:
        state = steady.reason
    if steps_s.size >= budget.max_steps:
        return Decision(True, "cap", f"{steps_s.size} steps, {state}")
    # Steps longer than the cap foresaw: somewhat more seconds for a reading, not none for all.
    longest_s = budget.max_s * (1.0 if steps_s.size >= _LEAST_STEPS else _MOST_CAPS)
    if steps_s.sum() >= longest_s:
        return Decision(True, "cap", f"{steps_s.sum():.1f} s, {state}")
    return Decision(False, "", state)


def least_steps(budget: Budget) -> int:
    """Returns the steps before which asking is pointless."""
    beaten_early = budget.incumbent_samples_per_s is not None
    return MIN_STEADY_STEPS if beaten_early else min(budget.min_steps, budget.max_steps)


def _is_tight(mean: VisitMean, target_frac: float) -> bool:
    """Returns whether the interval is tight, by two readings of its width.

    Batch means give the interval that is reported. If they alone decided, a visit would stop just
    when they happen to be small; the smooth reading hardly moves by luck.
    """
    is_narrow = mean.interval().half_width_frac <= _SLACK * target_frac
    return is_narrow and Z_95 * mean.smooth_s <= target_frac * mean.step_s


def _is_futile(mean: VisitMean, budget: Budget) -> bool:
    """Returns whether all the steps that are left would still miss the target by far.

    Another visit then tells more than the rest of this one: it also shows how visits differ.
    """
    if mean.num_steps < _FUTILE_FROM * budget.min_steps:
        return False
    shrunk = np.sqrt(mean.num_steps / budget.max_steps)
    return bool(mean.interval().half_width_frac * shrunk > _FUTILE_TARGETS * budget.target_frac)


def _is_beaten(
    mean: VisitMean, budget: Budget, samples_per_step: float, between_frac: float
) -> bool:
    if budget.incumbent_samples_per_s is None:
        return False
    # Both the incumbent and this visit carry a between-visit part.
    interval = mean.interval(between_frac * np.sqrt(2), _BEATEN_PROB)
    best_case = throughput(interval, samples_per_step).hi
    return bool(best_case < budget.incumbent_samples_per_s * (1 - budget.delta_frac))
