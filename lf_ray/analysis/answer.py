"""The answer of a sweep: best, knee, gain, cost, and whether it was worth it.

Drawn from the journal alone and pure, so that a resumed, rebuilt or re-read sweep gives the same
answer. Files and figures are made of it by `lf_ray.analysis.report`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from lf_ray.analysis.advice import (
    Roofline,
    is_bucket,
    is_data_bound,
    is_starved_bucket,
    roofline,
)
from lf_ray.analysis.gain import break_even_steps, gain_over
from lf_ray.analysis.knee import Knee, KneeStatus, knee_estimate
from lf_ray.analysis.points import Gathered, Point, eligible, gather
from lf_ray.analysis.seconds import Seconds, seconds_of
from lf_ray.analysis.slices import Slice, slice_of
from lf_ray.analysis.staged.convergence import Convergence, convergence_of, runs_of
from lf_ray.analysis.staged.named import BatchAnswer
from lf_ray.analysis.staged.stages import StageAnswer, Together, chapters_of
from lf_ray.analysis.staged.whole import staged_answer
from lf_ray.protocol import Interval, Knobs, KnobValue, OutcomeKind, Purpose
from lf_ray.record.history import SweepHistory

EXIT_OK = 0
EXIT_NO_ANSWER = 1
EXIT_INTERRUPTED = 130
Ladders = Mapping[str, Sequence[KnobValue]]


class Verdict(StrEnum):
    """What to do, in one word.

    IMPROVED: a point is certainly faster than the baseline and passed the gate.
    KEEP_BASELINE: nothing is certainly faster.
    DATA_BOUND: the step waits for data, and nothing but a bucket, if that, seems faster.
    NO_BASELINE: the baseline has no valid measurement, so nothing can be said.
    """

    IMPROVED = "improved"
    KEEP_BASELINE = "keep the baseline"
    DATA_BOUND = "data-bound"
    NO_BASELINE = "no baseline"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Everything that is said about a sweep.

    Attributes:
        fastest: the point with the highest re-measured throughput that passed the gate.
        winner: what best.yaml carries: the fastest, or the baseline where that is the answer.
        knees: one a varied knob, read from `slices`.
        knee_knobs: what knee.yaml carries: every knob at its knee.
        knee_point: the point measured there, if it was.
        gain: winner over baseline.
        outcomes: how the trials ended, by kind.
        exit_code: of the sweep command.
        convergence: whether the winner learns as well as the baseline, where that is a question.
        stages: the searches of a sweep in stages, in order.
        together: its winners side by side.
        batch: what a search over batches says beyond throughput.
    """

    history: SweepHistory
    gathered: Gathered
    verdict: Verdict
    baseline: Point | None
    fastest: Point | None
    winner: Point | None
    knees: tuple[Knee, ...]
    slices: tuple[Slice, ...]
    knee_knobs: Knobs
    knee_point: Point | None
    gain: Interval | None
    break_even_steps: float | None
    baseline_roofline: Roofline | None
    roofline: Roofline | None
    outcomes: Mapping[str, int]
    seconds: Seconds
    gpu_seconds: float
    exit_code: int
    convergence: Convergence | None = None
    stages: tuple[StageAnswer, ...] = ()
    together: Together | None = None
    batch: BatchAnswer | None = None


def answer_of(history: SweepHistory, ladders: Ladders | None = None) -> Answer:
    """Returns the answer of a sweep, finished or not, in stages or not.

    Args:
        history: of one journal.
        ladders: values that each varied knob may take, where the space of the journal only holds
            a rule; without them the values that were tried are taken.
    """
    whole = _single(history, ladders)
    return staged_answer(history, _single, whole) if chapters_of(history) else whole


