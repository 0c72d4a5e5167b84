"""Which start of the workers a reading comes from, and what that says of its error."""

from collections.abc import Mapping

import numpy as np
import pytest

from lf_ray.measure import drift_of, pooled, ratio
from lf_ray.measure.interval import start_part, widened
from lf_ray.measure.starts import starts_of
from lf_ray.protocol import (
    Interval,
    KnobValue,
    OutcomeKind,
    Purpose,
    TrialOutcome,
    TrialRecord,
    TrialRequest,
)


def came_back(
    at_s: float,
    restart_s: float = 0.0,
    incarnation: float | None = None,
    node: str = "",
) -> TrialRecord:
    effective: Mapping[str, KnobValue] = {"node": node} if node else {}
    return TrialRecord(
        request=TrialRequest(id=f"t{at_s:.0f}", knobs={}, seed=0, purpose=Purpose.SEARCH),
        outcome=TrialOutcome(
            kind=OutcomeKind.COMPLETED, effective=effective, costs_s={"restart": restart_s}
        ),
        metrics={} if incarnation is None else {"incarnation": incarnation},
        clock_s={"requested": at_s},
    )


def reading(value: float) -> Interval:
    return Interval(value=value, lo=value * 0.999, hi=value * 1.001, num_steps=40, num_visits=1)


def test_a_start_is_new_where_it_was_paid_for_or_the_group_was_replaced_meanwhile() -> None:
    records = [
        came_back(0, 20.0, 1),
        came_back(40, 0.0, 1),
        came_back(60),  # raised in the trainable: says nothing of its group
        came_back(70, 0.0, 2),  # replaced between two requests
        came_back(90, 20.0, 3),
        came_back(130, 20.0, 1),  # resumed: counts from one again
        came_back(150, 0.0, 1),
    ]
    assert starts_of(records) == ([1, 1, 1, 2, 3, 4, 4], (70.0, 90.0, 130.0))


def test_groups_on_two_nodes_are_two_starts_side_by_side() -> None:
    names = ["a", "b", "a", "b"]
    records = [came_back(i, 20.0 * (i < 2), 1, name) for i, name in enumerate(names)]
    assert starts_of(records) == ([1, 2, 1, 2], ())


def test_each_start_is_held_against_its_own_baselines() -> None:
    # The second group of workers is 5 % slower from its first step on.
    baselines = [(0.0, reading(1.0)), (50.0, reading(1.001))]
    baselines += [(110.0, reading(1.051)), (160.0, reading(1.05))]
    smeared = drift_of(baselines)
    drift = drift_of(baselines, borders_s=[100.0, 200.0])
    assert drift.found
    assert "2 starts of the workers differ by 4.9%" in drift.reason
    assert drift.factor(101.0) / drift.factor(99.0) == pytest.approx(1.05, abs=0.002)
    assert smeared.factor(101.0) / smeared.factor(99.0) < 1.01
    corrected = [drift.corrected(reading(2.0), 95.0), drift.corrected(reading(2.1), 105.0)]
    assert corrected[0].value == pytest.approx(corrected[1].value, rel=0.002)
    # Of the third nothing is known: it is left as it was read.
    assert drift.corrected(reading(2.0), 250.0) == reading(2.0)


def test_a_drift_with_time_is_read_between_the_baselines_of_a_start() -> None:
    rising = [(float(at_s), reading(1 + 0.0005 * at_s)) for at_s in (0, 50, 90, 110, 150, 190)]
    drift = drift_of(rising, borders_s=[100.0])
    assert drift.found
    for at_s in (25.0, 70.0, 130.0):
        true = drift.corrected(reading(1 + 0.0005 * at_s), at_s).value
        assert true == pytest.approx(1.05, rel=0.03)


@pytest.mark.parametrize("between_frac", [0.002, 0.02])
def test_starts_that_are_alike_are_seldom_told_apart(between_frac: float) -> None:
    rng = np.random.default_rng(11)
    dates = [0.0, 50.0, 110.0, 210.0, 250.0, 290.0]
    found = 0
    for _ in range(500):
        values = 1 + between_frac * rng.standard_normal(len(dates))
        visits = [(date, reading(value)) for date, value in zip(dates, values)]
        found += drift_of(visits, borders_s=[100.0, 200.0]).starts_frac > 0
    assert found / 500 < 0.03


def test_what_visits_share_with_their_start_is_what_pooling_leaves_out() -> None:
    between_frac = 0.01
    assert start_part(between_frac, 3, 3) == 0.0
    assert start_part(between_frac, 1, 4) == pytest.approx(0.01 * np.sqrt(1 - 1 / 4))
    assert start_part(1e-4, 1, 4) > 0.002
    known = start_part(between_frac, 4, 4, starts_frac=0.03)
    assert known == pytest.approx(0.015)
    wide = widened(reading(1.0), 0.01)
    assert wide.hi - 1 == pytest.approx(np.hypot(0.001, 1.96 * 0.01), rel=1e-3)
    assert wide.lo - 1 == pytest.approx(-np.hypot(0.001, 1.96 * 0.01), rel=1e-3)


def test_points_of_different_workers_are_told_apart_no_more_often_than_chance_has_it() -> None:
    rng = np.random.default_rng(7)
    between_frac = 0.01
    covered, covered_without = 0, 0
    for _ in range(1000):
        sides = []
        for _ in range(2):
            start = 1 + 0.01 * rng.standard_normal()
            sides.append(pooled([reading(start) for _ in range(4)], between_frac))
        plain = ratio(*sides)
        found = ratio(*(widened(side, start_part(between_frac, 1, 4)) for side in sides))
        covered += found.lo <= 1 <= found.hi
        covered_without += plain.lo <= 1 <= plain.hi
    assert 0.93 <= covered / 1000 <= 0.975
    assert covered_without / 1000 < 0.8
