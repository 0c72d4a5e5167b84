import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lf_ray.measure import (
    pooled,
    ratio,
    read_visit,
    throughput,
    visit_interval,
)
from lf_ray.measure.quantiles import poisson_bounds, t_quantile
from lf_ray.protocol import Interval
from lf_ray.testing.sim.noise import Factors, StepNoise

REGIMES = [
    StepNoise(cv=cv, phi=phi, between_frac=0.003, spike_prob=prob, spike_frac=spike)
    for cv, phi, (prob, spike) in itertools.product(
        (0.004, 0.03),
        (0.0, 0.3, 0.45),
        ((0.0, (0.0, 0.0)), (0.03, (0.02, 0.08)), (0.1, (0.05, 0.4))),
    )
]


def with_warm_up(series: Factors, rng: np.random.Generator) -> Factors:
    """A slow front and a capture at the fourth step."""
    series = series.copy()
    series[:, 0] += rng.uniform(1, 20, len(series))
    series[:, 1:3] += 0.12
    series[:, 3] += rng.uniform(2, 10, len(series))
    return series


def covers(interval: Interval, truth: float) -> bool:
    return interval.lo <= truth <= interval.hi


@pytest.mark.parametrize("num_steps", [64, 104])
def test_coverage_at_fixed_n_over_2000_series(num_steps: int) -> None:
    rng = np.random.default_rng(11)
    each = math.ceil(2000 / len(REGIMES))
    hits = []
    for noise in REGIMES:
        series = with_warm_up(noise.factors(rng, each, num_steps), rng)
        for row in series:
            reading = read_visit(row, 1)
            if reading.step_s is not None:
                hits.append(covers(pooled([reading.step_s]), noise.long_run_factor))
    assert len(hits) > 0.98 * each * len(REGIMES)
    assert 0.93 <= np.mean(hits) <= 0.97


@pytest.mark.parametrize("phi", [0.0, 0.15, 0.3])
@pytest.mark.parametrize("num_steps", [24, 44])
def test_coverage_of_short_visits_without_spikes(num_steps: int, phi: float) -> None:
    rng = np.random.default_rng(12)
    noise = StepNoise(cv=0.006, phi=phi, between_frac=0.003)
    readings = [read_visit(row, 1) for row in with_warm_up(noise.factors(rng, 700, num_steps), rng)]
    hits = [covers(pooled([item.step_s]), 1) for item in readings if item.step_s is not None]
    assert len(hits) > 680
    assert 0.93 - 0.015 <= np.mean(hits) <= 0.97 + 0.013  # two binomial errors of 700


def test_without_a_between_part_the_interval_is_too_sure_of_itself() -> None:
    noise = StepNoise(cv=0.004, phi=0.2, between_frac=0.006)
    rows = noise.factors(np.random.default_rng(14), 400, 60)
    within = np.mean([covers(visit_interval(row), 1) for row in rows])
    both = np.mean([covers(pooled([visit_interval(row)], 0.006), 1) for row in rows])
    assert within < 0.5
    assert both > 0.92


def test_spikes_widen_the_upper_side_more() -> None:
    steps_s = np.full(60, 0.1) + np.random.default_rng(0).normal(0, 0.0005, 60)
    steps_s[[20, 40]] = 0.15
    interval = visit_interval(steps_s)
    assert interval.hi - interval.value > 1.2 * (interval.value - interval.lo)


def test_a_quiet_visit_does_not_outweigh_one_with_spikes() -> None:
    rng = np.random.default_rng(1)
    quiet = visit_interval(0.1 + rng.normal(0, 0.0003, 30))
    steps_s = 0.1 + rng.normal(0, 0.0003, 30)
    steps_s[[5, 15, 25]] = 0.15
    spiky = visit_interval(steps_s)
    assert pooled([quiet, spiky]).value == pytest.approx((quiet.value + spiky.value) / 2)


def test_ratio_of_interleaved_visits_is_free_of_drift_and_covers() -> None:
    rng = np.random.default_rng(16)
    noise = StepNoise(cv=0.01, phi=0.2, between_frac=0.003)
    drift = np.array([1.0, 1.02, 1.04, 1.06])[:, None]
    hits = []
    for _ in range(300):
        a1, b1, b2, a2 = noise.factors(rng, 4, 24) * drift * np.array([[1], [0.95], [0.95], [1]])
        point_a = pooled([visit_interval(a1), visit_interval(a2)])
        point_b = pooled([visit_interval(b1), visit_interval(b2)])
        hits.append(covers(ratio(point_a, point_b), 1 / 0.95))
    assert 0.92 <= np.mean(hits) <= 0.985


def test_throughput_turns_the_interval_round() -> None:
    rate = throughput(Interval(value=0.5, lo=0.4, hi=0.8, num_steps=30, num_visits=1), 16)
    assert (rate.value, rate.lo, rate.hi) == (32, 20, 40)


def test_eight_steps_are_the_least() -> None:
    with pytest.raises(ValueError, match="needs 8 steady steps"):
        visit_interval([0.1] * 7)


@settings(max_examples=30, deadline=None)
@given(
    scale=st.floats(1e-3, 1e3),
    num_steps=st.integers(8, 150),
    num_visits=st.integers(1, 5),
    seed=st.integers(0, 500),
)
def test_intervals_hold_their_value_and_follow_the_unit(
    scale: float, num_steps: int, num_visits: int, seed: int
) -> None:
    noise = StepNoise(cv=0.02, phi=0.3, spike_prob=0.05, spike_frac=(0.1, 2.0))
    rows = noise.factors(np.random.default_rng(seed), num_visits, num_steps)
    plain = pooled([visit_interval(row) for row in rows])
    scaled = pooled([visit_interval(row * scale) for row in rows])
    assert 0 < plain.lo <= plain.value <= plain.hi
    assert (plain.num_steps, plain.num_visits) == (num_steps * num_visits, num_visits)
    assert scaled.lo == pytest.approx(plain.lo * scale)
    assert scaled.hi == pytest.approx(plain.hi * scale)


@pytest.mark.parametrize("prob", [0.9, 0.975, 0.999, 0.9995])
@pytest.mark.parametrize("df", [1, 2, 3, 3.7, 5, 9, 40])
def test_t_quantile_agrees_with_scipy(prob: float, df: float) -> None:
    from scipy import stats  # seconds, also for who only collects this file

    assert t_quantile(prob, df) == pytest.approx(stats.t.ppf(prob, df), rel=0.003)


@pytest.mark.parametrize("count", [1, 3, 10])
def test_poisson_bounds_lie_near_the_exact_ones(count: int) -> None:
    from scipy import stats

    low, high = poisson_bounds(count)
    assert stats.gamma.ppf(0.01, count) <= low <= stats.gamma.ppf(0.03, count)
    assert stats.gamma.ppf(0.95, count + 1) <= high <= stats.gamma.ppf(0.975, count + 1)


def test_visits_without_any_spread_pool_without_a_warning() -> None:
    same = Interval(value=0.1, lo=0.1, hi=0.1, num_steps=30, num_visits=1)
    pooled_same = pooled([same, same], 0.0)
    assert pooled_same.value == pytest.approx(0.1)
    assert pooled_same.lo <= pooled_same.value <= pooled_same.hi
