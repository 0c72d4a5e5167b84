"""Random batches made in memory: no file, no video. For speed only, and labelled so. No torch."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lf_ray.data.batches.prompts import prompt_table
from lf_ray.data.batches.training_set import Arrays, CacheState, Pictures, augment_draws
from lf_ray.data.frames.decoder import BadFrame
from lf_ray.data.frames.fill import FillUnit
from lf_ray.data.frames.request import DecodeReply, DecodeRequest
from lf_ray.data.stream import Picks
from models.groot_n1_6.config import GrootConfig
from models.groot_n1_6.views.geometry import view_tokens

_NUM_SAMPLES = 4096
_POOL_BYTES = 16 << 20
_HORIZON = 16
_ACTION_WIDTH = 7
_STATE_WIDTH = 8


class SyntheticSet:
    """Samples of one embodiment with random pictures, states and actions.

    A sample's numbers follow from the seed and its own number. Pictures are windows into a pool
    of random bytes, which costs a copy like reading a frame cache does.

    Args:
        config: the model's sizes.
        num_views: cameras of a sample.
    """

    def __init__(self, config: GrootConfig, num_views: int | None = None) -> None:
        self.sizes: tuple[int, ...] = (_NUM_SAMPLES,)
        self.weights: tuple[float, ...] | None = None
        self.data_id = "synthetic"
        self.blocks: list[NDArray[np.int64]] | None = None
        self._config = config
        self._num_views = num_views or (1 if config.size == "nano" else 2)
        self._edge_px = config.shortest_edge_px
        tokens = [view_tokens(config, self._edge_px, self._edge_px)] * self._num_views
        self._prompts = prompt_table(["Move as the random numbers say."], tokens, config, None)
        self._slot = config.slots[0][1]
        pool_bytes = max(_POOL_BYTES, 2 * int(np.prod(self.image_shape(1))))
        self._pool = np.random.default_rng(0).integers(0, 256, pool_bytes, np.uint8)

    def image_shape(self, batch_size: int) -> tuple[int, ...]:
        """Returns the shape of `images_BKHWC`."""
        return (batch_size, self._num_views, self._edge_px, self._edge_px, 3)

    def unfilled(self) -> list[FillUnit]:
        """Returns nothing: there is no frame to decode."""
        return []

    def requests(self, picks: Sequence[Picks]) -> list[DecodeRequest]:
        """Returns nothing: there is no frame to decode."""
        return []

    def use_cache(self, wanted: bool) -> None:
        """Does nothing: there is no frame to keep."""

    def cache_state(self) -> CacheState:
        """Returns that there is nothing to decode or to keep."""
        return CacheState.NO_FRAMES

    def close(self) -> None:
        """Does nothing: no file is open."""

    def accept(self, reply: DecodeReply) -> None:
        """Never called: nothing was requested."""

    def arrays(
        self, picks: Picks, seed: int, pictures: Pictures, images_BKHWC: NDArray[np.uint8]
    ) -> tuple[Arrays, dict[int, BadFrame]]:
        """Fills the images and returns the other fields; every picture can be had."""
        config, num_samples = self._config, len(picks.sample)
        state = np.zeros((num_samples, 1, config.max_state_dim), np.float32)
        action = np.zeros((num_samples, config.action_horizon, config.max_action_dim), np.float32)
        mask = np.zeros_like(action)
        mask[:, :_HORIZON, :_ACTION_WIDTH] = 1.0
        sample_bytes = images_BKHWC[0].size
        for place, sample in enumerate(picks.sample.tolist()):
            rng = np.random.Generator(np.random.Philox(key=[seed, sample]))
            start = int(rng.integers(0, len(self._pool) - sample_bytes))
            images_BKHWC[place].reshape(-1)[:] = self._pool[start : start + sample_bytes]
            state[place, 0, :_STATE_WIDTH] = rng.uniform(-1, 1, _STATE_WIDTH)
            action[place, :_HORIZON, :_ACTION_WIDTH] = rng.uniform(-1, 1, (_HORIZON, _ACTION_WIDTH))
        fields: Arrays = {
            "augment_BD": augment_draws(picks, seed),
            "state_B1W": state,
            "action_BTA": action,
            "action_mask_BTA": mask,
            "embodiment_B": np.full(num_samples, self._slot),
        }
        return fields | self._prompts.fields(np.zeros(num_samples, np.int64)), {}
