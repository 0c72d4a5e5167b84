"""A LeRobot data set opened for training: which samples it has, and their vectors.

Rows are numbered through all episodes; a sample is a row that has a whole action horizon after it
in its own episode (NVIDIA's rule: the last horizon - 1 frames of an episode start no sample).
Letters: N rows, B samples, T action horizon, S state width, A action width.
"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lf_ray.data.files import file_hash, joined_hash
from lf_ray.data.lerobot.columns import open_columns
from lf_ray.data.lerobot.group_statistics import GroupStatistics, group_slices
from lf_ray.data.lerobot.meta import Meta
from lf_ray.data.lerobot.modality import Modality
from lf_ray.data.lerobot.scaling import Vector, VectorScaler
from lf_ray.data.lerobot.statistics import ColumnStats
from lf_ray.errors import DataError, four_parts

Rows = NDArray[np.int64]
_MAX_HASHED_TABLES = 512


class LeRobotDataset:
    """Vectors, tasks and frame numbers of samples.

    Attributes:
        meta: episodes, tasks and paths.
        modality: what a sample is made of.
        first_row_E: first row of each episode.
        num_samples: samples in all.

    Args:
        num_held_out: last episodes that give no samples; statistics and rows still cover them.
    """

    def __init__(
        self,
        meta: Meta,
        modality: Modality,
        cache_dir: Path | None = None,
        num_held_out: int = 0,
    ) -> None:
        self.meta = meta
        self.modality = modality
        lengths_E = np.array([episode.num_frames for episode in meta.episodes], np.int64)
        self.first_row_E: Rows = np.concatenate([[0], np.cumsum(lengths_E)])
        usable_E = np.maximum(lengths_E - self.modality.horizon + 1, 0)
        usable_E[len(usable_E) - min(num_held_out, len(usable_E)) :] = 0
        self._last_sample_E = np.cumsum(usable_E)
        self.num_samples = int(usable_E.sum())
        if not self.num_samples:
            raise _too_short(meta, self.modality.horizon)
        folder = None if cache_dir is None else cache_dir / "columns"
        self.columns = open_columns(meta, modality, folder)
        stats = GroupStatistics(meta, modality, self.columns, cache_dir)
        self._state_stats, self._action_stats = stats.state(), stats.action()
        self._state_scaler = VectorScaler(modality.state, self._state_stats)
        self._action_scaler = VectorScaler(modality.action, self._action_stats)
        self._reference = _reference_columns(modality)

    @property
    def num_rows(self) -> int:
        """Returns the number of frames of each camera."""
        return int(self.first_row_E[-1])

    def rows_of(self, samples_B: Rows) -> Rows:
        """Returns the row that each sample starts at."""
        episode_B = np.searchsorted(self._last_sample_E, samples_B, side="right")
        before_B = np.where(episode_B > 0, self._last_sample_E[episode_B - 1], 0)
        return np.asarray(self.first_row_E[episode_B] + samples_B - before_B)

    def episode_at(self, row: int) -> int:
        """Returns the position in `meta.episodes` of the episode that holds a row."""
        return int(np.searchsorted(self.first_row_E, row, side="right")) - 1

    def samples_of(self, episode: int) -> range:
        """Returns the samples that an episode gives; episodes by position in the meta folder."""
        first = int(self._last_sample_E[episode - 1]) if episode else 0
        return range(first, int(self._last_sample_E[episode]))

    def block_edges(self, max_samples: int) -> Rows:
        """Returns the first sample of each short stretch of an episode, and the number of all."""
        first_E = np.concatenate([[0], self._last_sample_E])
        starts = [np.arange(first, end, max_samples) for first, end in pairwise(first_E)]
        return np.concatenate([*starts, first_E[-1:]])

    def states(self, rows_B: Rows) -> Vector:
        """Returns scaled states [B, S]."""
        return self._state_scaler.scaled(self.columns.state[rows_B])

    def actions(self, rows_B: Rows) -> Vector:
        """Returns scaled action chunks [B, T, A]; relative groups start from the sample's state."""
        rows_BT = rows_B[:, None] + np.arange(self.modality.horizon)
        chunk_BTA = self.columns.action[rows_BT]
        for action_columns, state_columns in self._reference:
            chunk_BTA[:, :, action_columns] -= self.columns.state[rows_B, None, state_columns]
        return self._action_scaler.scaled(chunk_BTA)

    def scale_by(self, state: Mapping[str, ColumnStats], action: Mapping[str, ColumnStats]) -> None:
        """Scales by other statistics than the data's, such as those that a model learnt with.

        Raises:
            DataError: a group or statistic is missing, or has another width.
        """
        try:
            scalers = (
                VectorScaler(self.modality.state, state),
                VectorScaler(self.modality.action, action),
            )
            scalers[0].scaled(self.columns.state[:1])
            scalers[1].scaled(self.actions(np.zeros(1, np.int64)))
        except (KeyError, ValueError) as error:
            raise DataError(
                four_parts(
                    f"scaling {self.meta.root} by a model's statistics",
                    "they have each group of its modality, at its width",
                    f"{type(error).__name__}: {error}",
                    "Give the modality that the model was trained with: data.modality=FILE.",
                )
            ) from error
        self._state_stats, self._action_stats = dict(state), dict(action)
        self._state_scaler, self._action_scaler = scalers

    def raw_actions(self, scaled_BTA: Vector, rows_B: Rows) -> Vector:
        """Returns the robot's own values of scaled action chunks that start at rows."""
        raw_BTA = self._action_scaler.unscaled(scaled_BTA)
        for action_columns, state_columns in self._reference:
            raw_BTA[:, :, action_columns] += self.columns.state[rows_B, None, state_columns]
        return raw_BTA

    def statistics(self) -> dict[str, dict[str, dict[str, list[Any]]]]:
        """Returns what states and actions are scaled by, by part, group and statistic."""
        parts = {"state": self._state_stats, "action": self._action_stats}
        return {
            part: {
                group: {name: values.tolist() for name, values in stats.items()}
                for group, stats in groups.items()
            }
            for part, groups in parts.items()
        }

    def content_id(self) -> str:
        """Returns a hash of the meta files, the tables and the sizes of the videos."""
        return content_id(self.meta.root)


def _reference_columns(modality: Modality) -> list[tuple[slice, slice]]:
    """Returns where each relative action group, and its state, lie in the vectors."""
    states, actions = group_slices(modality.state), group_slices(modality.action)
    return [
        (actions[group.name], states[group.name]) for group in modality.action if group.is_relative
    ]


def content_id(root: Path) -> str:
    """Returns a hash of a data set's content that moving or copying it does not change."""
    paths = [path for path in sorted(root.rglob("*")) if path.is_file() and path.name[0] != "."]
    tables = [path for path in paths if path.suffix == ".parquet"]
    opened = {path for path in paths if path.suffix in (".json", ".jsonl")}
    opened |= set(tables[:: len(tables) // _MAX_HASHED_TABLES + 1])
    parts = []
    for path in paths:
        parts.append(path.relative_to(root).as_posix())
        parts.append(file_hash(path) if path in opened else str(path.stat().st_size))
    return joined_hash(parts)


def _too_short(meta: Meta, horizon: int) -> DataError:
    longest = max((episode.num_frames for episode in meta.episodes), default=0)
    return DataError(
        four_parts(
            "counting samples",
            f"an episode needs at least the action horizon's {horizon} frames to give a sample",
            f"{len(meta.episodes)} episodes of at most {longest} frames in {meta.root}",
            "Use longer episodes, or a shorter action_horizon in modality.json.",
        )
    )
