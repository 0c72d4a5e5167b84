"""Sweeps with a known answer: found, for few visits, and not by luck."""

import dataclasses
import math
import statistics
from collections.abc import Callable

import pytest

from lf_ray.protocol import Interval, OutcomeKind, TrialOutcome, TrialRecord, TrialRequest
from lf_ray.search.ladder import bucket_ladder
from lf_ray.search.plan.decisions import Rules
from lf_ray.search.plan.slicing import slice_knee
from lf_ray.search.samplers.optuna_study import TpeProposer
from lf_ray.search.space import Literal
from lf_ray.settings import MeasureLevel, MeasureSettings
from lf_ray.testing.fake_sweep import RATIOS, FakeSweep
from lf_ray.testing.objectives import KneeObjective, out_of_memory

SEEDS = range(20)
FEW_SEEDS = range(6)
OVERLAP: Literal = {"overlap.bucket_size_mb": bucket_ladder(), "overlap.ratio": RATIOS}


def overlap_sweep(
    seed: int, noise_frac: float, spread_frac: float
) -> tuple[FakeSweep, KneeObjective]:
    objective = KneeObjective(seed=seed, noise_frac=noise_frac, spread_frac=spread_frac)
    sweep = FakeSweep(objective, OVERLAP, rules=Rules(seed=seed), proposer=TpeProposer())
    objective.clock = sweep.clock
    return sweep, objective


def test_the_known_best_and_knee_are_found() -> None:
    """True best: bucket 8, ratio 0.8 to 1; 4 and 16 are 3 % slower, ratio 0.7 is 6 % slower."""
    found, knees, visits = [], [], []
    for seed in FEW_SEEDS:
        sweep, objective = overlap_sweep(seed, noise_frac=0.003, spread_frac=0.004)
        assert sweep.run().exit_code == 0
        best = sweep.state.best
        assert best is not None
        truth = max(objective.rate(point) for point in sweep.state.space.points())
        found.append(objective.rate(best.knobs) / truth)
        anchor = sweep.state.points[str(sweep.state.anchor)]
        knees.append(
            tuple(
                slice_knee(sweep.state, sweep.rules, anchor, knob).advised
                for knob in ("overlap.bucket_size_mb", "overlap.ratio")
            )
        )
        visits.append(len(sweep.started()))
    assert min(found) > 0.98
    assert statistics.mode(knees) == (8.0, 0.8)
    assert sum(knee == (8.0, 0.8) for knee in knees) >= 5, knees
    assert max(visits) <= 60
    assert statistics.median(visits) <= 45


def test_a_laptops_sweep_fits_in_three_minutes() -> None:
    """3 s a visit, readings 5 % wide, visits 2 % apart."""
    for seed in range(2):
        sweep, _ = overlap_sweep(seed, noise_frac=0.02, spread_frac=0.05)
        sweep.run()
        assert sweep.clock.monotonic_s() < 200
        assert sweep.state.num_trials >= 12


def test_a_lucky_reading_does_not_win() -> None:
    """H6: three points of 100, 101 and 110, visits 5 % apart."""
    rates = {0.0: 100.0, 0.5: 101.0, 1.0: 110.0}
    wins, claims = 0, []
    for seed in SEEDS:
        objective = KneeObjective(
            seed=seed,
            noise_frac=0.05,
            spread_frac=0.05,
            true_rate=lambda knobs: rates[float(knobs["overlap.ratio"])],
        )
        sweep = FakeSweep(objective, {"overlap.ratio": sorted(rates)}, rules=Rules(seed=seed))
        sweep.run()
        best = sweep.state.best
        assert best is not None
        assert best.throughput is not None
        wins += best.knobs["overlap.ratio"] == 1.0
        claims.append(best.throughput.value)
        assert best.throughput.num_visits >= 2
    assert wins >= 18
    assert statistics.median(claims) == pytest.approx(110, rel=0.02)
    assert sum(abs(claim / 110 - 1) < 0.05 for claim in claims) >= 17


