"""The space: what is refused, what is the same, what it is called."""

import pytest

from lf_ray.errors import ConfigError
from lf_ray.search.ladder import batch_ladder, bucket_ladder, coarse
from lf_ray.search.space import Literal, point_key, space_diff, space_from_literal
from lf_ray.testing.objectives import BASELINE_KNOBS

MIB = 2**20


@pytest.mark.parametrize(
    ("literal", "words"),
    [
        ({"overlap.bucket_size": [1.0]}, "overlap.bucket_size_mb"),
        ({"overlap.ratio": [0.5, 1.5]}, "within [0, 1]"),
        ({"overlap.ratio": 0.5}, "Did you mean [0.5]?"),
        ({"overlap.ratio": "0.5"}, "Did you mean ['0.5']?"),
        ({"overlap.ratio": ["0.5"]}, "is a number"),
        ({"overlap.ratio": []}, "at least one value"),
        ({"overlap.ratio": [0.5, 0.5]}, "each value once"),
        ({"overlap.ratio": [True]}, "is a number"),
        ({"overlap.ratio": [float("nan")]}, "within [0, 1]"),
        ({"overlap.bucket_size_mb": [0]}, "within"),
        ({"batch.per_gpu": [4.0]}, "a whole number"),
        ({"batch.per_gpu": [0]}, "within [1, inf]"),
        ({"pipeline.prefix": [True]}, "off, on"),
        ({"graph.scope": ["whole"]}, "off, step, step+optimizer"),
        ({"memory.block_sizes": [[1, 2, 4]]}, "Write a list as a string"),
        ({"memory.block_sizes": ["1,2,4"]}, "1-2-4-8"),
        ({}, "at least one knob"),
    ],
)
def test_wrong_literals_are_refused_with_the_cure(literal: Literal, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        space_from_literal(literal, BASELINE_KNOBS)
    assert words in str(caught.value)
    assert "While reading the search space" in str(caught.value)


def test_numbers_are_sorted_and_words_keep_their_order() -> None:
    space = space_from_literal(
        {"overlap.ratio": [1, 0.0, 0.5], "graph.scope": ["step", "off"]}, BASELINE_KNOBS
    )
    assert space.choices["overlap.ratio"] == (0.0, 0.5, 1.0)
    assert space.choices["graph.scope"] == ("step", "off")


@pytest.mark.parametrize(
    ("gradient_mib", "first", "last", "count"),
    [(38, 0.25, 32.0, 9), (4096, 16.0, 4096.0, 10), (1, 1 / 64, 1.0, 7), (0.01, 0.01, 0.01, 1)],
)
def test_bucket_ladder_spans_what_is_sent(
    gradient_mib: float, first: float, last: float, count: int
) -> None:
    values = bucket_ladder().values(int(gradient_mib * MIB))
    assert values[0] == pytest.approx(first, rel=0.05)
    assert values[-1] == pytest.approx(last, rel=0.05)
    assert len(values) == count
    assert (25.0 in values) == (25 <= gradient_mib <= 6400)


def test_a_ladder_is_resolved_with_the_baselines_own_value_in_it() -> None:
    own = {**BASELINE_KNOBS, "overlap.bucket_size_mb": 48.0}
    space = space_from_literal({"overlap.bucket_size_mb": bucket_ladder()}, own)
    assert space.num_points() == 0
    assert 48.0 in space.resolved(38 * MIB).choices["overlap.bucket_size_mb"]


def test_batch_ladder_has_powers_of_two_and_the_halves_between() -> None:
    assert batch_ladder(2, 24) == [2, 3, 4, 6, 8, 12, 16, 24]


def test_knobs_that_can_do_nothing_are_folded_away() -> None:
    space = space_from_literal(
        {
            "pipeline.prefix": ["off", "on"],
            "graph.scope": ["off", "step", "step+optimizer"],
            "memory.backend": ["caching", "arena"],
            "memory.block_sizes": ["1-2-4", "2-8"],
            "batch.per_gpu": [4, 8],
            "batch.lr_rule": ["linear", "none"],
        },
        BASELINE_KNOBS,
    )
    points = list(space.points())
    assert len(points) == (2 + 1 + 1) * (1 + 2) * (1 + 2)
    assert len({point_key(point) for point in points}) == len(points)
    for point in points:
        assert point["pipeline.prefix"] == "off" or point["graph.scope"] == "step+optimizer"
        assert (point["memory.block_sizes"] == "none") == (point["memory.backend"] == "caching")
        assert point["batch.lr_rule"] == "none" or point["batch.per_gpu"] == 8
    assert space.canonical(points[5]) == points[5]


def test_4_and_4_0_are_one_point() -> None:
    assert point_key({"a": 4, "b": "x"}) == point_key({"b": "x", "a": 4.0})


def test_the_articles_values_are_clipped_to_the_ladder() -> None:
    space = space_from_literal(
        {"overlap.bucket_size_mb": [1.0, 2.0, 32.0], "overlap.ratio": [0.0, 0.5, 1.0]},
        BASELINE_KNOBS,
    )
    assert space.clipped("overlap.bucket_size_mb", 64.0) == 32.0
    assert space.clipped("overlap.ratio", 0.8) == 1.0


def test_a_changed_space_is_told_in_words() -> None:
    """O5: what a resume is refused with."""
    old = space_from_literal(
        {"batch.per_gpu": [16, 32], "overlap.ratio": [0.0, 1.0]}, BASELINE_KNOBS
    )
    new = space_from_literal(
        {"batch.per_gpu": [16, 32, 64], "overlap.bucket_size_mb": bucket_ladder()}, BASELINE_KNOBS
    )
    assert space_diff(old.to_plain(), new.to_plain()) == [
        "batch.per_gpu choices [16, 32] -> [16, 32, 64]",
        "overlap.ratio removed (choices were [0.0, 1.0])",
        "overlap.bucket_size_mb added: choices "
        "[powers of two plus 25 MiB within [max(1/64, G/256), G]]",
    ]
    assert old.fingerprint != new.fingerprint
    assert space_diff(old.to_plain(), old.to_plain()) == []


def test_coarse_keeps_ends_and_wanted_values() -> None:
    values = tuple(float(step) for step in range(11))
    assert coarse(values, {4.0}, 6) == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert coarse(values, {3.0, 4.0, 5.0}, 4) == [0.0, 3.0, 4.0, 5.0, 10.0]
    assert coarse(values[:3], set(), 6) == [0.0, 1.0, 2.0]
