"""The control line over gloo: values of any size, from every rank to every rank."""

from collections.abc import Callable
from typing import Any

import pytest

from lf_ray.testing.ranks import RankPlace, RankPool


def gathered(place: RankPlace, sizes: list[int]) -> list[list[Any]]:
    from lf_ray.trial.ranks.control import GlooControl

    control = GlooControl(place.control_group)
    value = {"rank": control.rank, "text": "x" * sizes[control.rank], "none": None}
    return [control.gather(value), control.gather(None)]


def from_rank_0(place: RankPlace, size: int) -> list[Any]:
    from lf_ray.trial.ranks.control import GlooControl

    control = GlooControl(place.control_group)
    return [control.broadcast(f"{control.rank}{'y' * size}"), control.broadcast([1.5, None])]


@pytest.mark.parametrize("sizes", [[0, 10], [10, 50_000], [9_000, 3], [4096 - 42, 4096]])
def test_every_rank_gets_every_value(ranks: Callable[[int], RankPool], sizes: list[int]) -> None:
    expected = [{"rank": rank, "text": "x" * sizes[rank], "none": None} for rank in (0, 1)]
    for values, nothing in ranks(2).run(gathered, sizes):
        assert values == expected
        assert nothing == [None, None]


@pytest.mark.parametrize("size", [0, 4094, 4095, 100_000])
def test_rank_0_s_value_reaches_all(ranks: Callable[[int], RankPool], size: int) -> None:
    for text, plain in ranks(2).run(from_rank_0, size):
        assert text == "0" + "y" * size
        assert plain == [1.5, None]
