import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lf_ray.measure import read_visit, steady_state
from lf_ray.testing.sim.noise import StepNoise

TRUTH_MS = 366.98
DATA = Path(__file__).parents[2] / "data"


def loongforge_trace() -> np.ndarray:
    """LoongForge's own GR00T N1.6 trace by its published shape, in ms: capture is the 4th step."""
    rng = np.random.default_rng(3)
    level = rng.normal(0, 1.5, 16)
    return np.concatenate([[7176, 435, 409, 3725], TRUTH_MS + level - level.mean()])


def test_fixed_windows_misread_the_capture_step_and_the_change_point_does_not() -> None:
    trace_ms = loongforge_trace()
    window = trace_ms[2:5].mean()
    skip_three = trace_ms[3:].mean()
    skip_one = trace_ms[1:].mean()
    assert window / TRUTH_MS - 1 == pytest.approx(3.09, abs=0.02)
    assert skip_three / TRUTH_MS - 1 == pytest.approx(0.539, abs=0.02)
    assert skip_one / TRUTH_MS - 1 == pytest.approx(0.50, abs=0.03)

    reading = read_visit(trace_ms / 1000, samples_per_step=16)
    assert reading.step_s is not None
    assert reading.steady.first == 4
    assert reading.step_s.value * 1000 == pytest.approx(TRUTH_MS, rel=0.01)
    assert reading.one_off_s == pytest.approx((7176 + 435 + 409 + 3725 - 4 * TRUTH_MS) / 1000, 1e-3)


def test_a_huge_step_in_the_middle_neither_moves_the_cut_nor_vanishes() -> None:
    trace_s = np.full(40, 0.5) + np.random.default_rng(0).normal(0, 0.002, 40)
    trace_s[0] = 9.0
    trace_s[24] = 46.5
    reading = read_visit(trace_s, 1)
    assert reading.steady.first == 1
    assert reading.step_s is not None
    assert reading.typical_step_s == pytest.approx(0.5, rel=0.01)
    assert reading.step_s.value == pytest.approx((0.5 * 38 + 46.5) / 39, rel=0.01)


def test_a_level_that_doubles_late_is_not_settled() -> None:
    trace_s = np.full(20, 2.8) + np.random.default_rng(1).normal(0, 0.03, 20)
    trace_s[13:] += 2.9
    assert not steady_state(trace_s).settled


@pytest.mark.parametrize(
    ("total_frac", "cv", "at_least"),
    [(0.1, 0.005, 0.98), (0.3, 0.02, 0.98), (0.3, 0.05, 0.8)],
)
def test_a_ramp_is_not_settled(total_frac: float, cv: float, at_least: float) -> None:
    noise = StepNoise(cv=cv, phi=0.2, between_frac=0)
    series = noise.factors(np.random.default_rng(5), 200, 40)
    series *= 1 + total_frac * (1 - np.arange(40) / 40)
    assert np.mean([not steady_state(row).settled for row in series]) >= at_least


def test_a_falling_eager_series_settles_only_once_it_is_level() -> None:
    noise = StepNoise(cv=0.02, phi=0.3, settle_frac=0.5, settle_steps=8)
    series = noise.factors(np.random.default_rng(6), 200, 120)
    early = [steady_state(row[:16]).settled for row in series]
    late = [steady_state(row) for row in series]
    assert np.mean(early) < 0.1
    assert np.mean([item.settled for item in late]) > 0.75
    means = [row[item.first :].mean() for row, item in zip(series, late) if item.settled]
    assert np.mean(means) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("phi", [0.0, 0.3, 0.5])
def test_a_level_series_is_left_whole(phi: float) -> None:
    series = StepNoise(cv=0.03, phi=phi).factors(np.random.default_rng(7), 1000, 40)
    found = [steady_state(row) for row in series]
    assert np.mean([item.settled for item in found]) > 0.97
    assert np.mean([item.first == 0 for item in found]) > 0.95


def test_too_few_steps_are_an_error_in_words_and_no_zero() -> None:
    reading = read_visit([1.0] * 5, samples_per_step=4)
    assert "5 steps" in reading.error
    assert reading.step_s is None
    assert reading.throughput_samples_per_s is None


def test_steady_and_end_to_end_stand_side_by_side() -> None:
    steps_s = [1.0] * 5 + [0.1] * 14 + [1.0]
    reading = read_visit(steps_s, samples_per_step=8)
    assert reading.steady.first == 5
    assert reading.typical_step_s == pytest.approx(0.1)
    assert reading.end_to_end_samples_per_s == pytest.approx(20 * 8 / sum(steps_s))
    assert reading.step_s is not None
    assert reading.step_s.value == pytest.approx((14 * 0.1 + 1.0) / 15)


@settings(max_examples=30, deadline=None)
@given(
    scale=st.floats(1e-4, 1e3),
    num_slow=st.integers(0, 8),
    factor=st.floats(2, 50),
    seed=st.integers(0, 1000),
)
def test_the_cut_follows_the_slow_front_whatever_the_unit(
    scale: float, num_slow: int, factor: float, seed: int
) -> None:
    steps = StepNoise(cv=0.004, phi=0.2).factors(np.random.default_rng(seed), 1, 40)[0]
    steps[:num_slow] *= factor
    found = steady_state(steps * scale)
    assert found == steady_state(steps)
    if found.settled:
        assert found.first >= num_slow


def test_an_eager_step_that_wanders_is_read_with_a_wide_interval() -> None:
    traces = json.loads((DATA / "traces" / "eager_3b_h200.json").read_text())["wall_s"]
    for trace in traces:
        reading = read_visit(trace, samples_per_step=32)
        assert not reading.error
        assert reading.step_s is not None
        assert 0.03 < reading.step_s.half_width_frac < 0.2
        assert reading.step_s.lo < np.mean(trace) < reading.step_s.hi


@pytest.mark.parametrize("direction", [-1.0, 1.0])
def test_a_long_ramp_does_not_pass_for_wandering(direction: float) -> None:
    rng = np.random.default_rng(5)
    steps_s = 0.1 * (1 + direction * np.linspace(-0.15, 0.15, 200))
    assert not steady_state(steps_s + rng.normal(0, 0.004, 200)).settled


def test_a_slow_fall_does_not_pass_for_wandering() -> None:
    rng = np.random.default_rng(6)
    steps_s = 0.1 * (1 + 0.5 * np.exp(-np.arange(160) / 80)) + rng.normal(0, 0.004, 160)
    assert not steady_state(steps_s).settled
