"""What a full grid visits next: every point once, then the upper quarter again, interleaved.

A searcher sorts points and stops early; a table on which searchers are compared has to know what
they leave out. So nothing here is raced, and nothing is left out but what can't tell anything:
points of equal effect, and points at least as large as one that did not fit.
"""

import dataclasses
import math

from lf_ray.record.events import JournalEvent
from lf_ray.search.plan.decisions import Decision, Line, Request, Rules, Stop, Wait
from lf_ray.search.plan.searching import baseline_decision, baseline_visit, lacks_second_visit
from lf_ray.search.plan.state import SweepState
from lf_ray.search.plan.visits import due_for_retry, given_up, revisit, trial
from lf_ray.search.planner import Outlook, again_decision, exit_code
from lf_ray.search.space import Space, point_key

VISITS = 3
"""Of each point of the upper quarter."""
UPPER_SHARE = 0.25
BASELINE_EVERY = 24


class GridPlanner:
    """Folds a journal's events and says which point of the grid comes next.

    Args:
        space: lists only; the first knob changes most rarely, so the dearest change comes first.
        rules: of their limits `minutes` alone counts.
    """

    def __init__(self, space: Space, rules: Rules) -> None:
        self.rules = dataclasses.replace(rules, baseline_every=BASELINE_EVERY)
        self.state = SweepState(space)
        self._points = list(space.points())

    def observe(self, event: JournalEvent) -> None:
        """Takes an event of the journal in."""
        self.state.fold(event)

    def decide(self, now_wall_s: float) -> Decision:
        """Returns what to do next."""
        state = self.state
        if state.ended is not None:
            return Stop(*state.ended)
        decision = self._decide(state.elapsed_s(now_wall_s))
        if isinstance(decision, Stop) and state.in_flight:
            return Wait(f"{decision.reason}; visits under way are awaited")
        if isinstance(decision, Request) and len(state.in_flight) >= self.rules.num_groups:
            return Wait("every group is busy")
        return decision

    def _decide(self, elapsed_s: float) -> Decision:
        state, rules = self.state, self.rules
        kind, count = state.streak
        if count >= rules.max_failures:
            return Stop(f"{count} failures in a row of kind {kind}: {state.streak_reason}", 1)
        minutes = rules.minutes
        over = minutes is not None and elapsed_s > minutes * 60
        if over and not lacks_second_visit(state):
            used = f"sweep.minutes={minutes:g} are used up"
            return self._end(f"{used}; the same words, more minutes and resume=<id> go on")
        if state.orphans:
            return again_decision(state)
        needed = baseline_decision(state, rules)
        if isinstance(needed, Request):
            return self._whole(needed)
        decision = needed or self._untried()
        if decision is not None:
            return decision
        for point_id in due_for_retry(state):
            reason = state.points[point_id].outcome.reason
            return self._whole(revisit(state, rules, point_id, f"once more after: {reason}"))
        if state.in_flight:
            return Wait("the upper quarter is known once every point has been visited")
        return self._upper_visit() or self._end("every point of the grid has been visited")

    def _untried(self) -> Decision | None:
        """Returns the next point that was never visited, or why it need not be."""
        state = self.state
        settled = {point_key(point.knobs) for point in state.dead}
        for knobs in self._points:
            if point_key(knobs) in settled or state.point_at(knobs):
                continue
            known = state.ruled_out(knobs)
            if known:
                same_as, reason = known
                return Line("dead", {"knobs": knobs, "same_as": same_as, "reason": reason}, reason)
            again = baseline_visit(state, self.rules)
            return self._whole(again or trial(state, self.rules, knobs, "the grid's next point"))
        return None

    def _upper_visit(self) -> Request | None:
        """Returns the next visit of the upper quarter: down the ranking, then up again."""
        state = self.state
        ranked = self.upper_quarter()
        for turn in range(1, VISITS):
            for point_id in ranked if turn % 2 else reversed(ranked):
                if state.num_visits(point_id) <= turn and not given_up(state, point_id):
                    reason = f"the upper quarter, visit {turn + 1} of {VISITS}"
                    return self._whole(revisit(state, self.rules, point_id, reason))
        return None

    def upper_quarter(self) -> list[str]:
        """Returns the ids of the fastest quarter by first visits, which later ones don't change."""
        firsts = {
            point.id: point.visits[0].throughput.value
            for point in self.state.points.values()
            if point.visits
        }
        ranked = sorted(firsts, key=lambda name: firsts[name], reverse=True)
        return ranked[: math.ceil(len(ranked) * UPPER_SHARE)]

    def _whole(self, asked: Request) -> Request:
        """Returns the request without a race or a glance: a table wants the steps of all points."""
        measure, budget = self.rules.measure, asked.request.budget
        coarse_frac = max(measure.target_frac, self.rules.coarse_frac)
        whole = dataclasses.replace(
            budget,
            incumbent_samples_per_s=None,
            max_steps=max(budget.max_steps, measure.max_steps),
            target_frac=min(budget.target_frac, coarse_frac),
        )
        return Request(dataclasses.replace(asked.request, budget=whole), asked.reason)

    def _end(self, reason: str) -> Stop:
        return Stop(reason, exit_code(self.state))

    def outlook(self, now_wall_s: float) -> Outlook:
        """Returns where the grid stands and how long it may still take."""
        state = self.state
        visits = sum(len(group) for group in state.records.values())
        elapsed_s = state.elapsed_s(now_wall_s)
        settled = len(state.points) + len(state.dead)
        left = max(0, len(self._points) - settled)
        again = math.ceil((len(state.points) + left) * UPPER_SHARE) * (VISITS - 1)
        left += max(0, again - max(0, visits - len(state.points)))
        per_visit_s = (state.active_s - state.opened_s) / max(1, visits - 1)
        left_s = left * per_visit_s if visits > 1 else None
        if left_s is not None and self.rules.minutes is not None:
            left_s = min(left_s, max(0.0, self.rules.minutes * 60 - elapsed_s))
        return Outlook(
            phase="grid",
            num_trials=state.num_trials,
            planned_trials=max(state.num_trials, len(self._points) - len(state.dead)),
            num_visits=visits,
            elapsed_s=elapsed_s,
            left_s=left_s,
        )
