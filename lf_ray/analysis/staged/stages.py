"""The stages of a sweep as its journal tells them: each one a sweep of its own, with an answer.

Pure. What a single sweep's answer is drawn by is handed in, so that a stage is read exactly as a
sweep would be that had done nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lf_ray.analysis.advice import is_starved_bucket
from lf_ray.analysis.gain import gain_over
from lf_ray.analysis.points import Gathered, Point, eligible, gather
from lf_ray.analysis.staged.convergence import Convergence, Run, convergence_of, runs_of
from lf_ray.analysis.staged.multiply import Multiplied, multiplied, shared_of
from lf_ray.protocol import Interval, Knobs, Purpose, TrialRecord
from lf_ray.record.events import JournalEvent
from lf_ray.record.history import SweepHistory, history_of

if TYPE_CHECKING:
    from lf_ray.analysis.answer import Answer

SEARCH, TOGETHER, LEARNING = "search", "together", "learning"
BASELINE, ALL, ALL_BUT = "baseline", "all", "all but "


@dataclass(frozen=True, kw_only=True, slots=True)
class Chapter:
    """What a journal says of one stage.

    Attributes:
        does: search | together | learning.
        status: dead | begun (it was cut short) | ended.
        begin: payload of its first line; end: of its last one, empty before.
    """

    name: str
    does: str
    status: str
    begin: Mapping[str, Any]
    end: Mapping[str, Any]
    events: tuple[JournalEvent, ...]

    @property
    def reason(self) -> str:
        """Returns why it ended, or why it is dead, in words."""
        return str((self.end or self.begin).get("won") or (self.end or self.begin)["reason"])

    @property
    def records(self) -> list[TrialRecord]:
        """Returns what was measured in it."""
        return [
            TrialRecord.from_json(event.data["record"])
            for event in self.events
            if event.kind == "finished"
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageAnswer:
    """One search among the stages.

    Attributes:
        answer: as of a sweep that began where the stage began; None where nothing was measured.
        changed: what its winner sets otherwise; empty where the stage changed nothing.
        gain: its winner over where it began.
        check: of the winner, in words: numerics gate, and convergence where that is needed.
    """

    chapter: Chapter
    answer: Answer | None
    changed: Knobs
    gain: Interval | None
    check: str


def chapters_of(history: SweepHistory) -> list[Chapter]:
    """Returns the stages of a sweep in order; none for a sweep without stages."""
    found: list[Chapter] = []
    for event in history.events:
        data = event.data
        if event.kind == "stage" and "stage" in data:
            if data["status"] == "ended":
                found[-1] = replace(found[-1], status="ended", end=data)
            else:
                found.append(
                    Chapter(
                        name=str(data["stage"]),
                        does=str(data["does"]),
                        status=str(data["status"]),
                        begin=data,
                        end={},
                        events=(),
                    )
                )
        elif found and found[-1].status == "begun":
            found[-1] = replace(found[-1], events=(*found[-1].events, event))
    return found


def chapter_history(history: SweepHistory, chapter: Chapter) -> SweepHistory:
    """Returns a stage as the history of a sweep that began where the stage began."""
    first = history.events[0]
    data = {**first.data, "baseline_knobs": chapter.begin["knobs"]}
    data["space"] = chapter.begin.get("space", first.data["space"])
    return history_of([replace(first, data=data), *chapter.events], Path("journal.jsonl"))


def stage_answers(
    history: SweepHistory,
    chapters: Sequence[Chapter],
    single: Callable[[SweepHistory], Answer],
    runs: Sequence[Run],
) -> tuple[StageAnswer, ...]:
    """Returns every search among the stages, with its answer.

    Args:
        history: of the whole sweep.
        chapters: its stages.
        single: draws the answer of a sweep without stages.
        runs: training runs of the whole sweep.
    """
    answers = []
    for chapter in chapters:
        if chapter.does != SEARCH:
            continue
        if chapter.status == "dead" or not chapter.records:
            answers.append(
                StageAnswer(
                    chapter=chapter, answer=None, changed={}, gain=None, check="nothing to check"
                )
            )
            continue
        answer = single(chapter_history(history, chapter))
        changed = dict(chapter.end.get("changed", {}))
        answers.append(
            StageAnswer(
                chapter=chapter,
                answer=answer,
                changed=changed,
                gain=answer.gain,
                check=check_in_words(answer, runs),
            )
        )
    return tuple(answers)


def check_in_words(answer: Answer, runs: Sequence[Run]) -> str:
    """Returns how a stage's winner was checked."""
    if answer.winner is None or answer.baseline is None:
        return "nothing measured"
    gate = answer.winner.gate
    said = "not gated" if gate is None else "gate passed" if gate.passed else "gate failed"
    found = convergence_of(answer.winner.knobs, answer.baseline.knobs, runs)
    return said if found.verdict == "not needed" else f"{said}; convergence {found.verdict}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Together:
    """All winners side by side.

    Attributes:
        gathered: points of this stage alone, the baseline's as such.
        points: by label: baseline, a stage's name, all; None where one has no measurement that
            passed the gate.
    """

    gathered: Gathered
    points: Mapping[str, Point | None]
    found: Multiplied


