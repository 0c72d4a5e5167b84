"""The model of what is left to gain: it picks well and does not stop too early."""

import math

from lf_ray.protocol import KnobValue
from lf_ray.search.samplers.surrogate import Measured, Worth, expected_gain_frac, picked
from lf_ray.search.space import Space, space_from_literal
from lf_ray.testing.objectives import BASELINE_KNOBS


def line(count: int = 21) -> Space:
    return space_from_literal({"data.workers": list(range(count))}, BASELINE_KNOBS)


def rate(workers: int) -> float:
    return 100 - 0.2 * (workers - 12) ** 2


def measured(space: Space, *places: int) -> list[Measured]:
    return [Measured(space.canonical({"data.workers": n}), rate(n), 0.003) for n in places]


def rest(space: Space, *places: int) -> list[dict[str, KnobValue]]:
    return [point for point in space.points() if point["data.workers"] not in places]


def test_nothing_left_is_no_gain_and_too_little_known_is_any_gain() -> None:
    space = line()
    assert expected_gain_frac(space, measured(space, 1, 5), []) == 0.0
    few = expected_gain_frac(space, measured(space, 1, 5), list(space.points()))
    assert few == math.inf


def test_a_known_peak_leaves_less_to_gain_than_an_unknown_one() -> None:
    space = line()
    off, near = (0, 4, 16, 20), (0, 4, 10, 12, 14, 16, 20)
    away = expected_gain_frac(space, measured(space, *off), rest(space, *off))
    there = expected_gain_frac(space, measured(space, *near), rest(space, *near))
    assert away > 0.005
    assert there < 0.002


def test_picks_lie_where_the_peak_must_be() -> None:
    space = line()
    places = (0, 4, 8, 16, 20)
    candidates = rest(space, *places)
    chosen = [
        candidates[i]["data.workers"]
        for i in picked(space, measured(space, *places), candidates, 3)
    ]
    assert 12 in chosen or {11, 13} & set(chosen)
    assert len(set(chosen)) == 3


def test_before_anything_is_known_picks_spread() -> None:
    space = line()
    candidates = list(space.points())
    chosen = [
        int(candidates[i]["data.workers"])
        for i in picked(space, measured(space, 10), candidates, 2)
    ]
    assert set(chosen) == {0, 20}


def test_a_round_touches_few_restart_classes() -> None:
    space = line()
    candidates = list(space.points())
    classes = [int(point["data.workers"]) // 5 for point in candidates]
    chosen = picked(
        space, measured(space, 10), candidates, 6, Worth.alike(len(candidates), classes)
    )
    assert len(chosen) == 6
    assert len({classes[index] for index in chosen}) == 2
    lone = picked(space, measured(space, 10), candidates, 6, Worth.alike(21, range(21)))
    assert len(lone) == 2
