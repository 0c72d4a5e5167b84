"""The slices: from the best point one knob after the other walks its ladder, the others held.

Economical: points of the search count as visits, a value that is certainly slower is not visited
again, and a long ladder is walked coarsely first, then finely beside the knee.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lf_ray.analysis.knee import Knee, KneeStatus, knee_estimate, knee_index
from lf_ray.analysis.points import Point
from lf_ray.analysis.slices import cheapest_first, in_words, slice_of
from lf_ray.protocol import ChangeCost, Knobs, KnobValue, Purpose, change_cost
from lf_ray.search.ladder import coarse
from lf_ray.search.plan.decisions import Decision, Line, Rules, Wait
from lf_ray.search.plan.remeasure import tie_visit, winner_visit
from lf_ray.search.plan.searching import baseline_visit
from lf_ray.search.plan.state import SweepState
from lf_ray.search.plan.visits import certainly_below, given_up, revisit, slice_visit, throughput

_FEWER_VALUES = {"overlap.ratio": 1}
_SURE_ENOUGH = 0.9
MAX_MOVES_PER_KNOB = 2
_VISITS_PER_VALUE = 1.3
_COST_ORDER = list(ChangeCost)


def slices_decision(state: SweepState, rules: Rules) -> Decision:
    """Returns the next visit of the slices, or why the sweep is over."""
    if len(state.in_flight) >= rules.num_groups:
        return Wait("every group is busy")
    anchor = state.points[str(state.anchor)]
    again = baseline_visit(state, rules)
    for knob in slice_order(state, anchor):
        step = _slice_step(state, rules, anchor, knob)
        if step is None and not state.in_flight:
            step = _moved_line(state, anchor)
        if step is not None:
            return again if again is not None and not isinstance(step, Line) else step
    if state.in_flight:
        return Wait("the last visits of the slices are under way")
    return _joint_step(state, rules, anchor) or _end(state, rules, anchor)


def slice_order(state: SweepState, anchor: Point) -> list[str]:
    """Returns the knobs that have a slice at the best point, those that are cheap to turn first."""
    names = [
        name
        for name, values in state.space.choices.items()
        if len(values) > 1 and state.space.active(name, anchor.knobs)
    ]

    def cost(name: str) -> int:
        values = state.space.choices[name]
        other = next(value for value in values if value != anchor.knobs[name])
        return _COST_ORDER.index(change_cost(anchor.knobs, {**anchor.knobs, name: other}))

    return sorted(names, key=cost)


def measured_ladder(state: SweepState, anchor: Point, knob: str) -> list[KnobValue]:
    """Returns the ladder values of a slice of which something is known, cheapest first."""
    return [value for value in _ladder(state, anchor, knob) if _known(state, anchor, knob, value)]


def slice_knee(state: SweepState, rules: Rules, anchor: Point, knob: str) -> Knee:
    """Returns what the slice of a knob says so far."""
    key = (anchor.id, knob, state.num_records, len(state.dead))
    if key not in state.knees:
        state.knees[key] = _estimate(state, rules, anchor, knob)
    return state.knees[key]


def _estimate(state: SweepState, rules: Rules, anchor: Point, knob: str) -> Knee:
    slice_ = slice_of(
        list(state.points.values()),
        anchor,
        knob,
        measured_ladder(state, anchor, knob),
        baseline_value=state.space.baseline[knob],
        dead=state.dead,
    )
    return knee_estimate(slice_, delta=rules.delta, seed=rules.seed)


def _ladder(state: SweepState, anchor: Point, knob: str) -> list[KnobValue]:
    return cheapest_first(knob, [*state.space.choices[knob], anchor.knobs[knob]])


def _at(state: SweepState, anchor: Point, knob: str, value: KnobValue) -> Knobs:
    return state.space.canonical({**anchor.knobs, knob: value})


def _stands_for(state: SweepState, anchor: Point, knob: str, value: KnobValue) -> str | None:
    """Returns the id of the started point that stands for a value of the slice, if there is one."""
    knobs = _at(state, anchor, knob, value)
    dead = (item.same_as for item in state.dead if item.knobs == knobs)
    return state.point_at(knobs) or next(dead, None)


def _known(state: SweepState, anchor: Point, knob: str, value: KnobValue) -> bool:
    """Returns whether anything came of the point that stands for a value of the slice."""
    return _stands_for(state, anchor, knob, value) in state.points


def _slice_step(state: SweepState, rules: Rules, anchor: Point, knob: str) -> Decision | None:
    ladder = _ladder(state, anchor, knob)
    dead = _dead_line(state, anchor, knob, ladder)
    if dead:
        return dead
    plan = _plan(state, rules, anchor, knob, ladder)
    step = _visit_step(state, rules, anchor, knob, plan)
    if step is not None or state.in_flight:
        return step
    fine = _fine_values(state, rules, anchor, knob, ladder)
    return _visit_step(state, rules, anchor, knob, fine) if fine else None


def _dead_line(
    state: SweepState, anchor: Point, knob: str, ladder: Sequence[KnobValue]
) -> Line | None:
    """Returns the line for a value that needs no visit, because its outcome is known already."""
    for value in ladder:
        knobs = _at(state, anchor, knob, value)
        if state.point_at(knobs) or any(item.knobs == knobs for item in state.dead):
            continue
        known = state.ruled_out(knobs)
        if known and known[0] in state.requests:
            same_as = state.requests[known[0]].replicate_of or known[0]
            payload = {"knobs": dict(knobs), "same_as": same_as, "reason": known[1]}
            return Line("dead", payload, f"slice of {knob}: {in_words(knob, value)} is {known[1]}")
    return None


def _plan(
    state: SweepState, rules: Rules, anchor: Point, knob: str, ladder: Sequence[KnobValue]
) -> list[KnobValue]:
    """Returns the values that the slice visits first, one for each that differs in effect."""
    distinct: dict[str, KnobValue] = {}
    for value in ladder:
        knobs = _at(state, anchor, knob, value)
        effect = state.effects.key(knobs)
        if effect not in distinct or _stands_for(state, anchor, knob, value):
            distinct[effect] = value
    own = state.effects.key(anchor.knobs)
    distinct[own] = anchor.knobs[knob]
    values = tuple(distinct.values())
    keep = {anchor.knobs[knob]}
    keep |= {value for value in values if _num_readings(state, anchor, knob, value)}
    return coarse(values, keep, rules.slice_values - _FEWER_VALUES.get(knob, 0))


def _visit_step(
    state: SweepState, rules: Rules, anchor: Point, knob: str, plan: Sequence[KnobValue]
) -> Decision | None:
    """Returns the next visit: all values once, then to and fro those that are not clear yet."""
    open_values = [
        value
        for value in plan
        if (count := _num_readings(state, anchor, knob, value)) < rules.slice_visits
        and not (count and _is_clear(state, rules, anchor, knob, value))
    ]
    if not open_values:
        return None
    least = min(_num_readings(state, anchor, knob, value) for value in open_values)
    if least and not state.in_flight and _is_resolved(state, rules, anchor, knob):
        return None
    row = [v for v in open_values if _num_readings(state, anchor, knob, v) == least]
    value = row[-1] if least % 2 else row[0]
    reason = f"slice of {knob} at {in_words(knob, value)}, visit {least + 1}"
    known = _stands_for(state, anchor, knob, value)
    if known:
        return revisit(state, rules, known, reason, Purpose.SLICE)
    return slice_visit(state, rules, _at(state, anchor, knob, value), reason)


def _num_readings(state: SweepState, anchor: Point, knob: str, value: KnobValue) -> int:
    """Returns the visits of a slice's value, come back or not."""
    known = _stands_for(state, anchor, knob, value)
    return len(state.started_of(known)) if known else 0