def together_of(chapters: Sequence[Chapter], delta: float) -> Together | None:
    """Returns the side-by-side comparison, None where it was not reached."""
    chapter = next((item for item in chapters if item.does == TOGETHER), None)
    if chapter is None:
        return None
    sides = {str(side["label"]): dict(side["knobs"]) for side in chapter.begin["sides"]}
    base = sides[BASELINE]
    gathered = gather([_as_baseline(record, base) for record in chapter.records])
    may_win = {point.id: point for point in eligible(gathered.points)}
    sought = {label: gathered.find(knobs) for label, knobs in sides.items()}
    points = {label: may_win.get(point.id) if point else None for label, point in sought.items()}
    baseline = points[BASELINE]
    if baseline is None or baseline.throughput is None:
        return None
    joined = (BASELINE, ALL, ALL_BUT)
    alone = {label: point for label, point in points.items() if not label.startswith(joined)}
    joint = points.get(ALL) if ALL in points else next(iter(alone.values()), None)
    found = multiplied(
        baseline.throughput,
        {label: _rate(point) for label, point in alone.items()},
        _rate(joint),
        delta,
        shared_of(baseline, alone, joint),
    )
    return Together(gathered=gathered, points=points, found=found)


def learning_runs(chapters: Sequence[Chapter]) -> list[Run]:
    """Returns the training runs of a sweep."""
    return [run for item in chapters if item.does == LEARNING for run in runs_of(item.records)]


def learning_note(chapters: Sequence[Chapter]) -> str:
    """Returns what is said of the training runs as a whole: plan and end, or why there are none."""
    chapter = next((item for item in chapters if item.does == LEARNING), None)
    if chapter is None:
        return ""
    plan = chapter.begin.get("plan")
    if not plan:
        return chapter.reason
    note, ended = str(plan["note"]), str(chapter.end.get("reason", ""))
    return f"{note}; {ended}" if ended and ended != note else note


def fastest_sound(
    together: Together, check: Callable[[Knobs], Convergence]
) -> tuple[Point | None, Interval | None]:
    """Returns the fastest side that is certainly faster than the baseline and learns, and its gain.

    The baseline itself where there is none. No bucket is that side in a data-bound run.
    """
    baseline = together.points[BASELINE]
    assert baseline is not None
    sound = [
        (gain_over(baseline, point), point)
        for point in together.points.values()
        if point is not None
        and point.id != baseline.id
        and not is_starved_bucket(baseline, point)
        and check(point.knobs).verdict != "failed"
    ]
    better = [pair for pair in sound if pair[0].lo > 1]
    if not better:
        return baseline, gain_over(baseline, baseline)
    gain, point = max(better, key=lambda pair: pair[0].value)
    return point, gain


def _as_baseline(record: TrialRecord, base: Knobs) -> TrialRecord:
    is_base = dict(record.request.knobs) == dict(base) and record.request.replicate_of is None
    if not is_base:
        return record
    return replace(record, request=replace(record.request, purpose=Purpose.BASELINE))


def _rate(point: Point | None) -> Interval | None:
    return point.throughput if point is not None else None
