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


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_block_order_keeps_stretches_together_and_every_sample_once(world_size: int) -> None:
    edges = np.array([*range(0, 4000, 32), 4000, 4010, 4100])
    stream = SampleStream([4100], None, 0, [edges], world_size)
    for epoch in (0, 1):
        samples = stream.at(np.arange(4100) + 4100 * epoch).sample
        assert sorted(samples.tolist()) == list(range(4100))
    block = np.searchsorted(edges, samples, side="right")
    own = block[0::world_size][: 1024 // world_size]
    pools = own.reshape(-1, 512) if len(own) >= 512 else own[None]
    assert max(len(set(pool.tolist())) for pool in pools) < 40
    assert len(set(np.diff(own).tolist())) > 10


def test_a_block_order_over_several_sets() -> None:
    blocks = [np.array([0, 32, 60]), np.array([0, 20])]
    plain = SampleStream([60, 20], None, 0, blocks, 2).at(np.arange(160))
    for epoch in (0, 1):
        seen = [
            (part, sample)
            for part, sample, when in zip(plain.part, plain.sample, plain.epoch)
            if when == epoch
        ]
        assert len(set(seen)) == 80
    weighted = SampleStream([60, 20], [1.0, 1.0], 0, blocks, 2).at(np.arange(1000))
    assert np.bincount(weighted.part).tolist() == [500, 500]
