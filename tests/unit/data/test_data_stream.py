"""The order of samples: each once an epoch, by weight, from any position."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lf_ray.data.stream import SampleStream, rank_positions


@given(st.integers(1, 50), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))
def test_ranks_share_an_epoch_whatever_their_number(
    size: int, world_size: int, batch_size: int, seed: int
) -> None:
    stream = SampleStream([size], None, seed)
    positions = np.concatenate(
        [
            rank_positions(start, batch_size, rank, world_size)
            for start in range(0, 2 * size, batch_size * world_size)
            for rank in range(world_size)
        ]
    )
    assert len(set(positions.tolist())) == len(positions)
    picks = stream.at(np.sort(positions)[: 2 * size])
    for epoch in (0, 1):
        assert sorted(picks.sample[picks.epoch == epoch].tolist()) == list(range(size))


def test_a_batch_is_the_same_from_any_start() -> None:
    whole = SampleStream([30, 12], None, 7).at(np.arange(84))
    part = SampleStream([30, 12], None, 7).at(np.arange(40, 60))
    assert np.array_equal(whole.sample[40:60], part.sample)
    assert np.array_equal(whole.part[40:60], part.part)
    assert sorted(np.unique(whole.part).tolist()) == [0, 1]
    assert (whole.sample < np.where(whole.part == 0, 30, 12)).all()


def test_epochs_and_seeds_differ() -> None:
    first = SampleStream([64], None, 0).at(np.arange(128)).sample
    assert not np.array_equal(first[:64], first[64:])
    assert not np.array_equal(first, SampleStream([64], None, 1).at(np.arange(128)).sample)


def test_unweighted_sets_weigh_by_samples() -> None:
    picks = SampleStream([300, 100], None, 0).at(np.arange(400))
    assert np.bincount(picks.part).tolist() == [300, 100]


@pytest.mark.parametrize("weights", [[1.0, 1.0], [3.0, 1.0], [0.2, 0.7]])
def test_weights_hold_over_any_stretch(weights: list[float]) -> None:
    picks = SampleStream([300, 100], weights, 0).at(np.arange(10_000))
    share = weights[0] / sum(weights)
    assert abs((picks.part == 0).mean() - share) < 1e-3
    assert abs((picks.part[:1000] == 0).mean() - share) < 2e-3
    small = picks.sample[picks.part == 1]
    for epoch in range(3):
        seen = small[epoch * 100 : (epoch + 1) * 100]
        assert len(set(seen.tolist())) == 100
    is_first = (picks.part == 1) & (picks.epoch == 0)
    assert sorted(picks.sample[is_first].tolist()) == list(range(100))


def test_a_weighted_stream_resumes_in_the_middle_of_a_window() -> None:
    stream = SampleStream([30, 12], [1.0, 2.0], 3)
    whole = stream.at(np.arange(3000))
    part = SampleStream([30, 12], [1.0, 2.0], 3).at(np.arange(1500, 1600))
    assert np.array_equal(whole.sample[1500:1600], part.sample)
    assert np.array_equal(whole.part[1500:1600], part.part)
