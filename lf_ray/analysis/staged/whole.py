"""The answer of a sweep in stages, put together from those of its stages.

Pure. With several searches the winners side by side decide; a single search over batches is
decided by goodput.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lf_ray.analysis.advice import is_data_bound, roofline
from lf_ray.analysis.gain import break_even_steps, gain_over
from lf_ray.analysis.points import Gathered, Point
from lf_ray.analysis.staged.convergence import convergence_of
from lf_ray.analysis.staged.named import advised_rule, batch_answer, with_rule
from lf_ray.analysis.staged.stages import (
    BASELINE,
    Chapter,
    StageAnswer,
    Together,
    chapters_of,
    fastest_sound,
    learning_note,
    learning_runs,
    stage_answers,
    together_of,
)
from lf_ray.measure.drift import Drift
from lf_ray.protocol import KnobValue
from lf_ray.record.history import SweepHistory

if TYPE_CHECKING:
    from lf_ray.analysis.answer import Answer


def staged_answer(
    history: SweepHistory, single: Callable[[SweepHistory], Answer], blank: Answer
) -> Answer:
    """Returns the answer of a sweep in stages, finished or not.

    Args:
        history: of the whole sweep.
        single: draws the answer of a sweep without stages.
        blank: the whole history read as one sweep, for its seconds and its machine.
    """
    chapters = chapters_of(history)
    runs = learning_runs(chapters)
    stages = stage_answers(history, chapters, single, runs)
    measured = [stage for stage in stages if stage.answer is not None]
    if not measured:
        return replace(blank, stages=stages)
    if len(stages) > 1:
        return _joint(history, chapters, stages, blank)
    return _batch(chapters, stages, blank)


def _batch(chapters: list[Chapter], stages: tuple[StageAnswer, ...], blank: Answer) -> Answer:
    """Returns the answer of one search over batches: its winner is the best goodput."""
    own = stages[0].answer
    assert own is not None
    records = [record for item in chapters if item.does == "learning" for record in item.records]
    found = batch_answer(own, learning_runs(chapters), records, learning_note(chapters))
    whole = replace(
        own,
        history=blank.history,
        seconds=blank.seconds,
        gpu_seconds=blank.gpu_seconds,
        exit_code=max(own.exit_code, blank.exit_code if blank.exit_code == 130 else 0),
        stages=stages,
        batch=found,
    )
    if found is None or own.baseline is None or own.verdict == "data-bound":
        return whole
    named = found.named["goodput"]
    point = named.point or own.baseline
    improved = point.id != own.baseline.id
    saved = None
    if named.worth and named.worth.gain.value > 1 and point.step_s:
        # So long at the better goodput, and the baseline would have taken the sweep's time more.
        saved = blank.seconds.total / (named.worth.gain.value - 1) / point.step_s.value
    return replace(
        whole,
        verdict=type(own.verdict)("improved" if improved else "keep the baseline"),
        winner=replace(point, knobs=named.knobs),
        knee_knobs=found.named["knee"].knobs,
        gain=gain_over(own.baseline, point),
        break_even_steps=saved,
        convergence=named.convergence,
    )


def _joint(
    history: SweepHistory,
    chapters: list[Chapter],
    stages: tuple[StageAnswer, ...],
    blank: Answer,
) -> Answer:
    """Returns the answer of several searches: the fastest of what was measured side by side."""
    answers = [stage.answer for stage in stages if stage.answer is not None]
    first, last = answers[0], answers[-1]
    delta = float(history.header.config.get("sweep", {}).get("delta", 0.02))
    together = together_of(chapters, delta)
    points = tuple(point for answer in answers for point in answer.gathered.points)
    base = first.baseline
    if together is not None and together.points[BASELINE] is not None:
        base = together.points[BASELINE]
        points += together.gathered.points
    runs = learning_runs(chapters)
    note = learning_note(chapters)
    rule = advised_rule(runs, base.knobs) if base else "none"
    winner, gain = last.winner, None
    if together is not None and base is not None:
        own = base
        winner, gain = fastest_sound(
            together,
            lambda knobs: convergence_of(with_rule(knobs, own.knobs, rule), own.knobs, runs),
        )
    elif base is not None and winner is not None:
        # Where no stage won anything the last one's baseline is the first one's, measured again.
        winner = base if winner.knobs == base.knobs else winner
        gain = gain_over(base, winner)
    convergence = None
    if base is not None and winner is not None:
        if winner is not base:
            winner = replace(winner, knobs=with_rule(winner.knobs, base.knobs, rule))
        convergence = convergence_of(winner.knobs, base.knobs, runs, why_none=note)
    improved = bool(gain and gain.lo > 1)
    knee_knobs, knee_point = _knee(stages, winner if improved else None, history)
    outcomes = {kind: sum(answer.outcomes[kind] for answer in answers) for kind in first.outcomes}
    return replace(
        blank,
        gathered=Gathered(points, _drift(together, last)),
        verdict=type(first.verdict)(_verdict(base, improved)),
        baseline=base,
        fastest=winner,
        winner=winner if improved else base,
        knees=tuple(knee for answer in answers for knee in answer.knees),
        slices=tuple(along for answer in answers for along in answer.slices),
        knee_knobs=knee_knobs,
        knee_point=knee_point,
        gain=gain,
        break_even_steps=(
            break_even_steps(base, winner, blank.seconds.total)
            if base and winner and improved
            else None
        ),
        baseline_roofline=first.baseline_roofline,
        roofline=last.roofline if improved or base is None else roofline(base),
        outcomes=outcomes,
        exit_code=_exit_code(base, answers, blank),
        stages=stages,
        together=together,
        convergence=convergence,
    )


def _verdict(base: Point | None, improved: bool) -> str:
    """Returns the verdict by its name; that nothing is faster says little while all wait."""
    if base is None or improved:
        return "improved" if improved else "no baseline"
    return "data-bound" if is_data_bound(base) else "keep the baseline"


def _exit_code(base: Point | None, answers: Sequence[Answer], blank: Answer) -> int:
    """Returns 130 where interrupted, 1 without a baseline or where all trials were lost, else 0.

    A stage all of whose own trials were lost leaves the answer of the others.
    """
    if blank.exit_code == 130:
        return 130
    return 1 if base is None else min(answer.exit_code for answer in answers)


def _knee(
    stages: tuple[StageAnswer, ...], best: Point | None, history: SweepHistory
) -> tuple[dict[str, KnobValue], Point | None]:
    """Returns every knob at its knee as far as knees hold at the best point, and that point.

    Those do that were walked from the best point itself: of the stage that ended there. An earlier
    stage's were read while later knobs were as at the start, and may be worth nothing beside them.
    """
    if best is None:
        return dict(history.header.baseline_knobs), None
    rule = {name: value for name, value in best.knobs.items() if name == "batch.lr_rule"}
    for stage in reversed(stages):
        own = stage.answer
        if own is None or own.winner is None or not stage.changed:
            continue
        if {**own.winner.knobs, **rule} == dict(best.knobs):
            return {**own.knee_knobs, **rule}, own.knee_point
    return dict(best.knobs), best


def _drift(together: Together | None, last: Answer) -> Drift | None:
    return together.gathered.drift if together else last.gathered.drift
