"""Ratios of sums over parts: known values, few parts, how often the interval holds the truth."""

import numpy as np
import pytest

from lf_ray.measure.clusters import part_ratio


def test_a_ratio_weighs_its_parts_by_size_and_one_part_says_nothing_of_others() -> None:
    found = part_ratio([1.0, 6.0], [10.0, 20.0])
    assert found is not None
    assert found.value == pytest.approx(7 / 30)
    assert found.lo == 0.0  # two parts: Student's t with one degree of freedom
    assert found.hi is not None
    assert found.hi > found.value
    alone = part_ratio([1.0], [10.0])
    assert alone is not None
    assert (alone.value, alone.lo, alone.hi, alone.num_parts) == (0.1, None, None, 1)
    assert part_ratio([], []) is None
    assert part_ratio([0.0], [0.0]) is None
    same = part_ratio([1.0, 2.0, 3.0], [10.0, 20.0, 30.0])
    assert same is not None
    assert same.lo == pytest.approx(0.1)
    assert same.hi == pytest.approx(0.1)


def test_the_interval_holds_the_truth_though_values_of_a_part_are_alike() -> None:
    rng = np.random.default_rng(0)
    hits = {"parts": 0, "values": 0}
    for _ in range(1000):
        levels = 0.2 * np.exp(0.3 * rng.standard_normal(10) - 0.045)
        values = [level * (1 + 0.1 * rng.standard_normal(16)) for level in levels]
        parts = part_ratio([float(item.sum()) for item in values], [16.0] * 10)
        single = part_ratio([float(x) for item in values for x in item], [1.0] * 160)
        for name, found in (("parts", parts), ("values", single)):
            assert found is not None
            assert found.lo is not None
            assert found.hi is not None
            hits[name] += found.lo <= 0.2 <= found.hi
    assert 0.92 <= hits["parts"] / 1000 <= 0.97
    assert hits["values"] / 1000 < 0.6, "alike values are no separate readings"
