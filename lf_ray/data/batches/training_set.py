"""What batches are made of: data sets opened for one model, or random numbers instead. No torch.

Letters: B samples, K views, H W C a frame, T action horizon, A action width, W state width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lf_ray.data.batches.prompts import prompt_table
from lf_ray.data.files import joined_hash
from lf_ray.data.frames.arena import FrameArena
from lf_ray.data.frames.decoder import BadFrame
from lf_ray.data.frames.fill import FillUnit
from lf_ray.data.frames.request import DecodeReply, DecodeRequest
from lf_ray.data.frames.source import FrameSource
from lf_ray.data.lerobot.dataset import LeRobotDataset
from lf_ray.data.lerobot.embodiments import Embodiment
from lf_ray.data.stream import Picks
from lf_ray.data.video import Frame, FrameSize
from models.groot_n1_6.config import GrootConfig
from models.groot_n1_6.views.augmentation import draw_augment
from models.groot_n1_6.views.geometry import view_tokens

Pictures = Mapping[int, Mapping[int, Frame]]
"""Frames by camera and row."""

_BLOCK_SAMPLES = 32


class CacheState(StrEnum):
    """How much of the data the frame cache has; from `whole` on no frame is left to decode."""

    OFF = "off"
    PART = "part"
    WHOLE = "whole"
    NO_FRAMES = "no_frames"


Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Opened:
    """What a training set is opened for.

    Attributes:
        open_cache: returns each camera's place in the frame cache, None where it has no room.
        order: "shuffle", or "block" where decoded frames don't fit the cache.
    """

    config: GrootConfig
    tokenizer: str | None
    weights: tuple[float, ...] | None
    open_cache: Callable[[], Sequence[FrameArena | None]]
    order: str = "shuffle"


class BatchSource(Protocol):
    """Samples by data set and number, as arrays of a batch's fields."""

    sizes: tuple[int, ...]
    weights: tuple[float, ...] | None
    data_id: str
    blocks: list[NDArray[np.int64]] | None

    def image_shape(self, batch_size: int) -> tuple[int, ...]:
        """Returns the shape of `images_BKHWC`."""
        ...

    def requests(self, picks: Sequence[Picks]) -> list[DecodeRequest]:
        """Returns what has to be decoded before these batches can be made."""
        ...

    def accept(self, reply: DecodeReply) -> None:
        """Remembers what could not be had."""
        ...

    def arrays(
        self, picks: Picks, seed: int, pictures: Pictures, images_BKHWC: NDArray[np.uint8]
    ) -> tuple[Arrays, dict[int, BadFrame]]:
        """Fills the images; returns the other fields, and pictures that could not be had."""
        ...

    def close(self) -> None:
        """Closes the frame cache's files."""
        ...

    def unfilled(self) -> list[FillUnit]:
        """Returns what the frame cache still lacks."""
        ...

    def use_cache(self, wanted: bool) -> None:
        """Keeps decoded frames and reads kept ones from now on, or decodes each anew."""
        ...

    def cache_state(self) -> CacheState:
        """Returns how much of the data the frame cache has."""
        ...


@dataclass
class Part:
    """One data set of the training set."""

    dataset: LeRobotDataset
    embodiment: Embodiment
    sources: list[FrameSource]
    prompt_of_task: NDArray[np.int64]