@pytest.mark.parametrize("proposer", [TpeProposer()], ids=["tpe"])
def test_what_does_not_fit_is_told_and_never_asked_again(proposer: TpeProposer) -> None:
    """O2: batch 256 raises; nothing dominated is asked after the first time."""

    def fate(request: TrialRequest) -> TrialOutcome | None:
        return out_of_memory() if int(request.knobs["batch.per_gpu"]) >= 256 else None

    for seed in range(3):
        objective = KneeObjective(seed=seed, fate=fate)
        literal: Literal = {"batch.per_gpu": [64, 128, 256, 512], "overlap.ratio": RATIOS}
        sweep = FakeSweep(objective, literal, rules=Rules(seed=seed, trials=24), proposer=proposer)
        assert sweep.run().exit_code == 0
        batches = [int(r.knobs["batch.per_gpu"]) for r in sweep.started()]
        assert batches.count(512) + batches.count(256) <= 2
        first = next((i for i, batch in enumerate(batches) if batch == 256), None)
        if first is not None:
            assert all(batch < 256 for batch in batches[first + 1 :])
        best = sweep.state.best
        assert best is not None
        assert best.knobs["batch.per_gpu"] == 128
        for point in sweep.state.points.values():
            if int(point.knobs["batch.per_gpu"]) >= 256:
                assert point.outcome.kind is OutcomeKind.INFEASIBLE
                assert "out of memory" in point.outcome.reason


def _with_rate(value: float | None) -> Callable[[TrialRecord], TrialRecord]:
    def change(record: TrialRecord) -> TrialRecord:
        reading = (
            value
            if value is None
            else Interval(value=value, lo=value, hi=value, num_steps=20, num_visits=1)
        )
        return dataclasses.replace(record, throughput_samples_per_s=reading)

    return change


@pytest.mark.parametrize("bad", [math.nan, math.inf, None, 0.0, -math.inf])
def test_only_finite_values_compete(bad: float | None) -> None:
    """O1 and O3: closed with a reason, and the finite one is best."""
    objective = KneeObjective()

    def execute(request: TrialRequest) -> TrialRecord:
        record = objective(request)
        return _with_rate(bad)(record) if request.knobs["overlap.ratio"] == 0.5 else record

    sweep = FakeSweep(execute, {"overlap.ratio": [0.0, 0.5, 1.0]}, proposer=TpeProposer())
    stop = sweep.run()
    assert stop.exit_code == 0
    (point,) = [p for p in sweep.state.points.values() if p.knobs["overlap.ratio"] == 0.5]
    assert point.outcome.kind is OutcomeKind.INVALID
    assert point.outcome.reason
    best = sweep.state.best
    assert best is not None
    assert best.knobs["overlap.ratio"] == 1.0
    assert not sweep.state.in_flight


def test_a_raising_executor_fails_the_trial_and_not_the_sweep() -> None:
    objective = KneeObjective()

    def execute(request: TrialRequest) -> TrialRecord:
        if request.id == "t002":
            raise ValueError("broken pipe")
        return objective(request)

    sweep = FakeSweep(execute, rules=Rules(trials=5))
    assert sweep.run().exit_code == 0
    (first, *_) = [
        e["record"] for e in sweep.lines("finished") if e["record"]["request"]["id"] == "t002"
    ]
    assert first["outcome"]["reason"] == "ValueError: broken pipe"


def test_publishing_visits_more_than_smoking() -> None:
    counts = {}
    for level, visits in ((MeasureLevel.smoke, 2), (MeasureLevel.publish, 4)):
        objective = KneeObjective(noise_frac=0.02, spread_frac=0.02)
        rules = Rules(trials=6, slice_visits=visits, measure=MeasureSettings(level=level))
        sweep = FakeSweep(objective, rules=rules)
        sweep.run()
        counts[level] = len(sweep.started())
    assert counts[MeasureLevel.publish] > counts[MeasureLevel.smoke]


def test_the_baseline_is_known_as_well_as_the_winner() -> None:
    """The gain rests on both, so neither is a single reading."""
    for noise_frac in (0.003, 0.04):
        sweep, _ = overlap_sweep(1, noise_frac=noise_frac, spread_frac=noise_frac)
        sweep.run()
        best, baseline = sweep.state.best, sweep.state.baseline
        assert best is not None
        assert baseline is not None
        assert best.id != baseline.id
        assert min(len(best.visits), len(baseline.visits)) >= 3
