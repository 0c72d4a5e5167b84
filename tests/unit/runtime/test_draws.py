"""Draws follow from (seed, step, rank) and nothing else."""

import itertools

import torch

from lf_ray.runtime.draws import step_draws

SHAPES = {"noise_BTA": (4, 3, 2), "time_B": (20_000,)}


def _draws(seed: int, step: int, rank: int, micro_batch: int = 0) -> dict[str, torch.Tensor]:
    return step_draws(SHAPES, torch.Generator(), seed, step, rank, micro_batch)


def test_same_place_gives_same_numbers_whatever_was_drawn_before() -> None:
    generator = torch.Generator()
    first = step_draws(SHAPES, generator, 1, 2, 3)
    step_draws(SHAPES, generator, 7, 7, 7)
    again = step_draws(SHAPES, generator, 1, 2, 3)
    assert all(torch.equal(first[name], again[name]) for name in SHAPES)


def test_every_place_has_its_own_numbers() -> None:
    seen = [_draws(*place)["noise_BTA"] for place in itertools.product((0, 1), repeat=4)]
    for one, other in itertools.combinations(seen, 2):
        assert not torch.equal(one, other)


def test_time_has_the_recipes_law() -> None:
    time_B = _draws(0, 0, 0)["time_B"]
    assert time_B.min() >= 0
    assert time_B.max() <= 0.999
    # mean of Beta(1.5, 1) is 0.6
    assert abs(time_B.mean().item() - 0.4 * 0.999) < 0.01
    # P(t <= 0.5) = P(beta >= 0.4995) = 1 - 0.5005^1.5
    assert abs((time_B <= 0.4995).float().mean().item() - (1 - 0.5**1.5)) < 0.02