def _single(history: SweepHistory, ladders: Ladders | None = None) -> Answer:
    """Returns the answer of a sweep whose points all belong to one search."""
    gathered = gather(history.records)
    baseline = _measured(gathered.baseline, gathered)
    fastest = gathered.best if baseline else None
    anchor = _anchor(history, gathered, fastest)
    slices = _slices(history, gathered, anchor, ladders or {})
    knees = tuple(
        knee_estimate(
            along,
            delta=_delta(history),
            seed=history.header.seed,
        )
        for along in slices
    )
    verdict = _verdict(history, baseline, fastest)
    winner = fastest if verdict is Verdict.IMPROVED else baseline
    if winner and (verdict is Verdict.DATA_BOUND or is_data_bound(fastest)):
        buckets = history.header.baseline_knobs if is_data_bound(baseline) else winner.knobs
        knees = tuple(_unjudged(knee, winner.knobs, buckets) for knee in knees)
    limit = fastest if verdict is Verdict.DATA_BOUND else winner
    knee_knobs = _knee_knobs(history, verdict, winner, anchor, knees, gathered)
    seconds = seconds_of(history)
    return Answer(
        history=history,
        gathered=gathered,
        verdict=verdict,
        baseline=baseline,
        fastest=fastest,
        winner=winner,
        knees=knees,
        slices=slices,
        knee_knobs=knee_knobs,
        knee_point=_measured(gathered.find(knee_knobs), gathered),
        gain=gain_over(baseline, winner) if baseline and winner else None,
        break_even_steps=(
            break_even_steps(baseline, winner, seconds.total) if baseline and winner else None
        ),
        baseline_roofline=roofline(baseline) if baseline else None,
        roofline=roofline(limit) if limit else None,
        outcomes=_outcomes(gathered.points),
        seconds=seconds,
        gpu_seconds=seconds.total * num_gpus(history),
        exit_code=_exit_code(history, baseline, gathered.points),
        convergence=(
            convergence_of(winner.knobs, baseline.knobs, runs_of(history.records))
            if baseline and winner
            else None
        ),
    )


def num_ranks(history: SweepHistory) -> int:
    """Returns the ranks of one group."""
    return int(_cluster(history).get("workers") or 1)


def device(history: SweepHistory) -> str:
    """Returns "cuda", "cpu" or "simulated": what the trials ran on."""
    cluster = _cluster(history)
    if str(cluster.get("kind", "")).startswith("sim"):
        return "simulated"
    return str(cluster.get("device", "cpu"))


def num_gpus(history: SweepHistory) -> int:
    """Returns the GPUs that the sweep held; a simulated cluster holds those it simulates."""
    return num_ranks(history) if device(history) != "cpu" else 0


def _cluster(history: SweepHistory) -> Mapping[str, Any]:
    found = history.header.config.get("cluster", {})
    return found if isinstance(found, Mapping) else {}


def _delta(history: SweepHistory) -> float:
    return float(history.header.config.get("sweep", {}).get("delta", 0.02))


def _measured(point: Point | None, gathered: Gathered) -> Point | None:
    """Returns the point where it is measured, and gated if any point of the sweep is."""
    return next((p for p in eligible(gathered.points) if point and p.id == point.id), None)


def _anchor(history: SweepHistory, gathered: Gathered, fastest: Point | None) -> Point | None:
    """Returns the point that the slices go through.

    Slices are measured from what was best then; where a near-tie has since become best, the
    slices that exist are still the ones to read.
    """
    asked = [stage["best"] for stage in history.stages if "best" in stage]
    point = next((p for p in eligible(gathered.points) if asked and p.id == asked[-1]), None)
    if fastest is None or point is None:
        return fastest
    assert fastest.throughput is not None
    assert point.throughput is not None
    tied = point.throughput.value >= (1 - _delta(history)) * fastest.throughput.value
    return point if tied else fastest


def _slices(
    history: SweepHistory, gathered: Gathered, anchor: Point | None, ladders: Ladders
) -> tuple[Slice, ...]:
    if anchor is None:
        return ()
    found = []
    for knob, values in history.header.space.items():
        if knob not in anchor.knobs:
            continue
        along = slice_of(
            gathered.points,
            anchor,
            knob,
            ladders.get(knob) or _ladder(history, knob, values),
            baseline_value=history.header.baseline_knobs[knob],
            dead=history.dead,
        )
        found.append(replace(along, inactive=_is_inactive(history, knob)))
    return tuple(found)


