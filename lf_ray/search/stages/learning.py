"""The stage that trains: does a larger batch learn as well, and with which learning-rate rule?

The baseline with several seeds, then the batch that the sweep would advise under each rule, all
over equally many samples and with a schedule laid out for them. Loss is compared, not speed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lf_ray.analysis.knee import Knee
from lf_ray.analysis.points import Point, eligible
from lf_ray.analysis.staged.convergence import best_rule, learning_key, runs_of
from lf_ray.analysis.staged.goodput import best_worth, noise_scale_of, worths
from lf_ray.protocol import Budget, Knobs, KnobValue, OutcomeKind, Purpose, TrialRequest
from lf_ray.record.events import JournalEvent
from lf_ray.search.plan.decisions import Decision, Request, Rules, Stop, Wait
from lf_ray.search.plan.state import SweepState
from lf_ray.search.space import Space
from lf_ray.settings import MeasureLevel, MeasureSettings

BEST_RULE = "best"
"""Stands for the rule that the compared batch learnt best with; known when its runs are over."""
NOISE_STEPS = 12
_MAX_TRIES = 2
_LEAST_STEPS = 20
_NO_CAP_S = 7 * 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningPlan:
    """The runs of the stage.

    Attributes:
        runs: label, knobs and seed of each, in order.
        samples: that each run trains on.
        note: what is said of the plan: why it is short, or why there is none.
    """

    runs: tuple[tuple[str, Knobs, int], ...]
    samples: int
    note: str

    def to_plain(self) -> dict[str, Any]:
        """Returns it as JSON values, as the journal keeps it."""
        runs = [{"label": label, "knobs": dict(k), "seed": seed} for label, k, seed in self.runs]
        return {"runs": runs, "samples": self.samples, "note": self.note}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> "LearningPlan":
        """Returns what `to_plain` wrote."""
        runs = tuple((r["label"], dict(r["knobs"]), int(r["seed"])) for r in data["runs"])
        return cls(runs=runs, samples=int(data["samples"]), note=str(data["note"]))


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
    named = _candidates(points, baseline, knees)
    if not named:
        note = "every point advised has the baseline's batch: nothing computes something else"
        return LearningPlan(runs=(), samples=0, note=note)
    seconds, whole, runs = _whole_check(baseline, named, measure, lr_rules, seed)
    if seconds > measure.converge_s or measure.level is MeasureLevel.smoke:
        # The point that best.yaml would carry comes first.
        seconds, whole, runs = _whole_check(baseline, named[:1], measure, lr_rules, seed)
    if seconds <= measure.converge_s:
        note = f"{len(runs)} runs of {whole:,} samples, about {seconds / 60:.0f} min"
        return LearningPlan(runs=tuple(runs), samples=whole, note=note)
    steps = int(measure.converge_steps * measure.converge_s / seconds)
    note = (
        f"the whole check takes about {seconds / 60:.0f} min here and measure.converge_s="
        f"{measure.converge_s:g} allows {steps} of {measure.converge_steps} steps: no verdict "
        f"(measure.converge_s={math.ceil(seconds / 60) * 60} gives one)"
    )
    if steps < _LEAST_STEPS:
        return LearningPlan(runs=(), samples=0, note=note)
    samples = whole * steps // measure.converge_steps
    return LearningPlan(runs=tuple(runs), samples=samples, note=note)


def _whole_check(
    baseline: Point,
    named: Sequence[tuple[str, Point]],
    measure: MeasureSettings,
    lr_rules: Sequence[str],
    seed: int,
) -> tuple[float, int, list[tuple[str, Knobs, int]]]:
    """Returns the seconds, the samples a run and the runs of a check that gives a verdict.

    Every run has `converge_steps` at least, so the largest batch says how many samples.
    """
    runs = [("baseline", baseline.knobs, seed + index) for index in range(measure.converge_seeds)]
    first, *others = named
    runs += [(first[0], _with(first[1].knobs, rule), seed) for rule in lr_rules]
    runs += [(label, _with(point.knobs, BEST_RULE), seed) for label, point in others]
    rates = {learning_key(_with(p.knobs, "")): _rate(p) for p in (baseline, *(p for _, p in named))}
    largest = max(p.samples_per_step for p in (baseline, *(p for _, p in named)))
    whole = measure.converge_steps * largest
    seconds = sum(whole / rates[learning_key(_with(knobs, ""))] for _, knobs, _ in runs)
    return seconds, whole, runs


def _candidates(
    points: Sequence[Point], baseline: Point, knees: Sequence[Knee]
) -> list[tuple[str, Point]]:
    """Returns the advised points whose batch is not the baseline's, the best goodput first."""
    rated = eligible(points)
    scale = noise_scale_of(record for point in points for record in point.records)
    named: list[tuple[str, Point | None]] = []
    if scale is not None:
        best = best_worth(worths(points, baseline, scale), baseline)
        named.append(("goodput", best.point if best else None))
    fastest = max(rated, key=_rate, default=None)
    named.append(("fastest", fastest))
    if fastest is not None:
        knobs = {**fastest.knobs, **{knee.knob: knee.advised for knee in knees}}
        named.append(("knee", next((p for p in rated if p.knobs == knobs), None)))
    kept: dict[object, tuple[str, Point]] = {}
    own = learning_key(_with(baseline.knobs, ""))
    for label, point in named:
        if point is not None and learning_key(_with(point.knobs, "")) != own:
            kept.setdefault(learning_key(_with(point.knobs, "")), (label, point))
    return list(kept.values())


