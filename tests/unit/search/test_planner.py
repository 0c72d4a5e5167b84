"""The order of a sweep, its limits, and what it does when trials go wrong."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from lf_ray.clock import FakeClock
from lf_ray.protocol import (
    ChangeCost,
    Knobs,
    OutcomeKind,
    TrialOutcome,
    TrialRecord,
    TrialRequest,
    change_cost,
)
from lf_ray.search.plan.decisions import Request, Rules, Stop, Wait, rules_of
from lf_ray.search.plan.visits import GLANCE_STEPS, MOST_COARSE_FRAC
from lf_ray.search.samplers.plain import GridProposer
from lf_ray.settings import MeasureLevel, MeasureSettings, SweepConfig
from lf_ray.testing.fake_sweep import RATIOS, FakeSweep
from lf_ray.testing.objectives import (
    BASELINE_KNOBS,
    KneeObjective,
    hashed_rate,
    out_of_memory,
    worker_lost,
)

MakeSweep = Callable[..., FakeSweep]


def test_baseline_first_then_the_articles_setting_then_the_sampler(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(rules=Rules(trials=6))
    stop = sweep.run()
    trials = sweep.started("baseline") + sweep.started("search")
    assert [request.id for request in trials] == [f"t{n:03d}" for n in range(6)]
    assert dict(trials[0].knobs) == dict(BASELINE_KNOBS)
    assert trials[1].knobs["overlap.bucket_size_mb"] == 32.0
    assert trials[1].knobs["overlap.ratio"] == 0.8
    assert sweep.lines("round")[0]["source"] == "enqueued"
    assert stop.exit_code == 0


def test_enqueued_points_follow_the_article(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(rules=Rules(trials=3, enqueued=({"overlap.ratio": 0.3},)))
    sweep.run()
    assert sweep.started("search")[1].knobs["overlap.ratio"] == 0.3


@pytest.mark.parametrize("trials", [1, 2, 7, 20])
def test_the_number_of_trials_is_exact_when_given(make_sweep: MakeSweep, trials: int) -> None:
    sweep = make_sweep(rules=Rules(trials=trials))
    sweep.run()
    assert len(sweep.started("baseline") + sweep.started("search")) == trials
    assert sweep.state.num_trials == trials


def test_without_a_number_a_sweep_has_enough_trials_and_says_why_it_stops(
    make_sweep: MakeSweep,
) -> None:
    sweep = make_sweep()
    stop = sweep.run()
    reasons = [line["reason"] for line in sweep.lines("stage")]
    assert sweep.state.num_trials >= 12 or "expected gain left" in reasons[0]
    assert all(reasons)
    assert "overlap.ratio" in stop.reason


def test_a_flat_surface_ends_the_search_early(make_sweep: MakeSweep) -> None:
    flat = KneeObjective(true_rate=lambda _: 100.0, noise_frac=0.0005, spread_frac=0.0005)
    sweep = make_sweep(execute=flat)
    sweep.run()
    assert "expected gain left is 0." in sweep.lines("stage")[0]["reason"]
    assert sweep.state.num_trials < 14


def test_a_round_is_handed_out_cheapest_change_first(make_sweep: MakeSweep) -> None:
    literal = {
        "memory.backend": ["caching", "expandable"],
        "graph.scope": ["off", "step"],
        "overlap.ratio": [0.0, 0.5, 1.0],
    }
    sweep = make_sweep(literal, rules=Rules(trials=12, round_size=10, seed=3))
    sweep.run()
    costs = Counter(
        change_cost(before.knobs, after.knobs)
        for before, after in zip(sweep.started("search")[1:], sweep.started("search")[2:])
    )
    assert costs[ChangeCost.RESTART] <= 1
    assert costs[ChangeCost.RECAPTURE] <= 7


def test_the_baseline_is_visited_along_the_sweep(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(rules=Rules(baseline_every=5))
    sweep.run()
    ids = [request.replicate_of or request.id for request in sweep.started()]
    places = [place for place, name in enumerate(ids) if name == "t000"]
    assert len(places) >= 4
    assert max(b - a for a, b in pairwise(places)) <= 8


def test_the_baseline_is_glanced_at_along_the_sweep_and_read_finely_for_the_gain(
    make_sweep: MakeSweep,
) -> None:
    fine = MeasureSettings(target_frac=0.01, min_steps=20, max_steps=200)
    sweep = make_sweep(rules=Rules(baseline_every=5, measure=fine))
    sweep.run()
    asked = [r for r in sweep.started() if "t000" in (r.id, r.replicate_of)]
    glanced = [r.budget.target_frac == MOST_COARSE_FRAC for r in asked]
    assert glanced[:3] == [True, True, True]
    assert glanced.count(False) == 1
    for request, is_glance in zip(asked, glanced):
        assert request.budget.max_steps == (GLANCE_STEPS if is_glance else 200)


@pytest.mark.parametrize(
    "measure",
    [
        MeasureSettings(target_frac=0.01, min_steps=50, max_steps=200),
        MeasureSettings(target_frac=0.01, min_steps=20, max_steps=80),
    ],
    ids=["many least steps", "a low cap"],
)
def test_where_a_glance_would_cut_nothing_short_the_baseline_is_read_as_other_points_are(
    make_sweep: MakeSweep, measure: MeasureSettings
) -> None:
    rules = Rules(baseline_every=5, measure=measure)
    sweep = make_sweep(rules=rules)
    sweep.run()
    asked = [r.budget for r in sweep.started() if "t000" in (r.id, r.replicate_of)]
    assert {budget.max_steps for budget in asked} == {measure.max_steps}
    assert {budget.target_frac for budget in asked} <= {rules.coarse_frac, measure.target_frac}


def test_a_full_reading_of_the_baseline_that_comes_to_nothing_is_repeated_once(
    make_sweep: MakeSweep,
) -> None:
    fine = MeasureSettings(target_frac=0.01, min_steps=20, max_steps=200)

    def unsteady_in_full(request: TrialRequest) -> TrialOutcome | None:
        is_baseline = "t000" in (request.id, request.replicate_of)
        if not is_baseline or request.budget.max_steps < fine.max_steps:
            return None
        return TrialOutcome(
            kind=OutcomeKind.INVALID, reason="not settled", error_kind="unsteady", stop_rule="cap"
        )

    sweep = make_sweep(
        execute=KneeObjective(fate=unsteady_in_full), rules=Rules(baseline_every=5, measure=fine)
    )
    stop = sweep.run()
    asked = [r.budget for r in sweep.started() if r.replicate_of == "t000"]
    assert [budget.max_steps for budget in asked].count(fine.max_steps) == 2
    assert stop.exit_code == 0


def test_slices_hold_the_other_knobs(make_sweep: MakeSweep) -> None:
    sweep = make_sweep()
    sweep.run()
    anchors = [line["best"] for line in sweep.lines("stage") if line["phase"] == "slices"]
    centres = [sweep.state.requests[name].knobs for name in anchors]
    for request in sweep.started("slice"):
        if request.replicate_of is None and "knee" not in _reason(sweep, request):
            assert any(_num_changed(request.knobs, knobs) == 1 for knobs in centres), request.id
    ladders = sweep.lines("stage")[-1]["ladders"]
    assert ladders["overlap.bucket_size_mb"] == [32.0, 16.0, 8.0, 4.0, 2.0]


def _reason(sweep: FakeSweep, request: TrialRequest) -> str:
    lines = sweep.lines("replicate")
    return str(next(line["reason"] for line in lines if line["request"]["id"] == request.id))


def _num_changed(knobs: Knobs, others: Knobs) -> int:
    return sum(knobs[name] != others[name] for name in others)


def test_near_ties_are_visited_to_and_fro(make_sweep: MakeSweep) -> None:
    rates = {0.0: 100.0, 0.5: 99.8, 1.0: 70.0}
    objective = KneeObjective(
        true_rate=lambda knobs: rates[float(knobs["overlap.ratio"])], noise_frac=0.002
    )
    sweep = make_sweep({"overlap.ratio": sorted(rates)}, objective, rules=Rules(trials=3))
    sweep.run()
    row = [
        request.replicate_of
        for request in sweep.started("replicate")
        if request.replicate_of != "t000"
    ]
    assert row[:4] in (["t001", "t002", "t002", "t001"], ["t002", "t001", "t001", "t002"])


def test_the_winner_runs_the_steps_of_a_winner(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(rules=Rules(measure=MeasureSettings(winner_steps=77)))
    sweep.run()
    best = sweep.state.best
    assert best is not None
    assert any(record.request.budget.min_steps == 77 for record in best.records)


def test_only_search_and_slices_race_the_incumbent(make_sweep: MakeSweep) -> None:
    sweep = make_sweep()
    sweep.run()
    for request in sweep.started():
        raced = request.budget.incumbent_samples_per_s is not None
        assert raced == (request.purpose in ("search", "slice")), request.id


def test_a_lost_worker_is_retried_once_and_not_held_against_the_point(
    make_sweep: MakeSweep,
) -> None:
    def fate(request: TrialRequest) -> TrialOutcome | None:
        return worker_lost() if request.id == "t003" else None

    sweep = make_sweep(execute=KneeObjective(fate=fate), rules=Rules(trials=6))
    stop = sweep.run()
    visits = [r.id for r in sweep.started() if (r.replicate_of or r.id) == "t003"]
    assert visits[:2] == ["t003", "t003r1"]
    assert sweep.state.points["t003"].outcome.kind is OutcomeKind.COMPLETED
    assert stop.exit_code == 0


def test_a_visit_that_never_settled_is_repeated_once(make_sweep: MakeSweep) -> None:
    def fate(request: TrialRequest) -> TrialOutcome | None:
        if request.id != "t003":
            return None
        return TrialOutcome(kind=OutcomeKind.INVALID, reason="ramp", error_kind="unsteady")

    sweep = make_sweep(execute=KneeObjective(fate=fate), rules=Rules(trials=6))
    sweep.run()
    assert "t003r1" in [request.id for request in sweep.started()]
    assert sweep.state.counts() == {**sweep.state.counts(), "completed": 6, "invalid": 0}


def test_a_point_that_fails_twice_is_left_alone(make_sweep: MakeSweep) -> None:
    def fate(request: TrialRequest) -> TrialOutcome | None:
        lost = (request.replicate_of or request.id) == "t003"
        return worker_lost() if lost else None

    sweep = make_sweep(execute=KneeObjective(fate=fate), rules=Rules(trials=8))
    stop = sweep.run()
    assert len([r for r in sweep.started() if (r.replicate_of or r.id) == "t003"]) == 2
    assert sweep.state.counts()["failed"] == 1
    assert stop.exit_code == 0


def test_a_retry_of_the_groups_own_is_not_repeated(make_sweep: MakeSweep) -> None:
    objective = KneeObjective(fate=lambda request: worker_lost() if request.id == "t002" else None)

    def execute(request: TrialRequest) -> TrialRecord:
        record = objective(request)
        return dataclasses.replace(record, metrics={"attempts": 2.0})

    sweep = make_sweep(execute=execute, rules=Rules(trials=4))
    sweep.run()
    assert "t002r1" not in [request.id for request in sweep.started()]


def test_three_failures_of_one_kind_in_a_row_end_the_sweep(make_sweep: MakeSweep) -> None:
    def fate(request: TrialRequest) -> TrialOutcome | None:
        return worker_lost("no route to host") if request.id > "t003" else None

    sweep = make_sweep(execute=KneeObjective(fate=fate), rules=Rules(trials=20))
    stop = sweep.run()
    assert stop.reason.startswith("3 failures in a row of kind worker_lost: no route")
    assert len(sweep.started()) == 4 + 3
    assert stop.exit_code == 0


def test_a_baseline_that_does_not_fit_is_halved_and_said(make_sweep: MakeSweep) -> None:
    def fate(request: TrialRequest) -> TrialOutcome | None:
        return out_of_memory() if int(request.knobs["batch.per_gpu"]) > 8 else None

    own = {**BASELINE_KNOBS, "batch.per_gpu": 32, "batch.accumulation": 1}
    sweep = make_sweep(execute=KneeObjective(fate=fate), baseline=own, rules=Rules(trials=5))
    stop = sweep.run()
    asked = [(r.knobs["batch.per_gpu"], r.knobs["batch.accumulation"]) for r in sweep.started()]
    assert asked[:3] == [(32, 1), (16, 2), (8, 4)]
    assert set(asked[3:]) == {(8, 4)}
    assert "batch.per_gpu 32 -> 16" in sweep.lines("started")[1]["reason"]
    assert sweep.state.num_trials == 5
    assert stop.exit_code == 0


def test_all_trials_failed_means_no_best_and_exit_1(make_sweep: MakeSweep) -> None:
    """H3: nothing is called best when nothing was measured."""
    fates = {"t000": None, "t000r1": None}

    def fate(request: TrialRequest) -> TrialOutcome | None:
        return out_of_memory() if request.id not in fates else worker_lost()

    sweep = make_sweep(execute=KneeObjective(fate=fate))
    stop = sweep.run()
    assert stop.exit_code == 1
    assert "the baseline has no valid measurement: rank 1 was lost" in stop.reason
    assert sweep.state.best is None
    assert [request.id for request in sweep.started()] == ["t000", "t000r1"]


def test_every_other_trial_failed_is_exit_1(make_sweep: MakeSweep) -> None:
    kinds = iter(["a", "b"] * 40)

    def fate(request: TrialRequest) -> TrialOutcome | None:
        if (request.replicate_of or request.id) == "t000":
            return None
        return TrialOutcome(kind=OutcomeKind.FAILED, reason="no", error_kind=next(kinds))

    sweep = make_sweep(execute=KneeObjective(fate=fate), rules=Rules(trials=5))
    stop = sweep.run()
    assert stop.exit_code == 1
    assert sweep.state.counts()["failed"] == 4


def test_infeasible_points_are_no_failure(make_sweep: MakeSweep) -> None:
    def fate(request: TrialRequest) -> TrialOutcome | None:
        return out_of_memory() if int(request.knobs["batch.per_gpu"]) > 4 else None

    sweep = make_sweep(
        {"batch.per_gpu": [4, 8, 16], "overlap.ratio": [0.0, 0.5, 1.0]},
        KneeObjective(fate=fate),
        rules=Rules(trials=9),
        proposer=GridProposer(),
    )
    stop = sweep.run()
    assert stop.exit_code == 0
    tried = [int(r.knobs["batch.per_gpu"]) for r in sweep.started()]
    assert sum(batch > 4 for batch in tried) <= 1
    assert sweep.state.counts()["infeasible"] <= 1


def test_the_time_limit_leaves_time_for_the_slices(make_sweep: MakeSweep) -> None:
    clock = FakeClock()
    sweep = make_sweep(
        execute=KneeObjective(clock=clock), clock=clock, rules=Rules(minutes=1.5, trials=100)
    )
    stop = sweep.run()
    assert "sweep.minutes=1.5" in stop.reason
    assert clock.monotonic_s() <= 90
    assert stop.exit_code == 0
    assert "half of sweep.minutes" in sweep.lines("stage")[0]["reason"]
    assert len(sweep.started("slice")) > 5


def test_a_slow_machine_gets_a_shorter_sweep(make_sweep: MakeSweep) -> None:
    """Visits of 11 s: what matters is still measured, once, and it is said."""
    lengths = {}
    for soft_s in (None, 150.0):
        clock = FakeClock()
        objective = KneeObjective(clock=clock, visit_s=11.0, noise_frac=0.03, spread_frac=0.05)
        sweep = make_sweep(execute=objective, clock=clock, rules=Rules(soft_s=soft_s))
        assert sweep.run().exit_code == 0
        lengths[soft_s] = clock.monotonic_s()
    assert sweep.state.num_trials >= 12
    assert lengths[150.0] < 360 < lengths[None]
    texts = [str(line["text"]) for line in sweep.lines("note")]
    assert sum("from here on one visit each" in text for text in texts) == 1
    best = sweep.state.best
    assert best is not None
    assert len(best.visits) >= 2


def test_only_a_smoke_sweep_or_one_with_a_cap_hurries() -> None:
    config = SweepConfig()
    assert rules_of(config).soft_s == 150.0
    config.sweep.minutes = 10.0
    assert rules_of(config).soft_s == pytest.approx(420.0)
    config.sweep.minutes = None
    config.measure.level = MeasureLevel.standard
    assert rules_of(config).soft_s is None


def test_a_space_that_is_exhausted_is_said(make_sweep: MakeSweep) -> None:
    """H6: at most as many launches as there are points; repeats are replicates."""
    sweep = make_sweep(
        {"overlap.ratio": [0.0, 1.0], "batch.per_gpu": [1, 2, 3, 4]}, rules=Rules(trials=24)
    )
    sweep.run()
    assert sweep.state.num_trials == 8
    assert "every point of the space" in sweep.lines("stage")[0]["reason"]
    knobs = [tuple(sorted(request.knobs.items())) for request in sweep.started("search")]
    assert len(set(knobs)) == len(knobs)


def test_dead_suggestions_are_lines_and_not_trials(make_sweep: MakeSweep) -> None:
    literal = {"overlap.bucket_size_mb": [8.0, 80.0, 160.0], "overlap.ratio": RATIOS}
    sweep = make_sweep(literal, rules=Rules(trials=10), proposer=GridProposer())
    sweep.run()
    assert sweep.state.num_trials == 10
    effects = [sweep.state.effects.key(r.knobs) for r in sweep.started("search")]
    assert len(set(effects)) == len(effects)
    assert all(line["same_as"] and line["reason"] for line in sweep.lines("dead"))
    assert sweep.lines("dead")


def test_workers_are_dead_where_every_frame_is_cached(make_sweep: MakeSweep) -> None:
    objective = KneeObjective(true_rate=lambda knobs: 90.0 + 5 * float(knobs["data.prefetch"]))

    def execute(request: TrialRequest) -> TrialRecord:
        record = objective(request)
        state = {"data_cache": "whole" if request.knobs["data.cache"] else "off"}
        outcome = dataclasses.replace(record.outcome, effective=state)
        return dataclasses.replace(record, outcome=outcome, gradients=())

    literal = {"data.workers": [0, 1, 2], "data.prefetch": [1, 2], "data.cache": [False, True]}
    sweep = make_sweep(
        literal, execute, proposer=GridProposer(), rules=Rules(trials=8, round_size=6)
    )
    assert sweep.run().exit_code == 0
    assert sweep.state.num_trials == 8
    cached = [request.knobs for request in sweep.started() if request.knobs["data.cache"]]
    assert {knobs["data.workers"] for knobs in cached} == {0}
    assert "no frame is left to decode" in sweep.lines("dead")[0]["reason"]


def test_two_groups_get_two_requests_and_no_more(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(rules=Rules(num_groups=2))
    conductor = sweep.conductor()
    objective = KneeObjective()
    first = conductor.next()
    assert isinstance(first, Request)
    assert isinstance(conductor.next(), Wait)
    conductor.finish(objective(first.request))
    running: list[TrialRequest] = []
    most = 0
    while True:
        decision = conductor.next()
        if isinstance(decision, Stop):
            break
        if isinstance(decision, Request):
            running.append(decision.request)
            most = max(most, len(running))
            continue
        assert running, decision
        conductor.finish(objective(running.pop(0)))
    assert most == 2
    assert conductor.planner.state.num_trials >= 12


def test_a_point_beyond_its_gate_can_not_win(make_sweep: MakeSweep) -> None:
    objective = KneeObjective(true_rate=lambda knobs: 100 + 50 * float(knobs["overlap.ratio"] == 0))

    def execute(request: TrialRequest) -> TrialRecord:
        record = objective(request)
        assert record.gate is not None
        passed = request.knobs["overlap.ratio"] != 0
        gate = dataclasses.replace(record.gate, passed=passed, reason="" if passed else "differs")
        return dataclasses.replace(record, gate=gate)

    sweep = make_sweep({"overlap.ratio": [0.0, 0.5, 1.0]}, execute)
    sweep.run()
    best = sweep.state.best
    assert best is not None
    assert best.knobs["overlap.ratio"] != 0.0
    assert sweep.state.counts()["invalid"] == 1


def test_a_gate_that_fails_on_the_baseline_ends_with_exit_1(make_sweep: MakeSweep) -> None:
    def execute(request: TrialRequest) -> TrialRecord:
        record = KneeObjective()(request)
        assert record.gate is not None
        gate = dataclasses.replace(record.gate, passed=False, reason="ranks differ")
        return dataclasses.replace(record, gate=gate)

    stop = make_sweep(execute=execute).run()
    assert stop.exit_code == 1
    assert "ranks differ" in stop.reason


def test_the_outlook_counts_down(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(rules=Rules(trials=8))
    conductor = sweep.conductor()
    lefts, phases = [], []
    while isinstance(decision := conductor.next(), Request):
        conductor.finish(sweep.execute(decision.request))
        outlook = conductor.standing().outlook
        phases.append(outlook.phase)
        lefts.append(outlook.left_s)
    assert phases[0] == "search"
    assert set(phases) == {"search", "re-measure", "slices"}
    known = [left for left in lefts[1:] if left is not None]
    assert len(known) == len(lefts) - 1
    assert known[-1] < known[0] / 2
    assert conductor.standing().outlook.left_s == 0.0


def test_unstructured_surfaces_still_come_to_an_end(make_sweep: MakeSweep) -> None:
    for seed in range(5):
        rate = hashed_rate(100.0, 0.1, "overlap.ratio", "overlap.bucket_size_mb")
        objective = KneeObjective(seed=seed, true_rate=rate, noise_frac=0.02, spread_frac=0.03)
        sweep = make_sweep(execute=objective, rules=Rules(seed=seed))
        assert sweep.run().exit_code == 0
        assert len(sweep.started()) < 75


def test_no_visit_is_read_more_finely_than_its_own_visits_differ(make_sweep: MakeSweep) -> None:
    moods = itertools.cycle([0.97, 1.03, 1.0, 1.02, 0.96])
    quiet = KneeObjective()

    def restless_at_the_baseline(knobs: Knobs) -> float:
        is_baseline = (knobs["overlap.bucket_size_mb"], knobs["overlap.ratio"]) == (25.0, 1.0)
        return quiet.rate(knobs) * (next(moods) if is_baseline else 1.0)

    objective = KneeObjective(true_rate=restless_at_the_baseline)
    fine = MeasureSettings(target_frac=0.01)
    sweep = make_sweep(execute=objective, rules=Rules(baseline_every=2, trials=12, measure=fine))
    sweep.run()
    asked = [(r.replicate_of, r.budget.target_frac) for r in sweep.started() if r.replicate_of]
    baseline = [target for point_id, target in asked if point_id == "t000"]
    others = [target for point_id, target in asked[-10:] if point_id != "t000"]
    assert 0.02 < baseline[-1] <= MOST_COARSE_FRAC
    assert set(others) == {0.01}
