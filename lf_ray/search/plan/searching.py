"""The search phase: baseline, the points that are known to be worth a try, then rounds.

A round is drawn at once and handed out cheapest change first, so that warm workers rarely have to
capture or start again.
"""

from collections.abc import Sequence

from lf_ray.analysis.points import Point
from lf_ray.protocol import (
    ChangeCost,
    Knobs,
    KnobValue,
    OutcomeKind,
    Purpose,
    TrialOutcome,
    change_cost,
)
from lf_ray.search.plan.audit import says_nothing
from lf_ray.search.plan.decisions import (
    Decision,
    Line,
    Proposer,
    Request,
    Rules,
    Stop,
    Told,
    Wait,
)
from lf_ray.search.plan.state import SweepState
from lf_ray.search.plan.visits import (
    baseline_glance,
    due_for_retry,
    given_up,
    num_attempts,
    revisit,
    trial,
)
from lf_ray.search.samplers.fitting import fit_probs
from lf_ray.search.samplers.plain import RandomProposer
from lf_ray.search.samplers.surrogate import expected_gain_frac, measured_of
from lf_ray.search.space import Space

# The article's finding, tried right after the baseline.
ARTICLE_SETTING: dict[str, float] = {"overlap.bucket_size_mb": 64.0, "overlap.ratio": 0.8}
MIN_TRIALS = 12
LEAST_PLANNED = 14
TRIALS_PER_KNOB = 6
MIN_TRIALS_PER_KNOB = 3
SEARCH_SHARE = 0.5
MAX_CANDIDATES = 1000
_COST_ORDER = list(ChangeCost)


def baseline_decision(state: SweepState, rules: Rules) -> Decision | None:
    """Returns what the baseline still needs, None once it has a settled, gated measurement."""
    if state.baseline_id is None:
        knobs = state.space.canonical({})
        return trial(state, rules, knobs, "the baseline", Purpose.BASELINE)
    point = state.baseline
    if point is not None and point.visits and not point.gate_failed:
        return None
    if point is None or state.in_flight:
        return Wait("nothing can be compared before the baseline has been measured")
    outcome = state.records[point.id][-1].outcome
    if outcome.kind is OutcomeKind.INFEASIBLE:
        return _smaller_baseline(state, rules, outcome)
    again = num_attempts(state, point.id) == 1 or outcome.kind is OutcomeKind.INVALID
    if len(state.records[point.id]) < 2 and again and not point.gate_failed:
        return revisit(state, rules, point.id, f"the baseline once more: {outcome.reason}")
    return Stop(f"the baseline has no valid measurement: {outcome.reason}", 1)


def lacks_second_visit(state: SweepState) -> bool:
    """Returns whether the baseline's first visit came to nothing and its second has not ended.

    That one may pass the sweep's time: without a baseline all that was spent has no answer.
    """
    point = state.baseline
    if point is None or point.visits or point.gate_failed:
        return False
    records = state.records[point.id]
    return len(records) < 2 and records[-1].outcome.kind is not OutcomeKind.INFEASIBLE


def _smaller_baseline(state: SweepState, rules: Rules, outcome: TrialOutcome) -> Decision:
    knobs = dict(state.requests[str(state.baseline_id)].knobs)
    per_gpu, accumulation = int(knobs["batch.per_gpu"]), int(knobs["batch.accumulation"])
    if outcome.error_kind not in ("oom", "host_memory") or per_gpu < 2:
        return Stop(f"the baseline is infeasible: {outcome.reason}", 1)
    knobs |= {
        "batch.per_gpu": per_gpu // 2,
        "batch.accumulation": accumulation * per_gpu // (per_gpu // 2),
    }
    reason = (
        f"the baseline did not fit ({outcome.reason}): batch.per_gpu {per_gpu} ->"
        f" {knobs['batch.per_gpu']}, batch.accumulation {accumulation} ->"
        f" {knobs['batch.accumulation']}"
    )
    return trial(state, rules, knobs, reason, Purpose.BASELINE)


