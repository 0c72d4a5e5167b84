"""Requests as they are sent: ids, budgets, and what a visit is for."""

import math
from dataclasses import replace

from lf_ray.analysis.gain import compared
from lf_ray.analysis.points import Point
from lf_ray.protocol import Budget, Interval, Knobs, OutcomeKind, Purpose, TrialRequest
from lf_ray.search.plan.audit import says_nothing
from lf_ray.search.plan.decisions import Request, Rules
from lf_ray.search.plan.state import TRIAL_PURPOSES, SweepState

MAX_FAILURES = 2
KNOWN_VISITS = 3
"""Before that, what stands for a spread is mostly what is not known of it."""
MOST_COARSE_FRAC = 0.05
"""Of a visit's target, whatever the spread; also what smoke asks for."""
GLANCE_STEPS = 120
"""A glance at the baseline has this many steps, or four times the least, at most.

It is usually eager, and so noisy that the target of other first visits took it half a minute each
time on H200s. Drift is told from several glances; the gain, from what is read in full at the end.
Steps that wander are told from ones that settle by 80 of them.
"""


def trial(
    state: SweepState, rules: Rules, knobs: Knobs, reason: str, purpose: Purpose = Purpose.SEARCH
) -> Request:
    """Returns the first visit of a point that counts as a trial."""
    request = TrialRequest(
        id=f"t{state.num_trials:03d}",
        knobs=dict(knobs),
        seed=rules.seed,
        purpose=purpose,
        budget=budget(
            state,
            rules,
            racing=purpose is Purpose.SEARCH,
            coarse_frac=rules.coarse_frac,
        ),
        deadlines=rules.deadlines,
    )
    if purpose is Purpose.BASELINE:
        request = replace(request, budget=_glance(request.budget, rules))
    return Request(request, reason)


def baseline_glance(state: SweepState, rules: Rules, point_id: str, reason: str) -> Request:
    """Returns one more short visit of the baseline."""
    asked = revisit(state, rules, point_id, reason)
    return Request(replace(asked.request, budget=_glance(asked.request.budget, rules)), reason)


def revisit(
    state: SweepState,
    rules: Rules,
    point_id: str,
    reason: str,
    purpose: Purpose = Purpose.REPLICATE,
    min_steps: int = 0,
) -> Request:
    """Returns one more visit of a point, of at least `min_steps` steady steps."""
    earlier = state.started_of(point_id)
    request = TrialRequest(
        id=f"{point_id}r{len(earlier)}",
        knobs=dict(earlier[0].knobs),
        seed=rules.seed,
        purpose=purpose,
        replicate_of=point_id,
        budget=budget(
            state,
            rules,
            racing=purpose is Purpose.SLICE,
            min_steps=min_steps,
            point_id=point_id,
        ),
        deadlines=rules.deadlines,
    )
    return Request(request, reason)


def slice_visit(state: SweepState, rules: Rules, knobs: Knobs, reason: str) -> Request:
    """Returns the first visit of a point that is no trial: a value of a slice, or a knee."""
    own = [
        request
        for request in state.requests.values()
        if request.purpose is Purpose.SLICE and not request.replicate_of
    ]
    request = TrialRequest(
        id=f"s{len(own):03d}",
        knobs=dict(knobs),
        seed=rules.seed,
        purpose=Purpose.SLICE,
        budget=budget(state, rules, racing=True),
        deadlines=rules.deadlines,
    )
    return Request(request, reason)


def budget(
    state: SweepState,
    rules: Rules,
    *,
    racing: bool,
    min_steps: int = 0,
    coarse_frac: float = 0.0,
    point_id: str | None = None,
) -> Budget:
    """Returns when the visit may stop.

    A race is run against the lower end of the best point's interval, so that a lucky reading does
    not cut the others short. A coarse visit sorts points; what is called best is read finely later.
    No visit is read more finely than visits are known to differ, since more steps don't shrink
    that part; but never so coarsely that a trend passes for noise.
    """
    measure = rules.measure
    steps = max(measure.min_steps, min_steps)
    best = state.best if racing else None
    return Budget(
        min_steps=steps,
        max_steps=max(measure.max_steps, min_steps + measure.min_steps if min_steps else 0),
        max_s=measure.max_s,
        target_frac=max(
            measure.target_frac,
            min(_known_spread(state, point_id), MOST_COARSE_FRAC),
            coarse_frac,
        ),
        incumbent_samples_per_s=throughput(best).lo if best else None,
        delta_frac=rules.delta,
    )


def is_glance(rules: Rules, request: TrialRequest) -> bool:
    """Returns whether a visit of the baseline was shorter than it would be for the gain."""
    return request.budget.max_steps < rules.measure.max_steps


def _glance(asked: Budget, rules: Rules) -> Budget:
    """Returns a budget cut short; where that would cut nothing, one as of other first visits."""
    steps = max(GLANCE_STEPS, 4 * asked.min_steps)
    if steps >= asked.max_steps:
        return replace(asked, target_frac=max(asked.target_frac, rules.coarse_frac))
    return replace(asked, max_steps=steps, target_frac=max(asked.target_frac, MOST_COARSE_FRAC))


def _known_spread(state: SweepState, point_id: str | None) -> float:
    """Returns what a point's visits differ by; of one that is not known, the least of any known."""
    known = [point for point in state.points.values() if len(point.visits) >= KNOWN_VISITS]
    own = [point for point in known if point.id == point_id]
    return min((point.between_frac for point in own or known), default=0.0)


def throughput(point: Point) -> Interval:
    """Returns a measured point's throughput, what visits are seen to differ by included."""
    assert point.throughput is not None
    return point.throughput


def certainly_below(point: Point, other: Point, share: float = 1.0) -> bool:
    """Returns whether a point is slower than `share` of another one beyond what noise explains."""
    mine, theirs = compared(point, other)
    reach = math.hypot(mine.hi - mine.value, (theirs.value - theirs.lo) * share)
    return mine.value + reach < theirs.value * share


def due_for_retry(state: SweepState) -> list[str]:
    """Returns the points whose only visit came to nothing by no fault of theirs: one more each.

    A sweep short of time leaves out those that merely did not settle.
    """
    return [
        point.id
        for point in state.points.values()
        if not point.visits
        and num_attempts(state, point.id) == 1
        and says_nothing(point.outcome)
        and not (state.hurried and point.outcome.kind is OutcomeKind.INVALID)
        and len(state.started_of(point.id)) == 1
    ]


def num_attempts(state: SweepState, point_id: str) -> int:
    """Returns how often a point was tried, the group's own second attempts among them."""
    return sum(int(record.metrics.get("attempts", 1)) for record in state.records[point_id])


def given_up(state: SweepState, point_id: str) -> bool:
    """Returns whether further visits of a point are pointless."""
    point = state.points.get(point_id)
    if point is None:
        return False
    return (
        point.gate_failed
        or state.num_failures(point_id) >= max(MAX_FAILURES, len(point.visits) + 1)
        or not (point.visits or says_nothing(point.outcome))
    )


def is_trial(request: TrialRequest) -> bool:
    """Returns whether a request counts against `sweep.trials`."""
    return request.purpose in TRIAL_PURPOSES