def _walked(history: SweepHistory) -> Mapping[str, Sequence[KnobValue]] | None:
    """Returns the ladders that the slices walked, None before they were done."""
    noted = [stage["ladders"] for stage in history.stages if "ladders" in stage]
    return noted[-1] if noted else None


def _is_inactive(history: SweepHistory, knob: str) -> bool:
    walked = _walked(history)
    return walked is not None and knob not in walked


def _ladder(history: SweepHistory, knob: str, values: Sequence[KnobValue]) -> Sequence[KnobValue]:
    """Returns the values of a ladder: those walked, or the space's, or (a rule) those tried."""
    walked = _walked(history)
    if walked is not None and knob in walked:
        return walked[knob]
    own = history.header.baseline_knobs[knob]
    if isinstance(own, str) or not any(isinstance(value, str) for value in values):
        return values
    tried = [request.knobs[knob] for request in history.started]
    return [own, *tried, *(item.knobs[knob] for item in history.dead if knob in item.knobs)]


def _verdict(history: SweepHistory, baseline: Point | None, fastest: Point | None) -> Verdict:
    if baseline is None or fastest is None:
        return Verdict.NO_BASELINE
    if fastest.id == baseline.id or gain_over(baseline, fastest).lo <= 1:
        # That nothing was faster says nothing of other knobs where all waited for their data.
        judged = [name for name in history.header.space if not name.startswith("data.")]
        return Verdict.DATA_BOUND if judged and is_data_bound(baseline) else Verdict.KEEP_BASELINE
    return Verdict.DATA_BOUND if is_starved_bucket(baseline, fastest) else Verdict.IMPROVED


def _unjudged(knee: Knee, kept: Knobs, buckets: Knobs) -> Knee:
    """Returns a knee of a data-bound point: how fast data comes in is all that it shows.

    What is kept is the winner's value; a bucket's is its own, where the baseline waits too.
    """
    if knee.knob.startswith("data."):
        return knee
    return replace(
        knee,
        status=KneeStatus.UNDETERMINED,
        advised=(buckets if is_bucket(knee.knob) else kept)[knee.knob],
        reason="the step waits for its data, so this knob can't be judged",
    )


def _knee_knobs(
    history: SweepHistory,
    verdict: Verdict,
    winner: Point | None,
    anchor: Point | None,
    knees: Sequence[Knee],
    gathered: Gathered,
) -> Knobs:
    """Returns every knob at its knee, or best's own where that point was found to be slower."""
    if verdict is not Verdict.IMPROVED or anchor is None or winner is None:
        return dict(history.header.baseline_knobs)
    knobs = {**anchor.knobs, **{knee.knob: knee.advised for knee in knees}}
    joint = gathered.find(knobs)
    if joint is None:
        return knobs
    if _measured(joint, gathered) is None:
        return dict(winner.knobs)
    assert joint.throughput is not None
    assert winner.throughput is not None
    floor = (1 - _delta(history)) * winner.throughput.value
    return dict(winner.knobs) if joint.throughput.hi < floor else knobs


def is_trial(point: Point) -> bool:
    """Returns whether the point was a trial: the baseline or a suggestion."""
    return point.purpose in (Purpose.BASELINE, Purpose.SEARCH)


def _outcomes(points: Sequence[Point]) -> dict[str, int]:
    counts = {str(kind): 0 for kind in OutcomeKind}
    for point in points:
        if is_trial(point):
            counts[str(point.outcome.kind)] += 1
    return counts


def _exit_code(history: SweepHistory, baseline: Point | None, points: Sequence[Point]) -> int:
    if history.ended is not None and history.ended.exit_code == EXIT_INTERRUPTED:
        return EXIT_INTERRUPTED
    others = [p for p in points if is_trial(p) and p.purpose is not Purpose.BASELINE]
    lost = (OutcomeKind.FAILED, OutcomeKind.INVALID)
    if baseline is None or (others and all(p.outcome.kind in lost for p in others)):
        return EXIT_NO_ANSWER
    return EXIT_OK


def resolved(answer: Answer) -> bool:
    """Returns whether every knee is decided: nothing is left that more visits could settle."""
    undecided = (KneeStatus.UNDETERMINED,)
    return bool(answer.knees) and all(knee.status not in undecided for knee in answer.knees)