def _is_clear(state: SweepState, rules: Rules, anchor: Point, knob: str, value: KnobValue) -> bool:
    """Returns whether another visit of the value can't change what the slice says."""
    known = _stands_for(state, anchor, knob, value)
    if known is None or known == anchor.id:
        return False
    if given_up(state, known):
        return True
    point = state.points.get(known)
    if point is None or not point.visits:
        return False
    return certainly_below(point, anchor, 1 - rules.delta)


def _is_resolved(state: SweepState, rules: Rules, anchor: Point, knob: str) -> bool:
    knee = slice_knee(state, rules, anchor, knob)
    settled = (KneeStatus.RESOLVED, KneeStatus.FLAT, KneeStatus.EDGE)
    return knee.status in settled and knee.confidence_frac >= _SURE_ENOUGH


def _fine_values(
    state: SweepState, rules: Rules, anchor: Point, knob: str, ladder: Sequence[KnobValue]
) -> list[KnobValue]:
    """Returns the values left out so far between the knee and the next cheaper one measured."""
    known = [value for value in ladder if _known(state, anchor, knob, value)]
    rates = np.array([_rate(state, anchor, knob, value) for value in known])
    place = knee_index(rates, known.index(anchor.knobs[knob]), rules.delta)
    if place == 0:
        return []
    between = ladder[ladder.index(known[place - 1]) + 1 : ladder.index(known[place])]
    return list(reversed(between))


