"""The convergence check: does a setting that changes the arithmetic still learn as well?

Pure. Training runs of equal length in samples, the baseline with several seeds; the mean loss of
the last tenth is compared one-sidedly with a margin. Speed plays no part in it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev

from lf_ray.measure.quantiles import t_quantile
from lf_ray.protocol import ARITHMETIC_KNOBS, Knobs, OutcomeKind, TrialRecord

MARGIN_FRAC = 0.02
MIN_STEPS = 500
MIN_SEEDS = 3
TAIL_FRAC = 0.1
_SPLIT = ("batch.per_gpu", "batch.accumulation")


class Converges(StrEnum):
    """What is known of a setting's learning."""

    PASSED = "passed"
    FAILED = "failed"
    UNDETERMINED = "undetermined"
    NOT_CHECKED = "not checked"
    NOT_NEEDED = "not needed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One training run of a check.

    Attributes:
        loss: of each step, mean over ranks.
        diverged: it did not come to its end in numbers.
    """

    id: str
    knobs: Knobs
    seed: int
    loss: tuple[float, ...]
    samples_per_step: int
    diverged: bool = False

    @property
    def num_samples(self) -> int:
        """Returns the samples that it has trained on."""
        return len(self.loss) * self.samples_per_step

    def tail(self, num_samples: int) -> float:
        """Returns the mean loss over the last tenth of the first `num_samples`."""
        end = num_samples // self.samples_per_step
        window = max(1, round(end * TAIL_FRAC))
        return fmean(self.loss[end - window : end])


@dataclass(frozen=True, kw_only=True, slots=True)
class Convergence:
    """A verdict with what it rests on.

    Attributes:
        ratio: loss over the baseline's at equal samples; lo and hi are its one-sided 95 % ends.
        num_seeds: of the baseline, without those that diverged.
        num_diverged: seeds of the baseline that diverged; they are in no mean and no spread.
        num_steps: of the shortest run.
    """

    verdict: Converges
    reason: str
    ratio: float | None = None
    lo: float | None = None
    hi: float | None = None
    num_seeds: int = 0
    num_steps: int = 0
    num_samples: int = 0
    num_diverged: int = 0

    @property
    def stands(self) -> bool:
        """Returns whether the point was compared, or needs not be, and was not found worse."""
        compared = self.ratio is not None or self.verdict is Converges.NOT_NEEDED
        return compared and self.verdict is not Converges.FAILED


def runs_of(records: Sequence[TrialRecord]) -> list[Run]:
    """Returns the training runs among the records: those asked for with a number of samples.

    A run need not have settled in speed; it must have losses.
    """
    lost = (OutcomeKind.FAILED, OutcomeKind.INFEASIBLE)
    runs = []
    for record in records:
        if record.request.run_samples is None or record.trace is None:
            continue
        loss = record.trace.loss
        diverged = record.outcome.error_kind == "diverged" or not all(map(math.isfinite, loss))
        if record.outcome.kind in lost and not diverged:
            continue
        if loss and record.samples_per_step > 0:
            runs.append(
                Run(
                    id=record.request.id,
                    knobs=record.request.knobs,
                    seed=record.request.seed,
                    loss=loss,
                    samples_per_step=record.samples_per_step,
                    diverged=diverged,
                )
            )
    return runs


def changed_arithmetic(knobs: Knobs, baseline: Knobs) -> tuple[str, ...]:
    """Returns the knobs of a point that make it compute something else than the baseline."""
    return tuple(
        name
        for name in ARITHMETIC_KNOBS
        if name in knobs and knobs[name] != baseline.get(name, knobs[name])
    )


def learning_key(knobs: Knobs) -> tuple[tuple[str, object], ...]:
    """Returns what a run's losses follow from, as one hashable value.

    A step's samples count, not how they are split into micro-batches: their gradients are summed.
    """
    rest = tuple((name, knobs.get(name)) for name in ARITHMETIC_KNOBS if name not in _SPLIT)
    return (*rest, ("batch", rank_batch(knobs)))


def rank_batch(knobs: Knobs) -> int:
    """Returns the samples that each rank takes in a step, all micro-batches together."""
    return math.prod(int(knobs.get(name, 1)) for name in _SPLIT)


def convergence_of(
    knobs: Knobs,
    baseline: Knobs,
    runs: Sequence[Run],
    *,
    min_steps: int = MIN_STEPS,
    min_seeds: int = MIN_SEEDS,
    why_none: str = "",
) -> Convergence:
    """Returns whether a point learns as well as the baseline.

    Args:
        knobs: of the point.
        baseline: of the baseline.
        runs: every training run of the sweep.
        min_steps: that every compared run must have.
        min_seeds: of the baseline.
        why_none: why there are no runs, where that is known.
    """
    changed = changed_arithmetic(knobs, baseline)
    if not changed:
        return Convergence(
            verdict=Converges.NOT_NEEDED,
            reason="computes the same as the baseline; the numerics gate holds it to that",
        )
    if learning_key(knobs) == learning_key(baseline):
        return Convergence(
            verdict=Converges.NOT_NEEDED,
            reason="sums the same samples a step as the baseline, in other micro-batches",
        )
    by_key: dict[object, list[Run]] = {}
    for run in runs:
        by_key.setdefault(learning_key(run.knobs), []).append(run)
    own, theirs = by_key.get(learning_key(knobs), []), by_key.get(learning_key(baseline), [])
    if not own:
        reason = f"{' and '.join(changed)} changed and no run was made" + (
            f": {why_none}" if why_none else ""
        )
        return Convergence(verdict=Converges.NOT_CHECKED, reason=reason)
    return compared(theirs, own, min_steps=min_steps, min_seeds=min_seeds)


def compared(
    baseline: Sequence[Run],
    candidate: Sequence[Run],
    *,
    min_steps: int = MIN_STEPS,
    min_seeds: int = MIN_SEEDS,
    margin_frac: float = MARGIN_FRAC,
) -> Convergence:
    """Returns the verdict on a candidate's runs, one-sided, at equal samples.

    Passed: its loss is with 95 % certainty less than `margin_frac` above the baseline's. Failed:
    with 95 % certainty more. The spread is that of the baseline's seeds; of these some may diverge,
    and are told rather than averaged.
    """
    sound = {run.seed: run for run in baseline if not run.diverged}
    lost = {run.seed for run in baseline} - sound.keys()
    diverged = [run for run in candidate if run.diverged]
    samples = min((run.num_samples for run in [*sound.values(), *candidate]), default=0)
    steps = min(
        (samples // run.samples_per_step for run in [*sound.values(), *candidate]), default=0
    )
    known = {
        "num_seeds": len(sound),
        "num_steps": steps,
        "num_samples": samples,
        "num_diverged": len(lost),
    }
    of_all = f"{len(lost)} of {len(lost) + len(sound)} baseline seeds diverged"
    also = f"; {of_all}: the rest is what is compared with" if lost else ""
    if diverged:
        return Convergence(
            verdict=Converges.FAILED, reason=f"{diverged[0].id} diverged{also}", **known
        )
    if steps < 1 or not sound or not candidate:
        why = of_all if lost and not sound else "there are no runs to compare"
        return Convergence(verdict=Converges.NOT_CHECKED, reason=why, **known)
    base = [run.tail(samples) for run in sound.values()]
    own = [run.tail(samples) for run in candidate]
    level = fmean(base)
    ratio = fmean(own) / level if level > 0 else math.nan
    short = [
        f"{have} of {need} {what}"
        for have, need, what in (
            (len(sound), min_seeds, "baseline seeds"),
            (steps, min_steps, "steps"),
        )
        if have < need
    ]
    if short:
        return Convergence(
            verdict=Converges.NOT_CHECKED,
            reason=f"only {' and '.join(short)}: loss {ratio:.4f}x the baseline's so far{also}",
            ratio=ratio,
            **known,
        )
    spread = stdev(base) * math.sqrt(1 / len(base) + 1 / len(own))
    reach = t_quantile(0.95, len(base) - 1) * spread / level
    lo, hi, most = ratio - reach, ratio + reach, 1 + margin_frac
    verdict = (
        Converges.PASSED
        if hi <= most
        else Converges.FAILED
        if lo > most
        else Converges.UNDETERMINED
    )
    reason = (
        f"loss {ratio:.4f}x the baseline's (one-sided 95 %: {lo:.4f} to {hi:.4f}; margin "
        f"{margin_frac:.0%}) after {samples:,} samples, {steps} steps or more, "
        f"{len(base)} baseline seeds{also}"
    )
    return Convergence(verdict=verdict, reason=reason, ratio=ratio, lo=lo, hi=hi, **known)


def best_rule(candidates: Mapping[str, Sequence[Run]]) -> str | None:
    """Returns the learning-rate rule with the lowest loss at equal samples; None without runs."""
    sound = {
        rule: runs
        for rule, runs in candidates.items()
        if runs and not any(run.diverged for run in runs)
    }
    if not sound:
        return None
    samples = min(run.num_samples for runs in sound.values() for run in runs)
    return min(sound, key=lambda rule: fmean(run.tail(samples) for run in sound[rule]))