class TrainingSet:
    """LeRobot data sets opened for one model.

    Attributes:
        sizes: samples of each data set.
        weights: share of each in the stream; None weighs by samples.
        data_id: hash of the content.
        size: height and width of every frame.
        blocks: edges of short stretches of each data set, where the order is by blocks.
    """

    def __init__(
        self, parts: list[Part], texts: list[str], size: FrameSize, opened: Opened
    ) -> None:
        self.parts = parts
        self.size = size
        self.sizes = tuple(part.dataset.num_samples for part in parts)
        self.weights = opened.weights
        self.data_id = joined_hash(part.dataset.content_id() for part in parts)
        self.blocks = self._blocks() if opened.order == "block" else None
        self._config = opened.config
        self._sources = [source for part in parts for source in part.sources]
        self._open_cache = opened.open_cache
        self._arenas: Sequence[FrameArena | None] | None = None
        self._is_cached = False
        tokens = [view_tokens(opened.config, *size)] * len(parts[0].sources)
        self._prompts = prompt_table(texts, tokens, opened.config, opened.tokenizer)

    def _blocks(self) -> list[NDArray[np.int64]]:
        return [part.dataset.block_edges(_BLOCK_SAMPLES) for part in self.parts]

    def image_shape(self, batch_size: int) -> tuple[int, ...]:
        """Returns the shape of `images_BKHWC`."""
        return (batch_size, len(self.parts[0].sources), *self.size, 3)

    def unfilled(self) -> list[FillUnit]:
        """Returns what the frame cache still lacks, an episode of a camera each."""
        units = []
        for part in self.parts:
            for source in part.sources:
                rows = source.missing()
                episodes = np.searchsorted(part.dataset.first_row_E, rows, side="right")
                edges = np.flatnonzero(np.diff(episodes)) + 1
                units += [FillUnit(source, chunk) for chunk in np.split(rows, edges) if len(chunk)]
        return units

    def use_cache(self, wanted: bool) -> None:
        """Keeps decoded frames and reads kept ones from now on, or decodes each anew."""
        if wanted and self._arenas is None:
            self._arenas = self._open_cache()
        self._is_cached = wanted
        for source, arena in zip(self._sources, self._arenas or [None] * len(self._sources)):
            source.arena = arena if wanted else None

    def cache_state(self) -> CacheState:
        """Returns how much of the data the frame cache has."""
        if not self._is_cached:
            return CacheState.OFF
        is_whole = all(source.is_kept_whole() for source in self._sources)
        return CacheState.WHOLE if is_whole else CacheState.PART

    def close(self) -> None:
        """Closes the frame cache's files."""
        for arena in self._arenas or ():
            if arena is not None:
                arena.close()
        self._arenas = None

    def requests(self, picks: Sequence[Picks]) -> list[DecodeRequest]:
        """Returns what has to be decoded before these batches can be made."""
        part_B = np.concatenate([item.part for item in picks])
        sample_B = np.concatenate([item.sample for item in picks])
        requests = []
        for number in np.unique(part_B).tolist():
            part = self.parts[number]
            rows = part.dataset.rows_of(sample_B[part_B == number])
            for source in part.sources:
                requests += source.requests(rows)
        return requests

    def accept(self, reply: DecodeReply) -> None:
        """Remembers what could not be had."""
        self._sources[reply.camera].accept(reply)

    def arrays(
        self, picks: Picks, seed: int, pictures: Pictures, images_BKHWC: NDArray[np.uint8]
    ) -> tuple[Arrays, dict[int, BadFrame]]:
        """Fills the images; returns the other fields, and pictures that could not be had."""
        config, num_samples = self._config, len(picks.part)
        state = np.zeros((num_samples, 1, config.max_state_dim), np.float32)
        action = np.zeros((num_samples, config.action_horizon, config.max_action_dim), np.float32)
        mask = np.zeros_like(action)
        prompt = np.zeros(num_samples, np.int64)
        slot = np.zeros(num_samples, np.int64)
        bad: dict[int, BadFrame] = {}
        for number in np.unique(picks.part).tolist():
            part, places = self.parts[number], np.flatnonzero(picks.part == number)
            rows = part.dataset.rows_of(picks.sample[places])
            states, actions = part.dataset.states(rows), part.dataset.actions(rows)
            state[places, 0, : states.shape[1]] = states
            action[places, : actions.shape[1], : actions.shape[2]] = actions
            mask[places, : actions.shape[1], : actions.shape[2]] = 1.0
            prompt[places] = part.prompt_of_task[part.dataset.columns.task[rows]]
            slot[places] = part.embodiment.slot
            for view, source in enumerate(part.sources):
                is_whole = len(places) == num_samples
                frames = images_BKHWC[:, view] if is_whole else images_BKHWC[places, view]
                gone = source.read(rows, pictures.get(source.number, {}), frames)
                bad |= {int(places[place]): reason for place, reason in gone.items()}
                if not is_whole:
                    images_BKHWC[places, view] = frames
        fields: Arrays = {
            "augment_BD": augment_draws(picks, seed),
            "state_B1W": state,
            "action_BTA": action,
            "action_mask_BTA": mask,
            "embodiment_B": slot,
        }
        return fields | self._prompts.fields(prompt), bad


def augment_draws(picks: Picks, seed: int) -> NDArray[np.float32]:
    """Returns each sample's augmentation, a function of seed, epoch and sample alone."""
    draws = [
        draw_augment(np.random.Generator(np.random.Philox(key=_key(seed, part, sample, epoch))))
        for part, sample, epoch in zip(*(values.tolist() for values in picks))
    ]
    return np.concatenate(draws)


def _key(seed: int, part: int, sample: int, epoch: int) -> NDArray[np.uint64]:
    return np.array([(seed << 32) ^ (part << 56) ^ epoch, sample], np.uint64)
