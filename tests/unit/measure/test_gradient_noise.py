"""The noise scale's estimators on gradients whose covariance is known."""

import math

import numpy as np
import pytest

from lf_ray.measure.gradient_noise import (
    GradientNoise,
    efficiency,
    efficiency_interval,
    gradient_noise,
    noise_metrics,
    noise_of,
    noise_scale,
    pooled_noise,
)

WIDTH, NOISE_SD = 400, 0.5


def drawn(rng: np.random.Generator, steps: int, small: int, ranks: int) -> GradientNoise:
    """Returns the estimate of steps whose per-sample gradients scatter around one vector."""
    true = np.full(WIDTH, 0.1)
    local = true + NOISE_SD / math.sqrt(small) * rng.standard_normal((steps, ranks, WIDTH))
    small_sq = (local**2).sum(axis=2).mean(axis=1)
    big_sq = (local.mean(axis=1) ** 2).sum(axis=1)
    return gradient_noise(list(small_sq), list(big_sq), small, small * ranks)


TRUE_SIGNAL = WIDTH * 0.1**2
TRUE_SCALE = WIDTH * NOISE_SD**2 / TRUE_SIGNAL


@pytest.mark.parametrize(("small", "ranks"), [(1, 2), (4, 2), (8, 8)])
def test_signal_and_trace_are_unbiased(small: int, ranks: int) -> None:
    rng = np.random.default_rng(small * ranks)
    found = [drawn(rng, 8, small, ranks) for _ in range(400)]
    signals, traces = [item.signal for item in found], [item.trace for item in found]
    for values, true in ((signals, TRUE_SIGNAL), (traces, WIDTH * NOISE_SD**2)):
        error = np.std(values) / math.sqrt(len(values))
        assert abs(np.mean(values) - true) < 4 * error


def test_the_interval_holds_the_true_scale_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(500):
        scale = noise_scale(drawn(rng, 24, 4, 2))
        hits += scale.lo <= TRUE_SCALE <= scale.hi
    assert 0.92 <= hits / 500 <= 0.98


def test_visits_pool_to_a_narrower_interval() -> None:
    rng = np.random.default_rng(2)
    visits = [drawn(rng, 6, 4, 2) for _ in range(20)]
    pooled = pooled_noise(visits)
    assert pooled is not None
    assert pooled.steps == 120
    whole, one = noise_scale(pooled, 20), noise_scale(visits[0])
    assert whole.hi - whole.lo < one.hi - one.lo
    assert whole.lo <= TRUE_SCALE <= whole.hi
    assert pooled_noise([]) is None


def test_visits_that_disagree_widen_it() -> None:
    one = GradientNoise(signal=1.0, trace=10.0, signal_var=1e-6, trace_var=1e-4, cov=0.0, steps=10)
    other = GradientNoise(
        signal=2.0, trace=10.0, signal_var=1e-6, trace_var=1e-4, cov=0.0, steps=10
    )
    pooled = pooled_noise([one, other])
    assert pooled is not None
    assert pooled.signal_var > 0.1


def test_no_signal_gives_an_open_end_and_no_infinite_number_in_a_record() -> None:
    noise = GradientNoise(signal=-0.1, trace=10.0, signal_var=1.0, trace_var=1.0, cov=0.0, steps=6)
    scale = noise_scale(noise)
    assert scale.hi == math.inf
    assert scale.lo > 0
    kept = noise_metrics(noise, 64, 8)
    assert all(math.isfinite(value) for value in kept.values())
    assert noise_of(kept) == noise
    assert noise_of({}) is None


def test_efficiency_is_polluxs() -> None:
    assert efficiency(32.0, 8, 8) == 1
    assert efficiency(32.0, 32, 8) == pytest.approx(40 / 64)
    assert efficiency(0.0, 32, 8) == pytest.approx(8 / 32)
    assert efficiency(math.inf, 10**6, 8) == 1
    assert efficiency(32.0, 4, 8) > 1
    noise = drawn(np.random.default_rng(3), 50, 4, 2)
    worth = efficiency_interval(noise_scale(noise), 64, 8)
    assert worth.lo <= worth.value <= worth.hi <= 1


def test_equal_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="small and a large"):
        gradient_noise([1.0, 1.0], [1.0, 1.0], 8, 8)