def _rate(state: SweepState, anchor: Point, knob: str, value: KnobValue) -> float:
    point = state.points[str(_stands_for(state, anchor, knob, value))]
    return throughput(point).value if point.visits and not point.gate_failed else math.nan


def visits_left(state: SweepState, rules: Rules) -> float:
    """Returns a rough count of the visits that the slices still take."""
    anchor = state.points[str(state.anchor)]
    unread = sum(
        not _num_readings(state, anchor, knob, value)
        for knob in slice_order(state, anchor)
        for value in _plan(state, rules, anchor, knob, _ladder(state, anchor, knob))
    )
    return 1 + _VISITS_PER_VALUE * unread


def _joint_step(state: SweepState, rules: Rules, anchor: Point) -> Decision | None:
    """Returns a visit of the point where every knob is at its knee, until it is measured."""
    knobs = joint_knee_knobs(state, rules, anchor)
    known = state.point_at(knobs)
    if known is None:
        ruled = state.ruled_out(knobs)
        if ruled:
            return None
        return slice_visit(state, rules, knobs, "all knobs at their knee")
    visits = len(state.started_of(known))
    if visits >= rules.slice_visits or given_up(state, known):
        return None
    return revisit(
        state, rules, known, f"all knobs at their knee, visit {visits + 1}", Purpose.SLICE
    )


def joint_knee_knobs(state: SweepState, rules: Rules, anchor: Point) -> dict[str, KnobValue]:
    """Returns the best point with every knob moved to what its slice advises."""
    advised = {
        knob: slice_knee(state, rules, anchor, knob).advised for knob in slice_order(state, anchor)
    }
    return state.space.canonical({**anchor.knobs, **advised})


def _end(state: SweepState, rules: Rules, anchor: Point) -> Decision:
    """Returns what is left when the slices are: ties that they brought up, a better anchor."""
    again = tie_visit(state, rules)
    if again is not None:
        return again
    best = state.best
    if best is None:
        return Line("stage", _done(state, rules, anchor), "the slices are done")
    moved = _moved_line(state, anchor)
    if moved is not None:
        return moved
    again = winner_visit(state, rules, best)
    return again or Line("stage", _done(state, rules, anchor), "the slices are done")


def _moved_line(state: SweepState, anchor: Point) -> Line | None:
    """Returns the line that moves the slices to a point certainly faster than their own."""
    best = state.best
    if best is None or best.id == anchor.id or throughput(best).lo <= throughput(anchor).value:
        return None
    if state.num_slicings > MAX_MOVES_PER_KNOB * len(state.space.choices):
        return None
    reason = f"a slice found {best.id}, faster than {anchor.id}: the slices go through it"
    return Line("stage", {"phase": "remeasure", "reason": reason}, reason)


def _done(state: SweepState, rules: Rules, anchor: Point) -> dict[str, Any]:
    """Returns the last stage: what the knee is to be read from, and what it is in words."""
    knobs = slice_order(state, anchor)
    knees = [slice_knee(state, rules, anchor, knob) for knob in knobs]
    words = "; ".join(
        f"{knee.knob} {knee.status} at {in_words(knee.knob, knee.advised)}" for knee in knees
    )
    return {
        "phase": "done",
        "best": anchor.id,
        "ladders": {knob: measured_ladder(state, anchor, knob) for knob in knobs},
        "reason": f"the slices are done: {words}" if words else "nothing varies at the best",
    }
