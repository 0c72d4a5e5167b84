"""Goodput: throughput times what a sample is worth; the baseline stays where nothing is sure."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from lf_ray.analysis.points import Point, gather
from lf_ray.analysis.staged.goodput import best_worth, noise_scale_of, product, worths
from lf_ray.measure.gradient_noise import gradient_noise, noise_metrics
from lf_ray.protocol import Interval, Purpose, TrialRecord

MakeRecord = Callable[..., TrialRecord]
BASE_BATCH = 8


def metrics(scale: float, batch: int, seed: int) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    wobble = 1 + 0.001 * rng.standard_normal((2, 6))
    small, big = (1 + scale / 4) * wobble[0], (1 + scale / batch) * wobble[1]
    return noise_metrics(gradient_noise(list(small), list(big), 4, batch), batch, BASE_BATCH)


def points(make_record: MakeRecord, scale: float, rates: dict[int, float]) -> list[Point]:
    records = []
    for index, (batch, rate) in enumerate(rates.items()):
        found = make_record(
            f"t{index:03d}",
            rate * BASE_BATCH / batch,  # the maker counts eight samples a step
            knobs={"batch.per_gpu": batch // 2},
            purpose=Purpose.BASELINE if batch == BASE_BATCH else Purpose.SEARCH,
            metrics=metrics(scale, max(batch, 6), index),
        )
        assert found.step_s is not None
        records.append(dataclasses.replace(found, samples_per_step=batch))
    return list(gather(records).points)


RATES = {8: 100.0, 16: 130.0, 32: 160.0}


def test_a_small_noise_scale_keeps_the_baseline_and_a_large_one_takes_the_largest_batch(
    make_record: MakeRecord,
) -> None:
    for true, batch in ((4.0, 8), (40.0, 16), (4000.0, 32)):
        found = points(make_record, true, RATES)
        scale = noise_scale_of(record for point in found for record in point.records)
        assert scale is not None
        assert scale.lo <= scale.value <= scale.hi
        assert scale.value == pytest.approx(true, rel=0.1)
        best = best_worth(worths(found, found[0], scale), found[0])
        assert best is not None
        assert best.point.samples_per_step == batch
    assert best is not None
    assert best.goodput.value == pytest.approx(160 * 4008 / 4032, rel=0.02)


def test_a_gain_that_is_not_certain_keeps_the_baseline(make_record: MakeRecord) -> None:
    found = points(make_record, 4000.0, {8: 100.0, 16: 100.2})
    wide = Interval(value=4000.0, lo=10.0, hi=float("inf"), num_steps=12, num_visits=2)
    rated = worths(found, found[0], wide)
    assert rated[0].gain.lo < 1
    best = best_worth(rated, found[0])
    assert best is not None
    assert best.point is found[0]
    assert best.gain.value == 1


def test_without_a_noise_scale_there_is_none(make_record: MakeRecord) -> None:
    assert noise_scale_of([make_record("t000", 100.0, purpose=Purpose.BASELINE)]) is None


def test_errors_of_a_product_add_in_quadrature() -> None:
    one = Interval(value=2.0, lo=1.8, hi=2.2, num_steps=1, num_visits=1)
    other = Interval(value=3.0, lo=3.0, hi=3.0, num_steps=1, num_visits=1)
    assert product(one, other).lo == pytest.approx(5.4)
    assert product(one, one).lo == pytest.approx(4 * np.exp(-np.hypot(*[np.log(2 / 1.8)] * 2)))


def test_a_batch_in_other_workers_carries_the_error_of_their_start(
    make_record: MakeRecord,
) -> None:
    found = points(make_record, 4000.0, {8: 100.0, 16: 103.0})
    scale = Interval(value=4000.0, lo=3900.0, hi=4100.0, num_steps=12, num_visits=2)
    caching, started = {"memory.backend": "caching"}, []
    for point in found:
        knobs = {**point.knobs, **caching}
        started.append(dataclasses.replace(point, knobs=knobs, start_frac=0.02))
    moved = dataclasses.replace(
        started[1], knobs={**started[1].knobs, "memory.backend": "expandable"}
    )
    same, apart = worths(started, started[0], scale), worths([started[0], moved], started[0], scale)
    assert same[0].gain.lo > 1.01
    assert apart[0].gain.lo < 1
    assert apart[0].gain.value == same[0].gain.value
    assert apart[-1].gain.hi == 1  # the baseline over itself
