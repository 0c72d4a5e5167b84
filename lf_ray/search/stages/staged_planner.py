"""A planner of planners: one stage after the other, each from the last one's winner.

    search -> search -> ... -> all winners side by side -> training runs

Like the planner of a single sweep it is a pure function of the journal, the rules and the time.
Each stage has books of its own; in the journal its ids carry the stage's name ("graph.t003").
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from lf_ray.analysis.gain import gain_over
from lf_ray.protocol import Knobs, KnobValue, TrialRequest
from lf_ray.record.events import JournalEvent
from lf_ray.search.plan.decisions import Decision, Line, Proposer, Request, Rules, Stop, Wait
from lf_ray.search.plan.searching import lacks_second_visit
from lf_ray.search.plan.slicing import slice_knee, slice_order
from lf_ray.search.plan.state import SweepState
from lf_ray.search.planner import Outlook, Planner, exit_code
from lf_ray.search.space import Space, space_from_literal
from lf_ray.search.stages.learning import LearningPlanner
from lf_ray.search.stages.learning_plan import LearningPlan, learning_plan
from lf_ray.search.stages.names import brief, inner, outer
from lf_ray.search.stages.stage import Stage, StageKind
from lf_ray.search.stages.together import Side, TogetherPlanner, sides_of

FIRST_NOISE_STEPS = 6


class StagePlanner(Protocol):
    """Plans one stage."""

    @property
    def state(self) -> SweepState:
        """Returns the stage's books."""
        ...

    def observe(self, event: JournalEvent) -> None:
        """Takes an event of the stage in."""
        ...

    def decide(self, now_wall_s: float) -> Decision:
        """Returns what to do next."""
        ...


@dataclass(frozen=True, slots=True)
class _Won:
    """What a search ended with."""

    began: Knobs
    knobs: Knobs
    changed: Mapping[str, KnobValue]
    id: str
    reason: str


