"""The three named points of a search over batches: fastest, knee, best goodput.

Pure. Each carries the learning-rate rule that learnt best in the training runs, and what those say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lf_ray.analysis.points import Point
from lf_ray.analysis.staged.convergence import (
    Convergence,
    Converges,
    Run,
    best_rule,
    changed_arithmetic,
    convergence_of,
    learning_key,
    rank_batch,
)
from lf_ray.analysis.staged.goodput import Worth, best_worth, noise_scale_of, worths
from lf_ray.protocol import Interval, Knobs, KnobValue, TrialRecord

if TYPE_CHECKING:
    from lf_ray.analysis.answer import Answer

NAMES = ("fastest", "knee", "goodput")


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """One point that is advised for a purpose.

    Attributes:
        knobs: every knob, the learning-rate rule among them.
        point: its measurement, where there is one.
        note: why it is not what one would expect; "" where it is.
    """

    knobs: Knobs
    point: Point | None
    worth: Worth | None
    convergence: Convergence
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleRun:
    """What one batch under one rule came to in the training runs."""

    batch: int
    rule: str
    convergence: Convergence


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchAnswer:
    """What a search over batches says beyond throughput.

    Attributes:
        scale: gradient noise scale in samples, at the visits; None where it was not measured.
        late_scale: the same after the baseline's training runs.
        worths: every point with its goodput, best first.
        named: by name.
        rules: what each batch and rule learnt.
        lr_rule: the one advised.
        note: on the training runs.
    """

    scale: Interval | None
    late_scale: Interval | None
    worths: tuple[Worth, ...]
    named: Mapping[str, Named]
    rules: tuple[RuleRun, ...]
    lr_rule: str
    note: str


def batch_answer(
    answer: Answer, runs: Sequence[Run], run_records: Sequence[TrialRecord], note: str
) -> BatchAnswer | None:
    """Returns the named points of a search over batches, None without a measured baseline.

    Args:
        answer: of the search.
        runs: training runs.
        run_records: what they left, for the noise at their end.
        note: on the runs as a whole.
    """
    baseline = answer.baseline
    if baseline is None or answer.fastest is None:
        return None
    points = answer.gathered.points
    scale = noise_scale_of(record for point in points for record in point.records)
    found = worths(points, baseline, scale) if scale else ()
    rule = advised_rule(runs, baseline.knobs)
    goodput = _goodput(found, baseline, runs, rule, note)
    knee = answer.knee_point
    named = {
        "fastest": _named(answer.fastest.knobs, answer.fastest, found, baseline, runs, rule, note),
        "knee": _named(answer.knee_knobs, knee, found, baseline, runs, rule, note),
        "goodput": goodput,
    }
    return BatchAnswer(
        scale=scale,
        late_scale=noise_scale_of(run_records),
        worths=found,
        named=named,
        rules=_rules(runs, baseline.knobs),
        lr_rule=rule,
        note=note,
    )


def advised_rule(runs: Sequence[Run], baseline: Knobs) -> str:
    """Returns the rule with the lowest loss in the compared batch, else the present one."""
    present = str(baseline.get("batch.lr_rule", "none"))
    others = [run for run in runs if rank_batch(run.knobs) != rank_batch(baseline)]
    if not others:
        return present
    first = rank_batch(others[0].knobs)
    by_rule: dict[str, list[Run]] = {}
    for run in others:
        if rank_batch(run.knobs) == first:
            by_rule.setdefault(str(run.knobs["batch.lr_rule"]), []).append(run)
    return best_rule(by_rule) or present


def with_rule(knobs: Knobs, baseline: Knobs, rule: str) -> dict[str, KnobValue]:
    """Returns the knobs with the advised rule where their batch is not the baseline's."""
    changed = rank_batch(knobs) != rank_batch(baseline)
    return {**knobs, "batch.lr_rule": rule} if changed else dict(knobs)


def _goodput(
    found: Sequence[Worth], baseline: Point, runs: Sequence[Run], rule: str, note: str
) -> Named:
    """Returns the best goodput, passing over batches that were found to learn worse.

    Behind such a one only a batch that was run itself is advised, or one that needs no run.
    """
    left = list(found)
    worse: list[int] = []
    unchecked: list[int] = []
    while True:
        best = best_worth(left, baseline)
        if best is None:
            why = "the gradient noise scale is not known, so no goodput is"
            return replace(
                _named(baseline.knobs, baseline, found, baseline, runs, rule, note), note=why
            )
        named = _named(best.point.knobs, best.point, found, baseline, runs, rule, note)
        if named.convergence.verdict is Converges.FAILED:
            worse.append(best.point.samples_per_step)
        elif worse and not named.convergence.stands:
            unchecked.append(best.point.samples_per_step)
        else:
            kept = best.point.id == baseline.id
            return replace(named, note=_passed_over(worse, unchecked, kept))
        left = [item for item in left if item.point.id != best.point.id]


def _passed_over(worse: Sequence[int], unchecked: Sequence[int], kept: bool) -> str:
    """Returns why batches with a higher goodput are not advised; "" where there are none."""
    said = []
    for batches, one, several in (
        (worse, "would be ahead but learns worse", "would be ahead but learn worse"),
        (unchecked, "would be ahead and was not checked", "would be ahead and were not checked"),
    ):
        told = [str(batch) for batch in dict.fromkeys(batches)]
        if told:
            name = "batch" if len(told) == 1 else "batches"
            said.append(f"{name} {' and '.join(told)} {one if len(told) == 1 else several}")
    if said and kept:
        said.append("nothing that was checked is better than the baseline")
    return "; ".join(said)


def _named(
    knobs: Knobs,
    point: Point | None,
    found: Sequence[Worth],
    baseline: Point,
    runs: Sequence[Run],
    rule: str,
    note: str,
) -> Named:
    full = with_rule(knobs, baseline.knobs, rule)
    worth = next((item for item in found if point and item.point.id == point.id), None)
    return Named(
        knobs=full,
        point=point,
        worth=worth,
        convergence=convergence_of(full, baseline.knobs, runs, why_none=note),
    )


def _rules(runs: Sequence[Run], baseline: Knobs) -> tuple[RuleRun, ...]:
    seen: dict[object, Run] = {}
    for run in runs:
        if changed_arithmetic(run.knobs, baseline):
            seen.setdefault(learning_key(run.knobs), run)
    return tuple(
        RuleRun(
            batch=run.samples_per_step,
            rule=str(run.knobs["batch.lr_rule"]),
            convergence=convergence_of(run.knobs, baseline, runs),
        )
        for run in seen.values()
    )
