"""What a sweep over batches trains, to compare losses rather than speed.

The baseline with several seeds, then the batch that the sweep would advise under each rule, all
over equally many samples and with a schedule laid out for them; behind them the batches that come
next by goodput, should that one learn worse. Pure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lf_ray.analysis.knee import Knee
from lf_ray.analysis.points import Point, eligible
from lf_ray.analysis.staged.convergence import learning_key
from lf_ray.analysis.staged.goodput import noise_scale_of, worths
from lf_ray.protocol import Knobs, KnobValue
from lf_ray.settings import MeasureLevel, MeasureSettings

BEST_RULE = "best"
"""Stands for the rule that the compared batch learnt best with; known when its runs are over."""
MAX_FURTHER = 3
_LEAST_STEPS = 20
LearningRun = tuple[str, Knobs, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningPlan:
    """The runs of the stage.

    Attributes:
        runs: label, knobs and seed of each, in order.
        samples: that each run trains on.
        note: what is said of the plan: why it is short, or why there is none.
        in_turn: what goodput advises, best first: each is run, where it is not among the runs, once
            all before it have learnt worse than the baseline.
        left_out: why goodput's next one is not among these; "" where there is none.
    """

    runs: tuple[LearningRun, ...]
    samples: int
    note: str
    in_turn: tuple[LearningRun, ...] = ()
    left_out: str = ""

    def to_plain(self) -> dict[str, Any]:
        """Returns it as JSON values, as the journal keeps it."""
        return {
            "runs": [_run_to_plain(run) for run in self.runs],
            "samples": self.samples,
            "note": self.note,
            "in_turn": [_run_to_plain(run) for run in self.in_turn],
            "left_out": self.left_out,
        }

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> "LearningPlan":
        """Returns what `to_plain` wrote, an older journal's plan without a next one included."""
        return cls(
            runs=tuple(map(_run_from_plain, data["runs"])),
            samples=int(data["samples"]),
            note=str(data["note"]),
            in_turn=tuple(map(_run_from_plain, data.get("in_turn", ()))),
            left_out=str(data.get("left_out", "")),
        )


def _run_to_plain(run: LearningRun) -> dict[str, Any]:
    label, knobs, seed = run
    return {"label": label, "knobs": dict(knobs), "seed": seed}


def _run_from_plain(data: Mapping[str, Any]) -> LearningRun:
    return str(data["label"]), dict(data["knobs"]), int(data["seed"])


def learning_plan(
    points: Sequence[Point],
    baseline: Point | None,
    knees: Sequence[Knee],
    measure: MeasureSettings,
    lr_rules: Sequence[str],
    seed: int,
) -> LearningPlan:
    """Returns what to train, by what a search over batches has measured.

    Args:
        points: of the search.
        baseline: of the search.
        knees: of the search, for the point that they advise.
        measure: how long, how many seeds, and how many seconds it may all take.
        lr_rules: that are compared.
        seed: of the sweep; the baseline's further runs count on from it.
    """
    if baseline is None or baseline.throughput is None:
        return LearningPlan(runs=(), samples=0, note="the baseline has no measurement")
    ahead = _ahead(points, baseline)
    named = _candidates(points, baseline, knees, ahead)
    if not named:
        note = "every point advised has the baseline's batch: nothing computes something else"
        return LearningPlan(runs=(), samples=0, note=note)
    seconds, whole, runs = _whole_check(baseline, named, measure, lr_rules, seed)
    if seconds > measure.converge_s or measure.level is MeasureLevel.smoke:
        # The point that best.yaml would carry comes first.
        seconds, whole, runs = _whole_check(baseline, named[:1], measure, lr_rules, seed)
    in_turn, left_out = _in_turn(ahead, runs, (seconds, whole), measure, seed)
    if seconds <= measure.converge_s:
        note = f"{len(runs)} runs of {whole:,} samples, about {seconds / 60:.0f} min"
        return LearningPlan(
            runs=tuple(runs), samples=whole, note=note, in_turn=in_turn, left_out=left_out
        )
    steps = int(measure.converge_steps * measure.converge_s / seconds)
    note = (
        f"the whole check takes about {seconds / 60:.0f} min here and measure.converge_s="
        f"{measure.converge_s:g} allows {steps} of {measure.converge_steps} steps: no verdict "
        f"(measure.converge_s={math.ceil(seconds / 60) * 60} gives one)"
    )
    if steps < _LEAST_STEPS:
        return LearningPlan(runs=(), samples=0, note=note)
    samples = whole * steps // measure.converge_steps
    return LearningPlan(
        runs=tuple(runs), samples=samples, note=note, in_turn=in_turn, left_out=left_out
    )


