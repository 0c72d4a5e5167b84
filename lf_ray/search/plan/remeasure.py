"""The re-measuring phase: near-ties of the best are visited again, interleaved, then the winner.

The highest of many single readings is a lucky one; a winner is called by readings that were taken
after it was chosen, side by side with its rivals (A B B A), so that a slow drift hits all alike.
"""

import math
from statistics import fmean, stdev

from lf_ray.analysis.points import Point
from lf_ray.protocol import ChangeCost, Purpose, change_cost
from lf_ray.search.plan.decisions import Decision, Line, Rules, Wait
from lf_ray.search.plan.searching import baseline_visit
from lf_ray.search.plan.state import SweepState
from lf_ray.search.plan.visits import (
    MAX_FAILURES,
    certainly_below,
    given_up,
    is_glance,
    revisit,
    throughput,
)

# Visits of the best point and of the baseline, at least: the gain is their ratio.
MIN_ANSWER_VISITS = 3


def remeasure_decision(state: SweepState, rules: Rules) -> Decision:
    """Returns the next visit of a near-tie, or the line that starts the slices."""
    if state.in_flight:
        return Wait("near-ties are visited one after the other, so that they can be compared")
    again = baseline_visit(state, rules) or tie_visit(state, rules)
    if again is not None:
        return again
    best = near_ties(state, rules)[0]
    again = winner_visit(state, rules, best)
    if again is not None:
        return again
    value = throughput(best)
    reason = f"{best.id} is the fastest re-measured ({value.value:.4g} samples/s)"
    return Line("stage", {"phase": "slices", "best": best.id, "reason": reason}, reason)


def winner_visit(state: SweepState, rules: Rules, best: Point) -> Decision | None:
    """Returns the next visit that a point needs before it may be called best, None once it had all.

    One of them is long. The baseline is seen again beside it, because the gain rests on both.
    """
    if best.id != state.baseline_id and not given_up(state, best.id):
        steps = rules.measure.winner_steps
        if not any(r.budget.min_steps >= steps for r in state.started_of(best.id)[1:]):
            reason = f"the winner once more, over at least {steps} steps"
            return revisit(state, rules, best.id, reason, min_steps=steps)
    baseline = state.baseline
    assert baseline is not None
    if _lacks_full(state, rules, baseline.id) and not given_up(state, baseline.id):
        return revisit(state, rules, baseline.id, "the baseline, so far only glanced at, in full")
    compared = {best.id: "the winner", baseline.id: "the baseline, which it is compared with,"}
    for point in (best, baseline):
        reason = _unclear(state, rules, point)
        if reason and not given_up(state, point.id):
            return revisit(state, rules, point.id, f"{compared[point.id]} once more: {reason}")
    return None


def _lacks_full(state: SweepState, rules: Rules, point_id: str) -> bool:
    """Returns whether a point was only glanced at, or its one full visit came to nothing."""
    full = [r.id for r in state.started_of(point_id) if not is_glance(rules, r)]
    settled = {visit.id for visit in state.points[point_id].visits}
    return len(full) < MAX_FAILURES and settled.isdisjoint(full)


def _unclear(state: SweepState, rules: Rules, point: Point) -> str:
    """Returns why a point that the answer rests on needs another visit, empty where it does not."""
    num_visits = len(state.started_of(point.id))
    apart_frac = _apart_frac(point)
    least = max(MIN_ANSWER_VISITS, rules.slice_visits + 1)
    if num_visits < least:
        return f"visit {num_visits + 1} of {least}"
    if apart_frac > rules.measure.target_frac and num_visits < rules.winner_visits:
        return f"its visits leave +-{apart_frac:.1%}"
    return ""


def _apart_frac(point: Point) -> float:
    """Returns half the interval that a point's own visits leave, from their spread alone."""
    values = [visit.throughput.value for visit in point.visits]
    if len(values) < 2:
        return 0.0
    return 2 * stdev(values) / math.sqrt(len(values)) / fmean(values)


def tie_visit(state: SweepState, rules: Rules) -> Decision | None:
    """Returns the next visit of the near-ties of the best, None once all had their share."""
    rivals = near_ties(state, rules)
    if len(rivals) < 2 or _replicates(state) >= _most_replicates(rules):
        return None
    short = [p.id for p in rivals if _num_readings(state, p.id) < rules.slice_visits + 1]
    if not short:
        return None
    names = ", ".join(point.id for point in rivals)
    return revisit(state, rules, abba(state, short), f"near-tie of {names}")


def near_ties(state: SweepState, rules: Rules) -> list[Point]:
    """Returns the best point and those that may be as fast, fastest first, the best ahead.

    One that needs other workers is a rival only where it may be faster by more than what counts as
    equally fast: a start for every visit would buy nothing else.
    """
    best = state.best
    assert best is not None
    ranked = sorted(state.eligible, key=lambda p: throughput(p).value, reverse=True)
    others = [
        point
        for point in ranked
        if point.id != best.id
        and not given_up(state, point.id)
        and not certainly_below(point, best)
        and (_same_workers(point, best) or _may_beat(point, best, rules.delta))
    ]
    return [best, *others[: rules.num_rivals - 1]]


def _same_workers(point: Point, best: Point) -> bool:
    return change_cost(best.knobs, point.knobs) is not ChangeCost.RESTART


def _may_beat(point: Point, best: Point, delta: float) -> bool:
    return throughput(point).hi > (1 + delta) * throughput(best).value


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
