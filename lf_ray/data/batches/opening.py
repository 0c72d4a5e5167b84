"""Opens data sets for a model: from settings to a training set. No torch."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lf_ray.data.batches.sizes import groot_config
from lf_ray.data.batches.training_set import Opened, Part, TrainingSet
from lf_ray.data.checks.layout import check_modality, check_sizes
from lf_ray.data.checks.problem import Findings, raise_problems, unwritable
from lf_ray.data.frames.source import Camera, FrameSource, frame_size, native_size, open_arenas
from lf_ray.data.lerobot.dataset import LeRobotDataset
from lf_ray.data.lerobot.embodiments import Embodiment, choose_embodiment, choose_modality
from lf_ray.data.lerobot.meta import read_info, read_meta
from lf_ray.data.sample_set import sample_set
from lf_ray.data.video import FrameSize
from lf_ray.errors import DataError, four_parts
from lf_ray.settings import DataSettings, ModelSettings
from models.groot_n1_6.config import GrootConfig


def data_paths(data: DataSettings) -> list[Path]:
    """Returns the data set folders, rendering the sample set where that is the source."""
    if data.source == "sample":
        cache_dir = Path(data.cache_dir).expanduser()
        try:
            return [sample_set(cache_dir)]
        except OSError as error:
            raise unwritable(cache_dir, error) from error
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
    cameras = [
        Camera(dataset, view.feature, size)
        for dataset, _ in opened
        for view in dataset.modality.views
    ]
    sources = [FrameSource(number, camera) for number, camera in enumerate(cameras)]
    folder = Path(data.cache_dir).expanduser() / "frames"
    open_cache = partial(open_arenas, cameras, folder, int(data.cache_gib * 2**30))
    parts = []
    for number, (dataset, embodiment) in enumerate(opened):
        own = sources[number * len(native[0]) : (number + 1) * len(native[0])]
        parts.append(Part(dataset, embodiment, own, _prompt_numbers(dataset, texts)))
    weights = None if data.weights is None else tuple(data.weights)
    order = _order(data, sum(camera.num_bytes for camera in cameras))
    opened_for = Opened(config, model.tokenizer, weights, open_cache, order)
    training_set = TrainingSet(parts, texts, size, opened_for)
    training_set.use_cache(data.cache)
    return training_set


def _order(data: DataSettings, num_bytes: int) -> str:
    """Returns the order of samples; the same with and without a cache, so that trials compare."""
    if data.order != "auto":
        return data.order
    return "shuffle" if num_bytes <= data.cache_gib * 2**30 else "block"


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
    num_held_out = data.holdout_episodes or 0
    return LeRobotDataset(read_meta(info), modality, cache_dir, num_held_out), embodiment


def _prompt_numbers(dataset: LeRobotDataset, texts: list[str]) -> NDArray[np.int64]:
    """Returns the prompt of each task index, adding new texts to the list."""
    tasks = dataset.meta.tasks
    numbers = np.zeros(max(tasks) + 1, np.int64)
    for index, text in tasks.items():
        if text not in texts:
            texts.append(text)
        numbers[index] = texts.index(text)
    unknown = set(np.unique(dataset.columns.task).tolist()) - set(tasks)
    if unknown:
        raise DataError(
            four_parts(
                "reading task texts",
                f"{dataset.modality.task_column} must hold tasks of the meta folder",
                f"index {sorted(unknown)[0]}, which is none",
                "Add the task, or name another column in modality.json.",
            )
        )
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