def search_decision(
    state: SweepState, rules: Rules, proposer: Proposer, elapsed_s: float
) -> Decision:
    """Returns the next step of the search, or the line that ends it."""
    over = _limit_reason(state, rules, elapsed_s)
    if over:
        return _end(state, over)
    if state.num_rounds == 0:
        return _round(state, enqueued_points(state, rules), 0, "enqueued")
    if state.open_suggestions:
        return _next_suggestion(state, rules)
    for point_id in due_for_retry(state):
        reason = state.points[point_id].outcome.reason
        return revisit(state, rules, point_id, f"once more after: {reason}")
    over = _gain_reason(state, rules)
    if over:
        return _end(state, over)
    return _drawn_round(state, rules, proposer)


def enqueued_points(state: SweepState, rules: Rules) -> list[dict[str, KnobValue]]:
    """Returns the article's setting where the space knows its knobs, and the points asked for."""
    space = state.space
    article = {
        name: space.clipped(name, value)
        for name, value in ARTICLE_SETTING.items()
        if name in space.choices
    }
    wanted = [article] if article else []
    return [space.canonical(knobs) for knobs in [*wanted, *rules.enqueued]]


def round_seed(sweep_seed: int, index: int) -> int:
    """Returns the sampler's seed for a round, so that a resumed sweep draws the same."""
    return (sweep_seed * 1_000_003 + index * 7919 + 17) % 2**31


def told(state: SweepState) -> list[Told]:
    """Returns what the sampler may learn from. Some outcomes say nothing of their point."""
    return [
        _told(point)
        for point in state.points.values()
        if point.visits or not says_nothing(point.outcome)
    ]


def _told(point: Point) -> Told:
    memory, rate = point.memory_bytes, point.throughput
    total = memory.get("device_total", 0.0)
    reserved = memory.get("peak_reserved", memory.get("reserved"))
    peak = memory.get("peak")
    return Told(
        knobs=point.knobs,
        kind=point.outcome.kind,
        samples_per_s=rate.value if rate else None,
        error_frac=rate.half_width_frac / 1.96 if rate else 0.0,
        error_kind=point.outcome.error_kind,
        reserved_frac=reserved / total if total and reserved else None,
        peak_frac=peak / total if total and peak else None,
    )


def planned_trials(space: Space) -> int:
    """Returns how many trials a sweep without a given number is planned for."""
    if not space.choices:
        return 1
    return max(LEAST_PLANNED, 2 + TRIALS_PER_KNOB * _num_varied(space))


def _num_varied(space: Space) -> int:
    return sum(len(values) > 1 and space.may_act(knob) for knob, values in space.choices.items())


def baseline_visit(state: SweepState, rules: Rules) -> Request | None:
    """Returns a visit of the baseline where it is time for one, None where it is not.

    Time to look whether the machine has drifted; or, in a sweep whose knobs start workers anew,
    whether new ones are as fast as those before. Never where it would start them itself.
    """
    baseline = state.baseline_id
    if baseline is None or given_up(state, baseline):
        return None
    if change_cost(state.last_knobs, state.requests[baseline].knobs) is ChangeCost.RESTART:
        return None
    if _other_workers(state, rules):
        reason = "the baseline again: these workers are others than those it was seen in last"
    elif state.visits_since_baseline >= rules.baseline_every:
        reason = "the baseline again, to see drift"
    else:
        return None
    return baseline_glance(state, rules, baseline, reason)


def _other_workers(state: SweepState, rules: Rules) -> bool:
    """Returns whether the workers have been replaced since the baseline was seen in them.

    With several groups nobody knows which one the next request meets.
    """
    if state.hurried or rules.num_groups > 1 or state.start == state.baseline_start:
        return False
    return any(
        change_cost({knob: 0}, {knob: 1}) is ChangeCost.RESTART and len(values) > 1
        for knob, values in state.space.choices.items()
    )