def _whole_check(
    baseline: Point,
    named: Sequence[tuple[str, Point]],
    measure: MeasureSettings,
    lr_rules: Sequence[str],
    seed: int,
) -> tuple[float, int, list[LearningRun]]:
    """Returns the seconds, the samples a run and the runs of a check that gives a verdict.

    Every run has `converge_steps` at least, so the largest batch says how many samples.
    """
    runs = [("baseline", baseline.knobs, seed + index) for index in range(measure.converge_seeds)]
    first, *others = named
    runs += [(first[0], _with(first[1].knobs, rule), seed) for rule in lr_rules]
    runs += [(label, _with(point.knobs, BEST_RULE), seed) for label, point in others]
    rates = {batch_key(p.knobs): _rate(p) for p in (baseline, *(p for _, p in named))}
    largest = max(p.samples_per_step for p in (baseline, *(p for _, p in named)))
    whole = measure.converge_steps * largest
    seconds = sum(whole / rates[batch_key(knobs)] for _, knobs, _ in runs)
    return seconds, whole, runs


def _candidates(
    points: Sequence[Point], baseline: Point, knees: Sequence[Knee], ahead: Sequence[Point]
) -> list[tuple[str, Point]]:
    """Returns the advised points whose batch is not the baseline's, the best goodput first."""
    rated = eligible(points)
    named: list[tuple[str, Point | None]] = [("goodput", point) for point in ahead[:1]]
    fastest = max(rated, key=_rate, default=None)
    named.append(("fastest", fastest))
    if fastest is not None:
        knobs = {**fastest.knobs, **{knee.knob: knee.advised for knee in knees}}
        named.append(("knee", next((p for p in rated if p.knobs == knobs), None)))
    kept: dict[object, tuple[str, Point]] = {}
    own = batch_key(baseline.knobs)
    for label, point in named:
        if point is not None and batch_key(point.knobs) != own:
            kept.setdefault(batch_key(point.knobs), (label, point))
    return list(kept.values())


def _ahead(points: Sequence[Point], baseline: Point) -> list[Point]:
    """Returns the points that goodput would advise one after the other, one a batch, best first.

    Only ever smaller batches: over equally many samples a larger one takes fewer steps, so none is
    looked at again above one that learnt worse. It ends where a point has the baseline's batch or
    is not certainly worth more than the baseline: those need no run.
    """
    scale = noise_scale_of(record for point in points for record in point.records)
    if scale is None:
        return []
    ahead: list[Point] = []
    for worth in worths(points, baseline, scale):
        if worth.gain.lo <= 1 or batch_key(worth.point.knobs) == batch_key(baseline.knobs):
            break
        if not ahead or worth.point.samples_per_step < ahead[-1].samples_per_step:
            ahead.append(worth.point)
    return ahead


def _in_turn(
    ahead: Sequence[Point],
    runs: Sequence[LearningRun],
    check: tuple[float, int],
    measure: MeasureSettings,
    seed: int,
) -> tuple[tuple[LearningRun, ...], str]:
    """Returns those of goodput's points that have a run or time for one, and why no more.

    Args:
        ahead: what goodput advises, best first.
        runs: of the check.
        check: its seconds, and the samples of each run.
        measure: how many seconds it may all take.
        seed: of the sweep.
    """
    total_s, samples = check
    planned = {batch_key(knobs) for _, knobs, _ in runs}
    turn: list[LearningRun] = []
    num_more = 0
    for point in ahead:
        if batch_key(point.knobs) not in planned:
            num_more += 1
            total_s += samples / _rate(point)
            name = f"batch {point.samples_per_step} would be next"
            if num_more > MAX_FURTHER:
                return tuple(turn), f"{name}, but {MAX_FURTHER} more are run at most"
            if total_s > measure.converge_s:
                enough_s = math.ceil(total_s / 60) * 60
                return tuple(turn), f"{name} and takes measure.converge_s={enough_s}"
        turn.append((f"goodput, next in turn {len(turn)}", _with(point.knobs, BEST_RULE), seed))
    return tuple(turn), ""


def batch_key(knobs: Knobs) -> object:
    """Returns what losses follow from, the learning-rate rule aside."""
    return learning_key(_with(knobs, ""))


def _with(knobs: Knobs, rule: str) -> dict[str, KnobValue]:
    return {**knobs, "batch.lr_rule": rule}


def _rate(point: Point) -> float:
    return point.throughput.value if point.throughput else 0.0
