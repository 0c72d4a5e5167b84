"""Do gains multiply: verdicts on known rates, and how often the interval holds the truth."""

import math

import numpy as np
import pytest

from lf_ray.analysis.staged.multiply import Multiply, Shared, multiplied
from lf_ray.protocol import Interval


def rate(value: float, half_frac: float = 0.002) -> Interval:
    return Interval(
        value=value,
        lo=value * (1 - half_frac),
        hi=value * (1 + half_frac),
        num_steps=80,
        num_visits=4,
    )


SINGLES = {"graph": rate(120.0), "overlap": rate(110.0)}


@pytest.mark.parametrize(
    ("joint", "verdict"),
    [
        (132.0, Multiply.MULTIPLY),
        (121.0, Multiply.LESS),
        (150.0, Multiply.MORE),
    ],
)
def test_the_verdict_follows_from_joint_over_product(joint: float, verdict: Multiply) -> None:
    found = multiplied(rate(100.0), SINGLES, rate(joint), 0.02)
    assert found.verdict is verdict, found.reason
    assert found.product is not None
    assert found.product.value == pytest.approx(1.32)
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(joint / 132)


def test_wide_intervals_and_a_single_stage_and_a_missing_side_are_undetermined() -> None:
    wide = {name: rate(item.value, 0.05) for name, item in SINGLES.items()}
    found = multiplied(rate(100.0, 0.05), wide, rate(130.0, 0.05), 0.02)
    assert found.verdict is Multiply.UNDETERMINED
    assert "too wide" in found.reason
    alone = multiplied(rate(100.0), {"graph": rate(120.0)}, rate(120.0), 0.02)
    assert alone.verdict is Multiply.UNDETERMINED
    assert "nothing to multiply" in alone.reason
    missing = multiplied(rate(100.0), {**SINGLES, "batch": None}, rate(140.0), 0.02)
    assert missing.verdict is Multiply.UNDETERMINED
    assert "batch alone could not be measured" in missing.reason
    assert missing.product is None
    nothing = multiplied(rate(100.0), {}, rate(100.0), 0.02)
    assert "no stage changed anything" in nothing.reason


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    sd, hits = 0.01, 0
    truth = {"base": 100.0, "a": 120.0, "b": 110.0, "c": 130.0, "joint": 150.0}
    true = 1.5 / (1.2 * 1.1 * 1.3)
    for _ in range(1000):
        seen = {
            name: rate(value * math.exp(sd * rng.standard_normal()), 1.96 * sd)
            for name, value in truth.items()
        }
        singles = {name: seen[name] for name in ("a", "b", "c")}
        found = multiplied(seen["base"], singles, seen["joint"], 0.02)
        assert found.ratio is not None
        hits += found.ratio.lo <= true <= found.ratio.hi
    assert 0.93 <= hits / 1000 <= 0.97


def test_sides_of_other_workers_carry_the_error_of_a_start_and_what_cancels_is_not_counted() -> (
    None
):
    singles = {"memory": rate(120.0), "graph": rate(110.0)}
    bare = multiplied(rate(100.0), singles, rate(132.0), 0.02)
    shared = Shared(baseline=0.01, singles={"memory": 0.02}, joint=0.02)
    found = multiplied(rate(100.0), singles, rate(132.0), 0.02, shared)
    assert bare.verdict is Multiply.MULTIPLY
    assert found.verdict is Multiply.UNDETERMINED
    assert found.singles["graph"] == bare.singles["graph"]
    for mine, theirs, sd in (
        (found.singles["memory"], bare.singles["memory"], math.hypot(0.01, 0.02)),
        (found.joint, bare.joint, math.hypot(0.01, 0.02)),
        (found.product, bare.product, math.hypot(0.01, 0.02)),
        # The baseline and graph run in the same workers, one above and one below the line.
        (found.ratio, bare.ratio, math.hypot(0.02, 0.02)),
    ):
        assert mine is not None
        assert theirs is not None
        assert mine.value == theirs.value
        halves = [math.log(item.hi / item.lo) / 2 for item in (mine, theirs)]
        assert halves[0] == pytest.approx(math.hypot(halves[1], 1.96 * sd), rel=0.02)


def test_the_truth_is_held_where_every_side_has_starts_of_its_own() -> None:
    rng = np.random.default_rng(1)
    visit, start, hits = 0.005, 0.01, 0
    truth = {"base": 100.0, "memory": 120.0, "graph": 110.0, "joint": 150.0}
    true = 1.5 / (1.2 * 1.1)
    shared = Shared(baseline=start, singles={"memory": start}, joint=start)
    for _ in range(1000):
        moods = dict.fromkeys(("base", "graph"), rng.standard_normal())
        moods |= {"memory": rng.standard_normal(), "joint": rng.standard_normal()}
        seen = {
            name: rate(
                value * math.exp(visit * rng.standard_normal() + start * moods[name]), 1.96 * visit
            )
            for name, value in truth.items()
        }
        singles = {name: seen[name] for name in ("memory", "graph")}
        found = multiplied(seen["base"], singles, seen["joint"], 0.02, shared)
        assert found.ratio is not None
        hits += found.ratio.lo <= true <= found.ratio.hi
    assert 0.93 <= hits / 1000 <= 0.97
