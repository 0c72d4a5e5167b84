"""Points: visits pooled, drift taken out, gate and lucky readings kept from winning."""

from collections.abc import Callable

import pytest

from lf_ray.analysis.points import baseline_of, best_of, eligible, gather, points_of
from lf_ray.protocol import OutcomeKind, Purpose, TrialRecord

Make = Callable[..., TrialRecord]
FAST = {"overlap.bucket_size_mb": 64.0, "overlap.ratio": 0.8}


def test_visits_of_a_trial_are_pooled(make_record: Make) -> None:
    records = [
        make_record("t000", 100.0, purpose=Purpose.BASELINE),
        make_record("t001", 110.0, knobs=FAST),
        make_record("t000r1", 100.4, purpose=Purpose.REPLICATE, replicate_of="t000"),
    ]
    baseline, other = points_of(records)
    assert baseline.throughput is not None
    assert baseline.throughput.value == pytest.approx(100.2, rel=1e-3)
    assert baseline.throughput.num_visits == 2
    assert baseline.step_s is not None
    assert baseline.step_s.value == pytest.approx(8 / 100.2, rel=1e-3)
    assert other.knobs == FAST
    assert baseline_of([other, baseline]) is baseline


def test_drift_of_the_baseline_is_taken_out_of_every_point(make_record: Make) -> None:
    records = [
        make_record("t000", 100.0, purpose=Purpose.BASELINE, at_s=1.0),
        make_record("t001", 150.0, knobs=FAST, at_s=2.0),
        make_record("t001r1", 120.0, knobs=FAST, replicate_of="t001", at_s=99.0),
        make_record("t000r1", 80.0, replicate_of="t000", at_s=100.0),
    ]
    gathered = gather(records)
    assert gathered.drift is not None
    assert gathered.drift.found
    assert gathered.best is not None
    first, second = (visit.throughput.value for visit in gathered.best.visits)
    assert first == pytest.approx(second, rel=0.01)
    assert gathered.best.visits[1].batches[0] == pytest.approx(second, rel=0.01)
    assert gathered.find(FAST) is gathered.best


def test_a_failed_replicate_keeps_the_measurement(make_record: Make) -> None:
    (point,) = points_of(
        [
            make_record("t001", 110.0),
            make_record("t001r1", kind=OutcomeKind.FAILED, reason="died", replicate_of="t001"),
        ]
    )
    assert point.outcome.kind is OutcomeKind.COMPLETED
    assert point.outcome_counts == {"completed": 1, "failed": 1}
    assert len(point.visits) == 1


def test_a_point_beyond_the_gate_cannot_win(make_record: Make) -> None:
    points = points_of(
        [
            make_record("t000", 100.0, purpose=Purpose.BASELINE),
            make_record("t001", 200.0, knobs=FAST, gate=False),
        ]
    )
    best = best_of(points)
    assert best is not None
    assert best.id == "t000"


def test_an_ungated_point_wins_only_where_nothing_is_gated(make_record: Make) -> None:
    gated = make_record("t000", 100.0, purpose=Purpose.BASELINE)
    bare = make_record("t001", 200.0, knobs=FAST, gate=None)
    assert [point.id for point in eligible(points_of([gated, bare]))] == ["t000"]
    assert [point.id for point in eligible(points_of([bare]))] == ["t001"]


def test_a_lucky_single_reading_does_not_win(make_record: Make) -> None:
    records = [
        make_record("t000", 100.0, purpose=Purpose.BASELINE),
        make_record("t001", 110.0, knobs=FAST),
        make_record("t001r1", 110.0, knobs=FAST, replicate_of="t001"),
        make_record("t002", 111.0, knobs={**FAST, "overlap.ratio": 0.1}, noise_frac=0.05),
    ]
    best = best_of(points_of(records))
    assert best is not None
    assert best.id == "t001"
    certain = make_record("t003", 130.0, knobs={**FAST, "overlap.ratio": 0.2}, noise_frac=0.01)
    best = best_of(points_of([*records, certain]))
    assert best is not None
    assert best.id == "t003"


def test_nothing_measured_is_no_best(make_record: Make) -> None:
    record = make_record("t000", kind=OutcomeKind.INFEASIBLE, reason="memory")
    assert best_of(points_of([record])) is None
    assert best_of([]) is None


def test_a_restless_baseline_leaves_a_quiet_point_its_own_interval(make_record: Make) -> None:
    rates = {"t000": (85.0, 100.0, 118.0, 104.0), "t001": (150.0, 150.2, 149.9, 150.1)}
    records = [
        make_record(
            name + (f"r{visit}" if visit else ""),
            rate,
            purpose=Purpose.BASELINE if name == "t000" and not visit else Purpose.REPLICATE,
            replicate_of=name if visit else None,
            **({"knobs": FAST} if name == "t001" else {}),
            at_s=10.0 * visit + (name == "t001"),
        )
        for name, group in rates.items()
        for visit, rate in enumerate(group)
    ]
    restless, quiet = points_of(records)
    assert quiet.throughput is not None
    assert restless.throughput is not None
    assert quiet.throughput.half_width_frac < 0.006
    assert restless.throughput.half_width_frac > 0.08
    assert quiet.between_frac < 0.1 * restless.between_frac
