"""All rows of a data set as a few arrays, read once and kept in the cache folder.

Letters: N rows, S state width, A action width.
"""

import os
import shutil
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lf_ray.data.files import joined_hash, listing_hash, require_file
from lf_ray.data.lerobot.meta import Episode, Meta
from lf_ray.data.lerobot.modality import Group, Modality
from lf_ray.data.lerobot.scaling import Vector
from lf_ray.data.lerobot.tables import read_columns
from lf_ray.errors import DataError, four_parts


@dataclass(frozen=True)
class Columns:
    """All rows of a data set, in episode order: [N, S], [N, A], [N], [N]."""

    state: Vector
    action: Vector
    task: NDArray[np.int64]
    time_s: NDArray[np.float64]


def columns_key(meta: Meta, modality: Modality) -> str:
    """Returns a hash of the tables' names, sizes and dates and of what is taken from them."""
    paths = dict.fromkeys(meta.table_path(episode) for episode in meta.episodes)
    lengths = joined_hash(str(episode.num_frames) for episode in meta.episodes)
    taken = repr((modality.state, modality.action, modality.task_column))
    return joined_hash([listing_hash(paths), lengths, taken])


def open_columns(meta: Meta, modality: Modality, folder: Path | None) -> Columns:
    """Returns all rows: from `folder` by memory map where they are kept, else from the tables.

    Many small parquet files take minutes to read, by every rank of every trial; the kept arrays
    take milliseconds and are shared.

    Raises:
        DataError: a table is missing, malformed, or lacks a column.
    """
    _require_tables(meta)
    if folder is None:
        return _read(meta, modality)
    place = folder / columns_key(meta, modality)
    if not place.is_dir():
        columns = _read(meta, modality)
        if not _keep(columns, place):
            return columns
    arrays = {
        item.name: np.load(place / f"{item.name}.npy", mmap_mode="r") for item in fields(Columns)
    }
    return Columns(**arrays)


def _require_tables(meta: Meta) -> None:
    for episode in meta.episodes:
        require_file(meta.table_path(episode), "opening the tables")


def _keep(columns: Columns, place: Path) -> bool:
    scratch = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        for item in fields(Columns):
            np.save(scratch / f"{item.name}.npy", getattr(columns, item.name))
        scratch.rename(place)
    except OSError:
        shutil.rmtree(scratch, ignore_errors=True)
    return place.is_dir()


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