def _with(knobs: Knobs, rule: str) -> dict[str, KnobValue]:
    return {**knobs, "batch.lr_rule": rule}


def _rate(point: Point) -> float:
    return point.throughput.value if point.throughput else 0.0


class LearningPlanner:
    """Makes the runs of a plan, one after the other; each is tried twice at most.

    Args:
        space: of the whole sweep.
        num_ranks: that a step's samples are spread over.

    Attributes:
        state: books of this stage alone.
    """

    def __init__(self, space: Space, plan: LearningPlan, rules: Rules, num_ranks: int) -> None:
        self.rules = rules
        self.state = SweepState(Space(space.baseline, {}, {}))
        self._plan = plan
        self._num_ranks = num_ranks

    def observe(self, event: JournalEvent) -> None:
        """Takes an event of the stage in."""
        self.state.fold(event)

    def decide(self, now_wall_s: float) -> Decision:
        """Returns the next run, or why there are no more."""
        state = self.state
        if state.orphans:
            return Request(next(iter(state.orphans.values())), "was under way when interrupted")
        if not self._plan.runs:
            return Stop(self._plan.note, 0)
        if len(state.in_flight) >= self.rules.num_groups:
            return Wait("every group is busy")
        for index, (label, knobs, seed) in enumerate(self._plan.runs):
            tries = [f"c{index:03d}", *(f"c{index:03d}r{again}" for again in range(1, _MAX_TRIES))]
            started = [name for name in tries if name in state.requests]
            if any(name in state.in_flight for name in started):
                continue
            if len(started) < len(tries) and not any(self._came_back(name) for name in started):
                found = self._resolved(knobs)
                if found is None:
                    return Wait("the rules' runs come first")
                return Request(self._request(tries[len(started)], tries[0], found, seed), label)
        if state.in_flight:
            return Wait("the last runs are under way")
        return Stop(f"all {len(self._plan.runs)} training runs are done", 0)

    def _came_back(self, name: str) -> bool:
        """Returns whether a run needs no second try: it has losses, or can't have any."""
        records = [r for group in self.state.records.values() for r in group]
        record = next((item for item in records if item.request.id == name), None)
        if record is None:
            return False
        return bool(runs_of([record])) or record.outcome.kind is OutcomeKind.INFEASIBLE

    def _resolved(self, knobs: Knobs) -> Knobs | None:
        """Returns the knobs with a rule in place of `BEST_RULE`; None while it is not known."""
        if knobs.get("batch.lr_rule") != BEST_RULE:
            return knobs
        if self.state.in_flight:
            return None
        runs = runs_of([r for group in self.state.records.values() for r in group])
        baseline = self._plan.runs[0][1]
        by_rule: dict[str, list[Any]] = {}
        for run in runs:
            if learning_key(run.knobs) != learning_key(baseline):
                by_rule.setdefault(str(run.knobs["batch.lr_rule"]), []).append(run)
        return _with(knobs, best_rule(by_rule) or str(baseline["batch.lr_rule"]))

    def _request(self, name: str, point: str, knobs: Knobs, seed: int) -> TrialRequest:
        per_step = int(knobs["batch.per_gpu"]) * int(knobs["batch.accumulation"]) * self._num_ranks
        steps = max(1, self._plan.samples // per_step)
        base = knobs == self._plan.runs[0][1]
        return TrialRequest(
            id=name,
            knobs=dict(knobs),
            seed=seed,
            purpose=Purpose.SLICE,
            replicate_of=point if name != point else None,
            budget=Budget(
                min_steps=steps,
                max_steps=steps,
                max_s=_NO_CAP_S,
                target_frac=self.rules.measure.target_frac,
                delta_frac=self.rules.delta,
            ),
            deadlines=replace(self.rules.deadlines),
            noise_steps=NOISE_STEPS if base else 0,
            run_samples=self._plan.samples,
        )
