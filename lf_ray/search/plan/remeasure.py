"""The re-measuring phase: near-ties of the best are visited again, interleaved, then the winner.

The highest of many single readings is a lucky one; a winner is called by readings that were taken
after it was chosen, side by side with its rivals (A B B A), so that a slow drift hits all alike.
"""

from lf_ray.analysis.points import Point
from lf_ray.protocol import Purpose
from lf_ray.search.plan.decisions import Decision, Line, Rules, Wait
from lf_ray.search.plan.searching import baseline_due
from lf_ray.search.plan.state import SweepState
from lf_ray.search.plan.visits import certainly_below, given_up, revisit, throughput


def remeasure_decision(state: SweepState, rules: Rules) -> Decision:
    """Returns the next visit of a near-tie, or the line that starts the slices."""
    if state.in_flight:
        return Wait("near-ties are visited one after the other, so that they can be compared")
    due = baseline_due(state, rules)
    if due:
        return revisit(state, rules, due, "the baseline again, to see drift")
    rivals = near_ties(state, rules)
    wanted = rules.slice_visits + 1
    if len(rivals) > 1 and _replicates(state) < _most_replicates(rules):
        short = [p.id for p in rivals if _num_readings(state, p.id) < wanted]
        if short:
            chosen = abba(state, short)
            names = ", ".join(point.id for point in rivals)
            return revisit(state, rules, chosen, f"near-tie of {names}")
    best = rivals[0]
    again = winner_visit(state, rules, best)
    if again is not None:
        return again
    value = throughput(best)
    reason = f"{best.id} is the fastest re-measured ({value.value:.4g} samples/s)"
    return Line("stage", {"phase": "slices", "best": best.id, "reason": reason}, reason)


def winner_visit(state: SweepState, rules: Rules, best: Point) -> Decision | None:
    """Returns the long visit that a point needs before it may be called best, None once it had it.

    The baseline needs none: nothing new is claimed of it.
    """
    steps = rules.measure.winner_steps
    had = any(request.budget.min_steps >= steps for request in state.started_of(best.id)[1:])
    if had or best.id == state.baseline_id or given_up(state, best.id):
        return None
    reason = f"the winner once more, over at least {steps} steps"
    return revisit(state, rules, best.id, reason, min_steps=steps)


def near_ties(state: SweepState, rules: Rules) -> list[Point]:
    """Returns the best point and those that may be as fast, fastest first, the best ahead."""
    best = state.best
    assert best is not None
    ranked = sorted(state.eligible, key=lambda p: throughput(p).value, reverse=True)
    others = [
        point
        for point in ranked
        if point.id != best.id
        and not given_up(state, point.id)
        and not certainly_below(point, best)
    ]
    return [best, *others[: rules.num_rivals - 1]]


def abba(state: SweepState, point_ids: list[str]) -> str:
    """Returns which of the points is visited next: the least visited, to and fro over the row."""
    counts = {name: _num_readings(state, name) for name in point_ids}
    least = min(counts.values())
    row = sorted(name for name, count in counts.items() if count == least)
    return row[0] if least % 2 else row[-1]


def _num_readings(state: SweepState, point_id: str) -> int:
    """Returns the requests that visited a point, come back or not."""
    return len(state.started_of(point_id))


def _replicates(state: SweepState) -> int:
    return sum(
        request.purpose is Purpose.REPLICATE and request.replicate_of != state.baseline_id
        for request in state.requests.values()
    )


def _most_replicates(rules: Rules) -> int:
    return 2 * rules.num_rivals * rules.slice_visits
