"""Buckets cut by hand: contiguous in layer order, or refused."""

import pytest

from lf_ray.errors import ConfigError
from lf_ray.protocol import GradientTensor
from lf_ray.runtime.article.bounds import Bounds, hand_cut, head_cut

NAMES = ["a.w", "a.b", "b.w", "b.b", "c.w"]
LAYERS = ["a", "a", "b", "b", "c"]


@pytest.mark.parametrize(
    "bounds", [[["a", "b"], ["c"]], ["b", "c"], [(0, 2), (2, 3)], [["a.w", "a.b", "b"], ["c.w"]]]
)
def test_ways_to_say_the_same_cut(bounds: Bounds) -> None:
    assert hand_cut(NAMES, LAYERS, bounds) == [["a.w", "a.b", "b.w", "b.b"], ["c.w"]]


@pytest.mark.parametrize(
    "bounds",
    [
        [["a", "c"], ["b"]],  # not contiguous
        [["b"], ["a", "c"]],
        [["a", "b"]],  # c is left out
        [["a", "b"], ["b", "c"]],  # b is in two
        [(0, 1), (2, 3)],
        ["c", "b"],
    ],
)
def test_cut_that_is_not_contiguous_is_refused(bounds: Bounds) -> None:
    with pytest.raises(ConfigError, match="contiguous in layer order"):
        hand_cut(NAMES, LAYERS, bounds)


def test_unknown_layer_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="nearest are"):
        hand_cut(NAMES, LAYERS, [["a", "bb"], ["c"]])


def test_head_has_buckets_of_its_own_size() -> None:
    gradients = [
        GradientTensor(name=f"{part}.{index}.w", num_elements=2**17, layer=f"{part}.{index}")
        for part in ("action_head", "trunk")
        for index in range(4)
    ]
    ends = head_cut(gradients, 2.0, 0.5, "fp32")
    assert ends == [
        *(f"action_head.{index}.w" for index in range(4)),
        "trunk.3.w",
    ]
    with pytest.raises(ConfigError, match="ends in head"):
        head_cut(gradients[4:], 2.0, 0.5, "fp32")