class StagedPlanner:
    """Folds a journal's events and says what comes next, stage by stage.

    Args:
        space: everything that varies, around the user's baseline.
        stages: in order.
        rules: of the whole sweep.
        num_ranks: of one group.

    Attributes:
        state: books of the search under way, or of the last one: what stands best, beside which
            baseline.
    """

    def __init__(
        self,
        space: Space,
        stages: Sequence[Stage],
        rules: Rules,
        proposer: Proposer,
        num_ranks: int,
    ) -> None:
        self.rules = rules
        self.state = SweepState(space)
        self._space = space
        self._stages = list(stages)
        self._proposer = proposer
        self._num_ranks = num_ranks
        self._all = SweepState(space)
        self._index = 0
        self._current: StagePlanner | None = None
        self._start: Knobs = space.canonical({})
        self._won: dict[str, Mapping[str, KnobValue]] = {}
        self._batch: SweepState | None = None
        self._gradients: Any = None

    def observe(self, event: JournalEvent) -> None:
        """Takes an event of the journal in."""
        self._all.fold(brief(event))
        if event.kind == "finished" and event.data["record"].get("gradients"):
            self._gradients = event.data["record"]["gradients"]
        if event.kind == "stage" and "stage" in event.data:
            self._turn(event)
        elif self._current is not None:
            told = self._gradients if not self._current.state.gradients else None
            self._current.observe(inner(event, self._stages[self._index].name, told))
            if event.kind in ("ended", "note") and self._current.state is not self.state:
                self.state.fold(event)
        elif event.kind in ("ended", "note"):
            self.state.fold(event)

    def decide(self, now_wall_s: float) -> Decision:
        """Returns what to do next. Asking twice gives the same answer."""
        if self._all.ended is not None:
            return Stop(*self._all.ended)
        minutes, began = self.rules.minutes, self._all.num_records > 0
        over = minutes is not None and self._all.elapsed_s(now_wall_s) > minutes * 60
        if over and began and not self._lacks_baseline():
            if self._all.in_flight:
                return Wait("sweep.minutes are used up; visits under way are awaited")
            return Stop(f"sweep.minutes={minutes:g} are used up", self._exit_code())
        if self._index >= len(self._stages):
            return Stop("all stages are done", self._exit_code())
        stage = self._stages[self._index]
        if self._current is None:
            return self._begin_line(stage)
        decision = self._current.decide(now_wall_s)
        if isinstance(decision, Stop):
            return self._ended(stage, decision)
        if isinstance(decision, Request):
            return Request(outer(self._asked(stage, decision.request), stage.name), decision.reason)
        if isinstance(decision, Line):
            return Line(decision.kind, outer(decision.payload, stage.name), decision.reason)
        return decision

    def _lacks_baseline(self) -> bool:
        """Returns whether nothing was measured and the baseline may be visited again."""
        done = self._all.counts()["completed"]
        return not done and self._current is not None and lacks_second_visit(self._current.state)

    def outlook(self, now_wall_s: float) -> Outlook:
        """Returns where the sweep stands; what later stages take is not known yet."""
        name = self._stages[min(self._index, len(self._stages) - 1)].name
        found = Outlook(
            phase=name,
            num_trials=self._all.num_trials,
            planned_trials=self.rules.trials or self._all.num_trials,
            num_visits=self._all.num_records,
            elapsed_s=self._all.elapsed_s(now_wall_s),
            left_s=None,
        )
        if isinstance(self._current, Planner):
            own = self._current.outlook(now_wall_s)
            return replace(found, phase=f"{name}: {own.phase}")
        return found

    def _exit_code(self) -> int:
        return exit_code(self.state)

    def _turn(self, event: JournalEvent) -> None:
        """Begins or ends a stage, as the journal says."""
        data = event.data
        self._index = int(data["index"])
        stage = self._stages[self._index]
        if data["status"] == "begun":
            self._current = self._planner(stage, data)
            if stage.kind is StageKind.SEARCH:
                self.state = self._current.state
                if stage.with_noise:
                    self._batch = self.state
            self._current.observe(JournalEvent(kind="note", wall_s=event.wall_s, data={}))
            return
        if data["status"] == "ended" and stage.kind is StageKind.SEARCH:
            if not self._won:
                # A baseline that did not fit has become one of half the batch.
                self._space = self._space.rebased(data["began"])
            self._start = dict(data["knobs"])
            self._won[stage.name] = dict(data["changed"])
        self._current = None
        self._index += 1

    def _planner(self, stage: Stage, data: Mapping[str, Any]) -> StagePlanner:
        if stage.kind is StageKind.TOGETHER:
            sides = [Side(label=item["label"], knobs=item["knobs"]) for item in data["sides"]]
            return TogetherPlanner(self._space, sides, stage.rules, stage.visits)
        if stage.kind is StageKind.LEARNING:
            plan = LearningPlan.from_plain(data["plan"])
            return LearningPlanner(self._space, plan, stage.rules, self._num_ranks)
        space = space_from_literal(stage.literal, data["knobs"])
        return Planner(space, stage.rules, self._proposer)

    def _begin_line(self, stage: Stage) -> Line:
        payload: dict[str, Any] = {
            "stage": stage.name,
            "does": str(stage.kind),
            "index": self._index,
            "status": "dead" if stage.dead else "begun",
            "knobs": dict(self._start),
        }
        searches = stage.kind is StageKind.SEARCH
        if searches:
            payload["space"] = space_from_literal(stage.literal, self._start).to_plain()
        if stage.dead:
            payload["reason"] = stage.dead
            how = "dead here" if searches else "left out"
            return Line("stage", payload, f"stage {stage.name}: {how}, {stage.dead}")
        words = f"stage {stage.name} begins"
        if searches:
            words += f": {', '.join(stage.literal)}"
        elif stage.kind is StageKind.TOGETHER:
            sides = sides_of(self._space, self._won)
            payload["sides"] = [{"label": s.label, "knobs": dict(s.knobs)} for s in sides]
        else:
            plan = self._learning_plan(stage)
            payload["plan"] = plan.to_plain()
            words += f": {plan.note}"
        payload["reason"] = words
        return Line("stage", payload, words)

    def _learning_plan(self, stage: Stage) -> LearningPlan:
        state = self._batch
        if state is None:
            return LearningPlan(runs=(), samples=0, note="no batch was measured")
        best = state.best
        knees = []
        if best is not None and state.phase == "done":
            anchor = state.points[str(state.anchor)]
            knees = [slice_knee(state, stage.rules, anchor, k) for k in slice_order(state, anchor)]
        plan = learning_plan(
            list(state.points.values()),
            state.baseline,
            knees,
            stage.rules.measure,
            stage.lr_rules,
            stage.rules.seed,
        )
        # Of several searches the sides that were compared are on offer, not goodput's next one.
        several = sum(item.kind is StageKind.SEARCH for item in self._stages) > 1
        return replace(plan, in_turn=(), left_out="") if several else plan

    def _ended(self, stage: Stage, stop: Stop) -> Decision:
        """Returns the line that ends a stage, or the sweep's end where nothing can be compared."""
        assert self._current is not None
        if self.rules.minutes is not None:
            share = stop.reason.replace("sweep.minutes=", "its share of sweep.minutes, ")
            stop = replace(stop, reason=share)
        payload: dict[str, Any] = {
            "stage": stage.name,
            "does": str(stage.kind),
            "index": self._index,
            "status": "ended",
            "reason": stop.reason,
        }
        words = f"stage {stage.name} is over: {stop.reason}"
        if stage.kind is StageKind.SEARCH:
            if not self._won and not _is_measured(self._current.state):
                return replace(stop, reason=f"stage {stage.name}, {stop.reason}")
            won = _winner(self._current.state, self._start)
            payload |= {"knobs": dict(won.knobs), "changed": dict(won.changed)}
            payload["began"] = dict(won.began)
            payload |= {"winner": f"{stage.name}.{won.id}" if won.id else None, "won": won.reason}
            words = f"stage {stage.name} is over: {won.reason}"
        return Line("stage", payload, words)

    def _asked(self, stage: Stage, request: TrialRequest) -> TrialRequest:
        """Returns the request, with the gradient noise asked of a batch's first visit."""
        first = stage.with_noise and request.replicate_of is None
        return replace(request, noise_steps=FIRST_NOISE_STEPS) if first else request


def _is_measured(state: SweepState) -> bool:
    baseline = state.baseline
    return baseline is not None and baseline.id in {point.id for point in state.eligible}


def _winner(state: SweepState, start: Knobs) -> _Won:
    """Returns the best point where it is certainly faster than where the stage began, else that."""
    best, baseline = state.best, state.baseline
    if best is None or baseline is None or baseline.throughput is None:
        return _Won(start, start, {}, "", "nothing was measured")
    base_knobs = state.requests[baseline.id].knobs
    if best.id == baseline.id:
        return _Won(
            base_knobs, base_knobs, {}, baseline.id, "nothing is faster than where it began"
        )
    gain = gain_over(baseline, best)
    words = f"{best.id} {gain.value:.3f}x (95 %: {gain.lo:.3f} to {gain.hi:.3f})"
    if gain.lo <= 1:
        return _Won(base_knobs, base_knobs, {}, baseline.id, f"{words} is not certainly faster")
    changed = {k: v for k, v in best.knobs.items() if v != base_knobs[k]}
    return _Won(base_knobs, best.knobs, changed, best.id, f"{words} goes on")
