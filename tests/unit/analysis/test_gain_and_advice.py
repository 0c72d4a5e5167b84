"""Gains, break-even, economics, roofline and frontier on numbers worked out by hand."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from lf_ray.analysis.advice import advice_in_words, roofline, wait_of, wait_share
from lf_ray.analysis.frontier import frontier, loss_at
from lf_ray.analysis.gain import break_even_steps, economics, gain_over
from lf_ray.analysis.knee import knee_estimate
from lf_ray.analysis.points import points_of
from lf_ray.analysis.slices import slice_of
from lf_ray.protocol import Purpose, TrialRecord

Make = Callable[..., TrialRecord]
BUCKET = "overlap.bucket_size_mb"


def _pair(make: Make, fast: float = 125.0) -> tuple[TrialRecord, TrialRecord]:
    base = make(
        "t000",
        100.0,
        purpose=Purpose.BASELINE,
        phases_s={"data_wait": 0.004, "backward": 0.05, "comm_exposed": 0.016},
        memory_bytes={"peak": 2.0 * 2**30},
        effective={"num_buckets": 2},
    )
    best = make(
        "t001",
        fast,
        knobs={BUCKET: 8.0, "overlap.ratio": 1.0},
        memory_bytes={"peak": 2.5 * 2**30},
        effective={"num_buckets": 5},
        seed=1,
    )
    return base, best


def test_gain_and_break_even(make_record: Make) -> None:
    base, best = points_of(_pair(make_record))
    gain = gain_over(base, best)
    assert gain.value == pytest.approx(1.25, rel=0.002)
    assert gain.lo < 1.25 < gain.hi
    # 10 ms a sample against 8: 2 ms won a sample, 16 ms a step of 8; 32 s are back in 2000 steps.
    assert break_even_steps(base, best, 32.0) == pytest.approx(2000, rel=0.02)
    assert break_even_steps(best, base, 32.0) is None
    assert gain_over(base, base).lo == 1.0


def test_economics_say_what_a_step_buys_and_costs(make_record: Make) -> None:
    base, best = _pair(make_record, fast=101.0)
    points = points_of([base, best])
    along = slice_of(points, points[1], BUCKET, [8.0, 25.0], baseline_value=25.0)
    knee = knee_estimate(along, delta=0.005)
    assert knee.value == 8.0
    (said,) = economics(along, knee, points)
    assert said.startswith(f"{BUCKET}: stopping at 25 MiB gives up 1.0%")
    low, high = re.findall(r"([-\d.]+)%", said.partition("95 %: ")[2])[:2]
    assert float(low) <= 1.0 <= float(high)
    assert "3 fewer collectives a step and 0.50 GiB less peak memory" in said


def test_the_roofline_bounds_what_tuning_can_give(make_record: Make) -> None:
    base, _ = points_of(_pair(make_record))
    found = roofline(base)
    assert found is not None
    assert found.removable_s["communication"] == pytest.approx(0.016)
    assert found.bound == pytest.approx(0.08 / 0.06, rel=0.01)
    assert next(iter(found.shares)) == "backward"
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert not found.data_bound
    said = " ".join(advice_in_words(found, found))
    assert "backward 62%" in said or "backward 63%" in said
    assert "at most 1.33x" in said


def test_the_wait_for_data_has_an_interval(make_record: Make) -> None:
    rng = np.random.default_rng(0)

    def waiting(name: str, share: float, noise: float) -> TrialRecord:
        record = make_record(
            name, 100.0, num_steps=40, replicate_of="t000" if name > "t000" else None
        )
        assert record.trace is not None
        waits = tuple(
            max(0.0, wall_s * (share + noise * float(rng.standard_normal())))
            for wall_s in record.trace.wall_s
        )
        return replace(record, trace=replace(record.trace, wait_s=waits))

    (one,) = points_of([waiting("t000", 0.3, 0.1)])
    wait = wait_of(one)
    assert wait.num_parts == 10, "runs of four steps"
    assert wait.lo is not None
    assert wait.hi is not None
    assert 0.2 < wait.lo < wait.value < wait.hi < 0.4
    assert wait_share(one) == wait.value
    found = roofline(one)
    assert found is not None
    said = " ".join(advice_in_words(found, found))
    assert f"waits for data {wait.value:.0%} (95 %: {wait.lo:.0%} to {wait.hi:.0%})" in said
    # Five visits that differ say more of the next visit than their steps do.
    visits = [waiting(f"t000r{i}" if i else "t000", 0.1 + 0.1 * i, 0.01) for i in range(5)]
    (many,) = points_of(visits)
    apart = wait_of(many)
    assert apart.num_parts == 5
    assert apart.lo is not None
    assert apart.lo < 0.15
    (bare,) = points_of([make_record("t000", 100.0)])
    assert wait_of(bare).value == 0.0


def test_without_phases_the_communication_left_comes_from_a_step_that_sends_nothing(
    make_record: Make,
) -> None:
    (point,) = points_of([make_record("t000", 100.0, metrics={"t_no_comm_s": 0.07})])
    found = roofline(point)
    assert found is not None
    assert found.removable_s["communication"] == pytest.approx(0.01, rel=0.05)


def test_the_frontier_drops_only_what_is_certainly_beaten(make_record: Make) -> None:
    records = [
        make_record("t000", 100.0, memory_bytes={"peak": 2e9}),
        make_record("t001", 120.0, knobs={"k": 1}, memory_bytes={"peak": 3e9}),
        make_record("t002", 90.0, knobs={"k": 2}, memory_bytes={"peak": 2.5e9}),
        make_record("t003", 119.9, knobs={"k": 3}, memory_bytes={"peak": 3e9}, seed=3),
    ]
    standing = {item.point.id: item.beaten_by for item in frontier(points_of(records))}
    assert standing["t002"] == ("t000",)
    assert standing["t000"] == standing["t001"] == standing["t003"] == ()


def test_loss_is_compared_at_equal_samples(make_record: Make) -> None:
    (point,) = points_of([make_record("t000", 100.0, num_steps=40)])
    found = loss_at(point, 160)  # 20 steps of 8 samples: the mean of steps 17 to 20
    assert found is not None
    assert found[0] == pytest.approx(sum(1 / n for n in range(17, 21)) / 4)
    assert loss_at(point, 100_000) is None
