"""What to do next in a sweep, and why: a pure function of the journal, the rules and the time.

    baseline -> article's setting and enqueued points -> rounds -> near-ties and winner again ->
    slices from the best, and the joint knee -> stop

Holds no clock, touches no worker and no file. Two planners that were given the same events give
the same decision, which is what makes a resumed sweep go on as if nothing had happened.
"""

import math
from dataclasses import dataclass

from lf_ray.protocol import OutcomeKind
from lf_ray.record.events import JournalEvent
from lf_ray.search.plan.audit import failed_record
from lf_ray.search.plan.decisions import (
    Decision,
    Line,
    Proposer,
    Request,
    Rules,
    Stop,
    Wait,
)
from lf_ray.search.plan.remeasure import remeasure_decision
from lf_ray.search.plan.searching import (
    baseline_decision,
    lacks_second_visit,
    planned_trials,
    search_decision,
)
from lf_ray.search.plan.slicing import slices_decision, visits_left
from lf_ray.search.plan.state import MAX_STARTS, SweepState
from lf_ray.search.space import Space

PHASE_WORDS = {"search": "search", "remeasure": "re-measure", "slices": "slices", "done": "done"}


@dataclass(frozen=True, slots=True)
class Outlook:
    """Where a sweep stands, for people.

    Attributes:
        planned_trials: how many trials there will be, as far as is known.
        left_s: estimated seconds to the end; None before two visits are back.
    """

    phase: str
    num_trials: int
    planned_trials: int
    num_visits: int
    elapsed_s: float
    left_s: float | None


class Planner:
    """Folds a journal's events and says what comes next."""

    def __init__(self, space: Space, rules: Rules, proposer: Proposer) -> None:
        self.rules = rules
        self.state = SweepState(space)
        self._proposer = proposer

    def observe(self, event: JournalEvent) -> None:
        """Takes an event of the journal in."""
        self.state.fold(event)

    def decide(self, now_wall_s: float) -> Decision:
        """Returns what to do next. Asking twice gives the same answer."""
        state, rules = self.state, self.rules
        if state.ended is not None:
            return Stop(*state.ended)
        hurry = self._hurry_line(state.elapsed_s(now_wall_s))
        if hurry is not None:
            return hurry
        decision = self._decide(state.elapsed_s(now_wall_s))
        if isinstance(decision, Stop):
            if state.in_flight:
                return Wait(f"{decision.reason}; visits under way are awaited")
            return Stop(decision.reason, decision.exit_code or exit_code(state))
        if isinstance(decision, Request) and len(state.in_flight) >= rules.num_groups:
            return Wait("every group is busy")
        return decision

    @property
    def rules_now(self) -> Rules:
        """Returns the rules, those for a sweep short of time where it has been found to be so."""
        return self.rules.hurried() if self.state.hurried else self.rules

    def _hurry_line(self, elapsed_s: float) -> Line | None:
        soft_s = self.rules.soft_s
        if soft_s is None or elapsed_s <= soft_s or self.state.hurried or not self.state.points:
            return None
        text = (
            f"{soft_s:.0f} s are over: from here on one visit each, and fewer values a slice"
            " (sweep.minutes or measure=standard give it more time)"
        )
        return Line("note", {"text": text, "hurried": True}, text)

    def _decide(self, elapsed_s: float) -> Decision:
        state, rules = self.state, self.rules_now
        kind, count = state.streak
        if count >= rules.max_failures:
            return Stop(f"{count} failures in a row of kind {kind}: {state.streak_reason}", 0)
        over = self._time_reason(elapsed_s)
        if over and not lacks_second_visit(state):
            return Stop(over, 0)
        if state.orphans:
            return again_decision(state)
        baseline = baseline_decision(state, rules)
        if baseline is not None:
            return baseline
        if state.phase == "search":
            return search_decision(state, rules, self._proposer, elapsed_s)
        if state.phase == "done":
            return Stop(state.phase_reason, 0)
        if state.phase == "remeasure":
            return remeasure_decision(state, rules)
        return slices_decision(state, rules)

    def _time_reason(self, elapsed_s: float) -> str:
        minutes = self.rules.minutes
        if minutes is None or not self.state.points:
            return ""
        visit_s = self._visit_s()
        if elapsed_s + (visit_s if math.isfinite(visit_s) else 0.0) > minutes * 60:
            return f"sweep.minutes={minutes:g} are used up"
        return ""

    def _visit_s(self) -> float:
        """Returns what a visit takes, everything included; the first one pays for the start."""
        visits = sum(len(group) for group in self.state.records.values())
        if visits < 2:
            return math.nan
        return (self.state.active_s - self.state.opened_s) / (visits - 1)

    def outlook(self, now_wall_s: float) -> Outlook:
        """Returns where the sweep stands and how long it may still take."""
        state, rules = self.state, self.rules_now
        planned = max(rules.trials or planned_trials(state.space), state.num_trials)
        if state.phase != "search":
            planned = state.num_trials
        visits = sum(len(group) for group in state.records.values())
        elapsed_s = state.elapsed_s(now_wall_s)
        left_s = None
        if visits > 1:
            left_s = _visits_left(state, rules, planned) * self._visit_s() / rules.num_groups
            if rules.minutes is not None:
                left_s = min(left_s, max(0.0, rules.minutes * 60 - elapsed_s))
        return Outlook(
            phase=PHASE_WORDS[state.phase],
            num_trials=state.num_trials,
            planned_trials=planned,
            num_visits=visits,
            elapsed_s=elapsed_s,
            left_s=left_s,
        )


def exit_code(state: SweepState) -> int:
    """Returns 0 where the baseline is measured and not every other trial failed, else 1.

    Measured is gated, where any point of the sweep is.
    """
    baseline = state.baseline
    if baseline is None or baseline.id not in {point.id for point in state.eligible}:
        return 1
    bad = (OutcomeKind.FAILED, OutcomeKind.INVALID)
    others = [
        point
        for point in state.points.values()
        if point.id != baseline.id and state.requests[point.id].purpose == "search"
    ]
    return int(bool(others) and all(point.outcome.kind in bad for point in others))


def again_decision(state: SweepState) -> Decision:
    """Returns a request that was under way when the sweep was interrupted, once more."""
    request = next(iter(state.orphans.values()))
    if state.starts[request.id] >= MAX_STARTS:
        reason = f"was under way each of the {MAX_STARTS} times that the sweep was interrupted"
        record = failed_record(request, reason, "interrupted")
        return Line("finished", {"record": record}, f"{request.id} {reason}")
    return Request(request, "was under way when the sweep was interrupted")


def _visits_left(state: SweepState, rules: Rules, planned_trials: int) -> float:
    """Returns a rough count of the visits still to come."""
    if state.phase == "done":
        return 0.0
    if state.phase == "slices":
        return visits_left(state, rules)
    left = max(0, planned_trials - state.num_trials) if state.phase == "search" else 0
    widths = [min(7, len(values) or 9) for values in state.space.choices.values()]
    return left + rules.num_rivals + sum(widths)
