"""What batches are made of: data sets opened for one model, or random numbers instead. No torch.

Letters: B samples, K views, H W C a frame, T action horizon, A action width, W state width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lf_ray.data.batches.prompts import prompt_table
from lf_ray.data.batches.sizes import groot_config
from lf_ray.data.checks.layout import check_modality, check_sizes
from lf_ray.data.checks.problem import Findings, raise_problems
from lf_ray.data.files import joined_hash
from lf_ray.data.frames.decoder import BadFrame, FrameDecoder
from lf_ray.data.frames.fill import FillUnit
from lf_ray.data.frames.source import Camera, FrameSource, frame_size, native_size, open_arena
from lf_ray.data.lerobot.dataset import LeRobotDataset
from lf_ray.data.lerobot.embodiments import Embodiment, choose_embodiment, choose_modality
from lf_ray.data.lerobot.meta import read_info, read_meta
from lf_ray.data.sample_set import sample_set
from lf_ray.data.stream import Picks
from lf_ray.data.video import FrameSize
from lf_ray.errors import DataError, four_parts
from lf_ray.settings import DataSettings, ModelSettings
from models.groot_n1_6.config import GrootConfig
from models.groot_n1_6.views.augmentation import draw_augment
from models.groot_n1_6.views.geometry import view_tokens

Arrays = dict[str, NDArray[np.generic]]


class BatchSource(Protocol):
    """Samples by data set and number, as arrays of a batch's fields."""

    sizes: tuple[int, ...]
    weights: tuple[float, ...] | None
    data_id: str

    def image_shape(self, batch_size: int) -> tuple[int, ...]:
        """Returns the shape of `images_BKHWC`."""
        ...

    def arrays(
        self, picks: Picks, seed: int, images_BKHWC: NDArray[np.uint8], decoder: FrameDecoder
    ) -> tuple[Arrays, dict[int, BadFrame]]:
        """Fills the images; returns the other fields, and pictures that could not be had."""
        ...

    def unfilled(self) -> list[FillUnit]:
        """Returns what the frame cache still lacks."""
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
    """

    def __init__(
        self, parts: list[Part], texts: list[str], size: FrameSize, opened: "Opened"
    ) -> None:
        self.parts = parts
        self.size = size
        self.sizes = tuple(part.dataset.num_samples for part in parts)
        self.weights = opened.weights
        self.data_id = joined_hash(part.dataset.content_id() for part in parts)
        self._config = opened.config
        tokens = [view_tokens(opened.config, *size)] * len(parts[0].sources)
        self._prompts = prompt_table(texts, tokens, opened.config, opened.tokenizer)

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

    def arrays(
        self, picks: Picks, seed: int, images_BKHWC: NDArray[np.uint8], decoder: FrameDecoder
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
            bad |= self._views(part, rows, places, images_BKHWC, decoder)
        fields: Arrays = {
            "augment_BD": augment_draws(picks, seed),
            "state_B1W": state,
            "action_BTA": action,
            "action_mask_BTA": mask,
            "embodiment_B": slot,
        }
        return fields | self._prompts.fields(prompt), bad

    def _views(
        self,
        part: Part,
        rows: NDArray[np.int64],
        places: NDArray[np.int64],
        images_BKHWC: NDArray[np.uint8],
        decoder: FrameDecoder,
    ) -> dict[int, BadFrame]:
        bad: dict[int, BadFrame] = {}
        for view, source in enumerate(part.sources):
            frames = np.empty((len(rows), *self.size, 3), np.uint8)
            gone = source.read(rows, frames, decoder)
            bad |= {int(places[place]): reason for place, reason in gone.items()}
            images_BKHWC[places, view] = frames
        return bad


def augment_draws(picks: Picks, seed: int) -> NDArray[np.float32]:
    """Returns each sample's augmentation, a function of seed, epoch and sample alone."""
    draws = [
        draw_augment(np.random.Generator(np.random.Philox(key=_key(seed, part, sample, epoch))))
        for part, sample, epoch in zip(*(values.tolist() for values in picks))
    ]
    return np.concatenate(draws)


def _key(seed: int, part: int, sample: int, epoch: int) -> NDArray[np.uint64]:
    return np.array([(seed << 32) ^ (part << 56) ^ epoch, sample], np.uint64)


@dataclass(frozen=True)
class Opened:
    """What a training set is opened for."""

    config: GrootConfig
    tokenizer: str | None
    weights: tuple[float, ...] | None


def data_paths(data: DataSettings) -> list[Path]:
    """Returns the data set folders, rendering the sample set where that is the source."""
    if data.source == "sample":
        return [sample_set(Path(data.cache_dir).expanduser())]
    return [Path(path).expanduser() for path in data.paths]


def open_training_set(data: DataSettings, model: ModelSettings) -> TrainingSet:
    """Returns the data sets of the settings, opened for the model.

    Raises:
        DataError: a set is malformed, or does not fit the model or the other sets.
    """
    config = groot_config(model)
    texts: list[str] = []
    opened = [_open_part(path, data, config) for path in data_paths(data)]
    native = [
        [native_size(dataset, view.feature) for view in dataset.modality.views]
        for dataset, _ in opened
    ]
    if len({len(sizes) for sizes in native}) != 1:
        raise _unequal("views", [len(sizes) for sizes in native])
    sizes = [frame_size(size, config.shortest_edge_px) for row in native for size in row]
    size = FrameSize(max(s.height for s in sizes), max(s.width for s in sizes))
    folder = Path(data.cache_dir).expanduser() / "frames"
    max_bytes = int(data.cache_gib * 2**30)
    parts = []
    for dataset, embodiment in opened:
        cameras = [Camera(dataset, view.feature, size) for view in dataset.modality.views]
        sources = [
            FrameSource(camera, open_arena(camera, folder, max_bytes) if data.cache else None)
            for camera in cameras
        ]
        parts.append(Part(dataset, embodiment, sources, _prompt_numbers(dataset, texts)))
    weights = None if data.weights is None else tuple(data.weights)
    return TrainingSet(parts, texts, size, Opened(config, model.tokenizer, weights))


def _open_part(
    path: Path, data: DataSettings, config: GrootConfig
) -> tuple[LeRobotDataset, Embodiment]:
    info = read_info(path)
    embodiment = choose_embodiment(info, data.embodiment, dict(config.slots))
    modality = choose_modality(info, embodiment, data.modality)
    found = Findings()
    check_modality(found, info, modality)
    check_sizes(found, modality, config)
    raise_problems(found.problems)
    cache_dir = Path(data.cache_dir).expanduser()
    return LeRobotDataset(read_meta(info), modality, cache_dir), embodiment


def _prompt_numbers(dataset: LeRobotDataset, texts: list[str]) -> NDArray[np.int64]:
    """Returns the prompt of each task index, adding new texts to the list."""
    tasks = dataset.meta.tasks
    numbers = np.zeros(max(tasks) + 1, np.int64)
    for index, text in tasks.items():
        if text not in texts:
            texts.append(text)
        numbers[index] = texts.index(text)
    return numbers


def _unequal(what: str, got: Sequence[int]) -> DataError:
    return DataError(
        four_parts(
            "opening several data sets",
            f"all must have the same number of {what}",
            ", ".join(map(str, got)),
            "Name the same cameras in each modality.json.",
        )
    )
