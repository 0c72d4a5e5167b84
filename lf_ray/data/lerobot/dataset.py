"""A LeRobot data set opened for training: which samples it has, and their vectors.

Rows are numbered through all episodes; a sample is a row that has a whole action horizon after it
in its own episode (NVIDIA's rule: the last horizon - 1 frames of an episode start no sample).
Letters: N rows, B samples, T action horizon, S state width, A action width.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lf_ray.data.files import file_hash, joined_hash
from lf_ray.data.lerobot.meta import Episode, Meta
from lf_ray.data.lerobot.modality import Group, Modality
from lf_ray.data.lerobot.scaling import Vector, VectorScaler
from lf_ray.data.lerobot.statistics import compute_statistics, read_statistics
from lf_ray.data.lerobot.tables import read_columns
from lf_ray.errors import DataError, four_parts

Rows = NDArray[np.int64]
_MAX_HASHED_TABLES = 512


@dataclass(frozen=True)
class Columns:
    """All rows of a data set, in episode order: [N, S], [N, A], [N], [N]."""

    state: Vector
    action: Vector
    task: NDArray[np.int64]
    time_s: NDArray[np.float64]


class LeRobotDataset:
    """Vectors, tasks and frame numbers of samples.

    Attributes:
        meta: episodes, tasks and paths.
        modality: what a sample is made of.
        first_row_E: first row of each episode.
        num_samples: samples in all.
    """

    def __init__(self, meta: Meta, modality: Modality) -> None:
        self.meta = meta
        self.modality = modality
        lengths_E = np.array([episode.num_frames for episode in meta.episodes], np.int64)
        self.first_row_E: Rows = np.concatenate([[0], np.cumsum(lengths_E)])
        usable_E = np.maximum(lengths_E - self.modality.horizon + 1, 0)
        self._last_sample_E = np.cumsum(usable_E)
        self.num_samples = int(usable_E.sum())
        if not self.num_samples:
            raise _too_short(meta, self.modality.horizon)
        self.columns = _read(meta, self.modality)
        self._state_scaler = VectorScaler(self.modality.state, self._stats(self.modality.state))
        self._action_scaler = VectorScaler(self.modality.action, self._stats(self.modality.action))

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

    def states(self, rows_B: Rows) -> Vector:
        """Returns scaled states [B, S]."""
        return self._state_scaler.scaled(self.columns.state[rows_B])

    def actions(self, rows_B: Rows) -> Vector:
        """Returns scaled action chunks [B, T, A]."""
        rows_BT = rows_B[:, None] + np.arange(self.modality.horizon)
        return self._action_scaler.scaled(self.columns.action[rows_BT])

    def _stats(self, groups: tuple[Group, ...]) -> dict[str, dict[str, NDArray[np.float64]]]:
        known = read_statistics(self.meta.info)
        stats = {}
        for group in groups:
            column = known.get(group.column, {})
            if not {"min", "max", "mean", "std"} <= set(column):
                column = compute_statistics(_column(self.meta, group.column))
            stats[group.name] = {
                name: value[..., group.start : group.end]
                for name, value in column.items()
                if name != "count"
            }
        return stats

    def content_id(self) -> str:
        """Returns a hash of the meta files, the tables and the sizes of the videos."""
        return content_id(self.meta.root)


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


def _read(meta: Meta, modality: Modality) -> Columns:
    names = list(dict.fromkeys([*modality.columns, modality.task_column, "timestamp"]))
    parts: list[dict[str, NDArray[Any]]] = []
    table: dict[str, NDArray[Any]] = {}
    opened = None
    for episode in meta.episodes:
        path = meta.table_path(episode)
        if path != opened:
            opened, table = path, read_columns(path, names)
        parts.append(_episode_rows(path, table, episode))
    joined = {name: np.concatenate([part[name] for part in parts]) for name in names}
    return Columns(
        state=_sliced(joined, modality.state),
        action=_sliced(joined, modality.action),
        task=joined[modality.task_column].astype(np.int64),
        time_s=joined["timestamp"].astype(np.float64),
    )


def _episode_rows(
    path: Path, table: dict[str, NDArray[Any]], episode: Episode
) -> dict[str, NDArray[Any]]:
    end = episode.first_row + episode.num_frames
    rows = {name: column[episode.first_row : end] for name, column in table.items()}
    num_rows = len(next(iter(rows.values())))
    if num_rows != episode.num_frames:
        raise DataError(
            four_parts(
                "reading the rows of an episode",
                f"episode {episode.index} has {episode.num_frames} frames by the meta folder",
                f"{num_rows} rows in {path}",
                "Restore the parquet file, or correct the episode's length.",
            )
        )
    return rows


def _sliced(columns: dict[str, NDArray[Any]], groups: tuple[Group, ...]) -> Vector:
    parts = []
    for group in groups:
        values = columns[group.column]
        values = values[:, None] if values.ndim == 1 else values
        if group.end > values.shape[1]:
            raise DataError(
                four_parts(
                    "slicing vectors by the modality",
                    f"{group.name!r} must lie within {group.column}",
                    f"values {group.start} to {group.end} of {values.shape[1]}",
                    "Correct start and end in modality.json.",
                )
            )
        parts.append(values[:, group.start : group.end])
    return np.ascontiguousarray(np.concatenate(parts, axis=1), np.float32)


def _column(meta: Meta, name: str) -> NDArray[Any]:
    paths = dict.fromkeys(meta.table_path(episode) for episode in meta.episodes)
    return np.concatenate([read_columns(path, [name])[name] for path in paths])


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
