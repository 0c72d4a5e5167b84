"""Are the tables and videos there, whole, and as the meta folder says?

Every file is looked for; up to eight of each kind, spread over the set, are opened.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lf_ray.data.checks.problem import Findings, listed
from lf_ray.data.files import require_file
from lf_ray.data.lerobot.meta import Episode, Meta
from lf_ray.data.lerobot.modality import Modality
from lf_ray.data.lerobot.tables import read_columns, read_objects
from lf_ray.data.video import VideoReader, bad_frames, decode_image

MAX_OPENED = 8
T = TypeVar("T")


def check_episodes(found: Findings, meta: Meta, modality: Modality) -> None:
    """Adds problems of the list of episodes."""
    usable = [item for item in meta.episodes if item.num_frames >= modality.horizon]
    if not usable:
        longest = max((item.num_frames for item in meta.episodes), default=0)
        found.add(
            "counting samples",
            f"an episode needs the action horizon's {modality.horizon} frames to give a sample",
            f"{len(meta.episodes)} episodes, the longest with {longest} frames",
            "Use longer episodes, or a shorter action_horizon in modality.json.",
        )
    elif len(usable) < len(meta.episodes):
        short = len(meta.episodes) - len(usable)
        found.note(f"{short} episodes are shorter than the action horizon and give no sample.")


def check_tables(found: Findings, meta: Meta, modality: Modality) -> None:
    """Adds problems of the parquet files."""
    paths = _paths(found, meta, meta.table_path)
    if not _all_exist(found, paths, "looking for the tables"):
        return
    columns = [*modality.columns, modality.task_column, "timestamp"]
    for episode in _spread(meta.episodes):
        rows = found.attempt(partial(read_columns, meta.table_path(episode), columns))
        if rows is None:
            return
        _check_rows(found, meta, episode, rows, modality)


def _check_rows(
    found: Findings, meta: Meta, episode: Episode, rows: dict[str, Any], modality: Modality
) -> None:
    doing, path = "reading the tables", meta.table_path(episode)
    part = slice(episode.first_row, episode.first_row + episode.num_frames)
    num_rows = len(rows["timestamp"][part])
    is_whole = meta.info.is_v3 or len(rows["timestamp"]) == episode.num_frames
    if num_rows != episode.num_frames or not is_whole:
        found.add(
            doing,
            f"episode {episode.index} has {episode.num_frames} frames by the meta folder",
            f"{len(rows['timestamp'])} rows in {path}",
            "Restore the file, or correct the episode's length.",
        )
    for name in modality.columns:
        values = rows[name][part]
        width = values.shape[1] if values.ndim == 2 else 1
        groups = (*modality.state, *modality.action)
        end = max(group.end for group in groups if group.column == name)
        if end > width:
            found.add(
                doing,
                f"{name} in {path} must have the {end} values that {modality.source} slices",
                f"{width}",
                "Correct modality.json.",
            )
        if not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values))[0][0])
            found.add(
                doing,
                f"{name} in {path} must be finite numbers",
                f"NaN or infinity in row {episode.first_row + row}",
                "Repair or leave out the episode.",
            )
    unknown = sorted(set(np.unique(rows[modality.task_column][part]).tolist()) - set(meta.tasks))
    if unknown:
        found.add(
            doing,
            f"{modality.task_column} in {path} must be a task of the meta folder",
            f"index {listed([str(index) for index in unknown])}",
            "Add the task, or name another column in modality.json.",
        )


def check_views(found: Findings, meta: Meta, modality: Modality) -> None:
    """Adds problems of the cameras that the modality uses."""
    per_view = max(1, MAX_OPENED // len(modality.views))
    for view in modality.views:
        feature = meta.info.features.get(view.feature)
        if feature is None or not feature.is_camera:
            continue
        if feature.dtype == "image":
            for episode in _spread(meta.episodes, per_view):
                found.attempt(partial(_decode_images, meta, episode, view.feature))
            continue
        paths = _paths(found, meta, partial(_video_path, meta, view.feature))
        if _all_exist(found, paths, f"looking for the videos of {view.feature}"):
            for episode in _spread(meta.episodes, per_view):
                found.attempt(partial(_decode_ends, found, meta, episode, view.feature))


def _video_path(meta: Meta, feature: str, episode: Episode) -> Path:
    return meta.video_span(episode, feature).path


def _decode_ends(found: Findings, meta: Meta, episode: Episode, feature: str) -> None:
    path = require_file(meta.video_span(episode, feature).path, "opening a video")
    with VideoReader(path) as reader:
        last = len(reader) - 1
        for index in (0, last):
            for _ in reader.decode(index, index, reader.size, {index}):
                pass
        if reader.bad:
            raise bad_frames(path, reader.bad[0])
        if meta.info.is_v3:
            _check_span(found, meta, episode, feature, float(reader.times_s[-1]))
        elif len(reader) < episode.num_frames:
            found.note(
                f"{path} has {len(reader)} frames for {episode.num_frames} rows; rows are matched "
                "to frames by time, and rows without a frame are treated as corrupt frames."
            )


def _check_span(found: Findings, meta: Meta, episode: Episode, feature: str, last_s: float) -> None:
    span = meta.video_span(episode, feature)
    if span.to_s is not None and span.to_s - 2 / meta.info.fps > last_s:
        found.add(
            "reading the episode table",
            f"the video of episode {episode.index} must hold it up to {span.to_s:.2f} s",
            f"{span.path}, which ends at {last_s:.2f} s",
            "Restore the video, or correct from_timestamp and to_timestamp.",
        )


def _decode_images(meta: Meta, episode: Episode, feature: str) -> None:
    path = meta.table_path(episode)
    value = read_objects(path, [feature])[feature][episode.first_row]
    decode_image(bytes(value["bytes"]) if isinstance(value, dict) else bytes(value))


def _paths(found: Findings, meta: Meta, path_of: Callable[[Episode], Path]) -> list[Path]:
    paths = found.attempt(lambda: list(dict.fromkeys(map(path_of, meta.episodes))))
    return paths or []


def _all_exist(found: Findings, paths: Sequence[Path], doing: str) -> bool:
    missing = [str(path) for path in paths if not path.is_file()]
    empty = [str(path) for path in paths if path.is_file() and not path.stat().st_size]
    for names, what in ((missing, "are missing"), (empty, "are empty")):
        if names:
            found.add(
                doing,
                "every episode of the meta folder needs its file",
                f"{len(names)} of {len(paths)} that {what}: {listed(names)}",
                "Download them again, or take the episodes out of the meta folder.",
            )
    return bool(paths) and not missing and not empty


def _spread(items: Sequence[T], limit: int = MAX_OPENED) -> list[T]:
    """Returns first, last and items between, evenly."""
    places = np.linspace(0, len(items) - 1, min(limit, len(items))).round().astype(int)
    return [items[place] for place in dict.fromkeys(places.tolist())]