def _next_suggestion(state: SweepState, rules: Rules) -> Decision:
    knobs = min(state.open_suggestions, key=lambda item: _change_rank(state.last_knobs, item))
    known = state.ruled_out(knobs)
    if known:
        same_as, reason = known
        return Line("dead", {"knobs": knobs, "same_as": same_as, "reason": reason}, reason)
    again = baseline_visit(state, rules)
    if again is not None:
        return again
    cost = change_cost(state.last_knobs, knobs)
    return trial(state, rules, knobs, f"round {state.num_rounds - 1}, change: {cost}")


def _change_rank(previous: Knobs | None, knobs: Knobs) -> int:
    return _COST_ORDER.index(change_cost(previous, knobs))


def _limit_reason(state: SweepState, rules: Rules, elapsed_s: float) -> str:
    if rules.trials is not None and state.num_trials >= rules.trials:
        waiting = due_for_retry(state)
        return "" if waiting and not state.open_suggestions else f"{rules.trials} trials started"
    if rules.minutes is not None and elapsed_s > rules.minutes * 60 * SEARCH_SHARE:
        return f"half of sweep.minutes={rules.minutes:g} is used; the rest is for re-measuring"
    return ""


def _gain_reason(state: SweepState, rules: Rules) -> str:
    """Returns why the search may end although trials are left, "" where it should go on."""
    if rules.trials is not None:
        if state.num_trials >= rules.trials:
            return f"{rules.trials} trials started"
        return ""
    if not state.space.choices:
        return "nothing varies; the baseline is visited again"
    if state.hurried and state.num_trials >= MIN_TRIALS:
        return "short of time; the slices go on from the best"
    if state.num_trials >= planned_trials(state.space):
        return (
            f"the {state.num_trials} trials planned for {_num_varied(state.space)} knobs are done;"
            " the slices go on from the best"
        )
    if state.num_trials < max(MIN_TRIALS, 2 + MIN_TRIALS_PER_KNOB * _num_varied(state.space)):
        return ""
    gain = gain_left_frac(state)
    if gain < rules.gain_left_frac:
        return f"the expected gain left is {gain:.1%}, under {rules.gain_left_frac:.1%}"
    return ""


def gain_left_frac(state: SweepState) -> float:
    """Returns what the points not yet tried may still give, as a share of the best."""
    known = told(state)
    untried = RandomProposer().propose(
        state.space, [], MAX_CANDIDATES, 0, lambda knobs: state.ruled_out(knobs) is None
    )
    fits = fit_probs(known, untried)
    return expected_gain_frac(state.space, measured_of(known), untried, fits)


def _drawn_round(state: SweepState, rules: Rules, proposer: Proposer) -> Decision:
    limit = rules.trials or planned_trials(state.space)
    count = min(rules.round_size, limit - state.num_trials)
    index = state.num_rounds
    seed = round_seed(rules.seed, index)
    points = proposer.propose(
        state.space,
        told(state),
        count,
        seed,
        lambda knobs: state.ruled_out(knobs) is None,
        state.prices.price,
    )
    if not points:
        return _end(state, "every point of the space that can tell anything has been tried")
    return _round(state, points, seed, "sampler")


def _round(state: SweepState, points: Sequence[Knobs], seed: int, source: str) -> Decision:
    payload = {
        "index": state.num_rounds,
        "suggestions": [dict(point) for point in points],
        "sampler_seed": seed,
        "source": source,
    }
    return Line("round", payload, f"round {state.num_rounds}: {len(points)} suggestions")


def _end(state: SweepState, reason: str) -> Decision:
    if state.in_flight:
        return Wait(f"the search ends ({reason}) when the visits under way are back")
    return Line("stage", {"phase": "remeasure", "reason": reason}, reason)
