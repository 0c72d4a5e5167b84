"""The endless order of samples: any position of it can be asked for, by any rank. No torch.

Position p of the stream belongs to rank p mod world, so every sample is seen once an epoch over all
ranks, whatever their number and batch, and a stop at any position can be resumed.
Letters: B positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
_WINDOW = 1000
_POOL = 512
"""Samples that a block order mixes: sixteen stretches of 32, or 100 MB of one 256 px camera."""


class Picks(NamedTuple):
    """What is at positions [B]: the data set, the sample in it, how often it was seen."""

    part: Positions
    sample: Positions
    epoch: Positions


class PermutedOrder:
    """One data set, shuffled anew each epoch."""

    def __init__(self, num_samples: int, seed: int, part: int = 0) -> None:
        self._num_samples = num_samples
        self._key = (seed, part)
        self._known: dict[int, NDArray[np.int64]] = {}

    def at(self, positions_B: Positions) -> tuple[Positions, Positions]:
        """Returns (sample, epoch) at positions of this data set's own stream."""
        epoch_B, place_B = np.divmod(positions_B, self._num_samples)
        sample_B = np.empty_like(place_B)
        for epoch in np.unique(epoch_B).tolist():
            is_here_B = epoch_B == epoch
            sample_B[is_here_B] = self._permutation(epoch)[place_B[is_here_B]]
        return sample_B, epoch_B

    def _permutation(self, epoch: int) -> NDArray[np.int64]:
        if epoch not in self._known:
            if len(self._known) > 1:
                del self._known[min(self._known)]
            self._known[epoch] = self._drawn(np.random.default_rng((*self._key, epoch)))
        return self._known[epoch]

    def _drawn(self, rng: np.random.Generator) -> Positions:
        return rng.permutation(self._num_samples)


class BlockOrder(PermutedOrder):
    """One data set in short stretches of its episodes: shuffled stretches, mixed within a pool.

    Frames that a decoder meets in one run are then wanted soon after each other, by the same rank.

    Args:
        edges: first sample of each stretch, and the number of samples.
        seed: of the order.
        part: number of the data set.
        world_size: ranks that share the stream; each gets whole stretches.
    """

    def __init__(self, edges: Positions, seed: int, part: int = 0, world_size: int = 1) -> None:
        super().__init__(int(edges[-1]), seed, part)
        self._edges = edges
        self._world_size = world_size

    def _drawn(self, rng: np.random.Generator) -> Positions:
        order = rng.permutation(len(self._edges) - 1)
        first, length = self._edges[order], (self._edges[1:] - self._edges[:-1])[order]
        before = np.cumsum(length) - length
        flat = np.arange(self._num_samples) + np.repeat(first - before, length)
        # Rank r's own stretch of the flat order is a chunk: position p of the epoch belongs to
        # rank p mod world.
        place, rank = np.divmod(np.arange(self._num_samples), self._world_size)
        chunk_of_rank = np.bincount(rank, minlength=self._world_size)
        chunk = np.repeat(np.arange(self._world_size), chunk_of_rank)
        within = np.concatenate([np.arange(count) for count in chunk_of_rank])
        mixed = flat[np.lexsort((rng.random(self._num_samples), within // _POOL, chunk))]
        starts = np.cumsum(chunk_of_rank) - chunk_of_rank
        return np.asarray(mixed[starts[rank] + place])


@dataclass(frozen=True)
class _Shares:
    """Cuts the stream between weighted data sets so that any prefix is within one of its share."""

    edges: NDArray[np.float64]

    def counts(self, num_positions: int) -> Positions:
        """Returns how many of the first positions each data set has."""
        return np.diff(np.floor(self.edges * num_positions + 1e-9)).astype(np.int64)


class SampleStream:
    """Samples of one data set, or of several by weight.

    Args:
        sizes: samples of each data set.
        weights: share of each in the stream, in any unit; None weighs by samples.
        seed: of the order.
        blocks: stretches of each data set, as the edges of `BlockOrder`; None shuffles samples.
        world_size: ranks, for the blocks.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        weights: Sequence[float] | None,
        seed: int,
        blocks: Sequence[Positions] | None = None,
        world_size: int = 1,
    ) -> None:
        self._seed = seed
        self._is_weighted = weights is not None and len(sizes) > 1
        self._first_of_part = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        if self._is_weighted:
            assert weights is not None
            shares = np.asarray(weights, np.float64) / sum(weights)
            self._shares = _Shares(np.concatenate([[0.0], np.cumsum(shares)]))
            self._orders = [
                PermutedOrder(size, seed, part)
                if blocks is None
                else BlockOrder(blocks[part], seed, part)
                for part, size in enumerate(sizes)
            ]
        elif blocks is None:
            self._orders = [PermutedOrder(sum(sizes), seed)]
        else:
            joined = [edges[:-1] + first for edges, first in zip(blocks, self._first_of_part)]
            edges = np.concatenate([*joined, self._first_of_part[-1:]])
            self._orders = [BlockOrder(edges, seed, 0, world_size)]

    @property
    def epoch_samples(self) -> int:
        """Returns the samples of all data sets together."""
        return int(self._first_of_part[-1])

    def at(self, positions_B: Positions) -> Picks:
        """Returns what is at positions of the stream."""
        if self._is_weighted:
            return self._weighted_at(positions_B)
        sample_B, epoch_B = self._orders[0].at(positions_B)
        part_B = np.searchsorted(self._first_of_part, sample_B, side="right") - 1
        return Picks(part_B, sample_B - self._first_of_part[part_B], epoch_B)

    def _weighted_at(self, positions_B: Positions) -> Picks:
        part_B, own_B = np.empty_like(positions_B), np.empty_like(positions_B)
        window_B, place_B = np.divmod(positions_B, _WINDOW)
        for window in np.unique(window_B).tolist():
            is_here_B = window_B == window
            parts, own = self._window(window)
            part_B[is_here_B] = parts[place_B[is_here_B]]
            own_B[is_here_B] = own[place_B[is_here_B]]
        sample_B, epoch_B = np.empty_like(own_B), np.empty_like(own_B)
        for part in np.unique(part_B).tolist():
            is_here_B = part_B == part
            sample_B[is_here_B], epoch_B[is_here_B] = self._orders[part].at(own_B[is_here_B])
        return Picks(part_B, sample_B, epoch_B)

    def _window(self, window: int) -> tuple[Positions, Positions]:
        """Returns data set and position in its own stream, for a window of the stream."""
        before = self._shares.counts(window * _WINDOW)
        counts = self._shares.counts((window + 1) * _WINDOW) - before
        rng = np.random.default_rng((self._seed, 1, window))
        parts = rng.permutation(np.repeat(np.arange(len(counts)), counts))
        own = np.empty_like(parts)
        for part, start in enumerate(before.tolist()):
            is_here = parts == part
            own[is_here] = start + np.arange(np.count_nonzero(is_here))
        return parts, own


def rank_positions(start: int, batch_size: int, rank: int, world_size: int) -> Positions:
    """Returns the stream's positions of one rank's batch that starts at a global position."""
    return start + rank + world_size * np.arange(batch_size, dtype=np.int64)
