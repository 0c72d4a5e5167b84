import numpy as np
import pytest

from lf_ray.measure import drift_of, pooled, visit_interval
from lf_ray.measure.drift import Drift, shared_by
from lf_ray.protocol import Interval
from lf_ray.testing.sim.noise import StepNoise

NOISE = StepNoise(cv=0.006, phi=0.2, between_frac=0.003)


def speed(at_s: float) -> float:
    """A device that needs 20 s to clock up and throttles when hot."""
    warm = min(1.0, 0.8 + 0.2 * at_s / 20)
    return 0.9 if at_s > 120 else warm


def test_a_steady_machine_shows_no_drift() -> None:
    rng = np.random.default_rng(31)
    found = []
    for _ in range(200):
        rows = NOISE.factors(rng, 5, 24)
        visits = [(60.0 * index, visit_interval(row)) for index, row in enumerate(rows)]
        found.append(drift_of(visits).found)
    assert np.mean(found) < 0.02


def test_a_drift_is_found_flagged_and_taken_out() -> None:
    rng = np.random.default_rng(32)
    at_s = np.linspace(0, 600, 7)
    slow = 1 + 0.08 * at_s / 600
    rows = NOISE.factors(rng, 7, 30) * slow[:, None]
    drift = drift_of([(date, visit_interval(row)) for date, row in zip(at_s, rows)])
    assert drift.found
    assert drift.flagged
    assert drift.range_frac == pytest.approx(0.08, abs=0.01)
    late = visit_interval(NOISE.factors(rng, 1, 30)[0] * 2 * 1.08)
    corrected = drift.corrected(late, 600.0)
    assert corrected.value == pytest.approx(2 * slow.mean(), rel=0.01)
    assert corrected.half_width_frac > late.half_width_frac


def test_an_eager_baseline_that_scatters_is_not_called_a_drift() -> None:
    rng = np.random.default_rng(35)
    eager = StepNoise(cv=0.03, phi=0.4, between_frac=0.02)
    for num_visits, most in ((2, 0.01), (3, 0.01), (6, 0.09)):
        found = []
        for _ in range(200):
            rows = eager.factors(rng, num_visits, 40)
            visits = [(60.0 * index, visit_interval(row)) for index, row in enumerate(rows)]
            found.append(drift_of(visits).found)
        assert np.mean(found) <= most


def test_a_steady_fall_over_four_visits_is_found() -> None:
    rows = NOISE.factors(np.random.default_rng(36), 4, 30)
    slow = np.array([1.06, 1.04, 1.02, 1.0])
    visits = [(60.0 * i, visit_interval(row * slow[i])) for i, row in enumerate(rows)]
    assert drift_of(visits).found


def test_one_baseline_says_nothing_about_drift() -> None:
    visit = visit_interval(NOISE.factors(np.random.default_rng(33), 1, 30)[0])
    drift = drift_of([(5.0, visit)])
    assert not drift.found
    assert "can't" in drift.reason
    assert drift.corrected(visit, 50.0) == visit


def test_the_true_best_wins_in_shuffled_orders_on_a_ramping_throttling_device() -> None:
    true_step_s = {"a": 1.00, "b": 1.04, "c": 1.05, "d": 1.08}
    rng = np.random.default_rng(34)
    won, won_uncorrected = 0, 0
    for _ in range(10):
        at_s = 0.0
        baselines: list[tuple[float, str, Interval]] = []
        visits: list[tuple[float, str, Interval]] = []
        order = [str(name) for name in rng.permutation(list(true_step_s))]
        for name in ["base", *order, "base", *order[::-1], "base"]:
            for part in ("base", name):
                row = NOISE.factors(rng, 1, 24)[0] * true_step_s.get(part, 1.2) / speed(at_s)
                reading = visit_interval(row)
                (baselines if part == "base" else visits).append((at_s, part, reading))
                at_s += float(row.sum())
        drift = drift_of([(date, reading) for date, _, reading in baselines])
        points = {
            name: pooled(
                [drift.corrected(read, date) for date, part, read in visits if part == name]
            )
            for name in true_step_s
        }
        first = {part: read.value for _, part, read in reversed(visits)}
        won += min(points, key=lambda name: points[name].value) == "a"
        won_uncorrected += min(first, key=lambda name: first[name]) == "a"
    assert won >= 9
    assert won > won_uncorrected


def rising(rng: np.random.Generator) -> Drift:
    """An eager baseline that gains 19 % in six visits, as one on an H200 did."""
    rows = NOISE.factors(rng, 6, 40) * (1.19 - 0.038 * np.arange(6))[:, None]
    return drift_of([(30.0 * index, visit_interval(row)) for index, row in enumerate(rows)])


def visits_of(
    rng: np.random.Generator, dates: list[float], drift: Drift | None = None
) -> list[tuple[float, Interval]]:
    rows = NOISE.factors(rng, len(dates), 40)
    factors = [drift.factor(date) if drift else 1.0 for date in dates]
    return [(d, visit_interval(row * f)) for d, row, f in zip(dates, rows, factors)]


def test_a_move_of_the_baseline_alone_is_not_taken_out_of_others() -> None:
    rng = np.random.default_rng(37)
    drift = rising(rng)
    assert drift.found
    steady = [visits_of(rng, [10.0, 80.0, 140.0]), visits_of(rng, [30.0, 100.0])]
    alone = shared_by(drift, steady)
    assert (alone.found, alone.alone) == (False, True)
    assert alone.factor(10.0) == alone.factor(140.0) == 1.0
    assert "those of other settings did not (3 repeats)" in alone.reason


def test_a_move_that_others_share_is_taken_out() -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        drift = rising(rng)
        moved = [visits_of(rng, [10.0, 80.0, 140.0], drift), visits_of(rng, [30.0, 100.0], drift)]
        assert shared_by(drift, moved) == drift


def test_few_repeats_prove_nothing() -> None:
    rng = np.random.default_rng(38)
    drift = rising(rng)
    assert shared_by(drift, [visits_of(rng, [10.0, 140.0]), visits_of(rng, [70.0])]) == drift
    still = drift_of(visits_of(rng, [0.0, 30.0, 60.0, 90.0]))
    assert shared_by(still, [visits_of(rng, [10.0, 50.0, 70.0, 90.0])]) == still
