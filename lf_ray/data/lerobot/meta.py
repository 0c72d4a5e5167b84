"""The meta folder of a LeRobot data set, whatever its version, as one description.

Versions 2.0 and 2.1 keep one parquet and one video file an episode and list episodes as JSON lines;
version 3.0 keeps many episodes in a file and lists them in parquet.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lf_ray.data.files import entry, read_json, read_json_lines
from lf_ray.data.lerobot.tables import columns_of, read_objects
from lf_ray.errors import DataError, four_parts

VERSIONS = ("v2.0", "v2.1", "v3.0")
TABLE_V2 = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO_V2 = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
TABLE_V3 = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_V3 = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"


@dataclass(frozen=True, slots=True)
class Feature:
    """A column or camera that info.json lists."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def is_camera(self) -> bool:
        """Returns whether it holds pictures."""
        return self.dtype in ("video", "image")


@dataclass(frozen=True, slots=True)
class VideoSpan:
    """The part of a video file that shows one episode; up to its end where `to_s` is None."""

    path: Path
    from_s: float | None = None
    to_s: float | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """One recording.

    Attributes:
        first_row: its first row in the parquet file that holds it.
        place: version 3.0's columns that say which files hold it.
    """

    index: int
    num_frames: int
    first_row: int = 0
    place: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Info:
    """What meta/info.json says."""

    root: Path
    version: str
    fps: float
    chunk_episodes: int
    table_pattern: str
    video_pattern: str
    features: Mapping[str, Feature]
    robot_type: str

    @property
    def is_v3(self) -> bool:
        """Returns whether a file holds several episodes."""
        return self.version.startswith("v3")


@dataclass(frozen=True)
class Meta:
    """A data set without its frames and rows."""

    info: Info
    episodes: tuple[Episode, ...]
    tasks: Mapping[int, str]

    @property
    def root(self) -> Path:
        """Returns the data set's folder."""
        return self.info.root

    def table_path(self, episode: Episode) -> Path:
        """Returns the parquet file with an episode's rows."""
        return self.info.root / self._filled(self.info.table_pattern, episode, "data", "")

    def video_span(self, episode: Episode, feature: str) -> VideoSpan:
        """Returns where a camera's video of an episode is."""
        prefix = f"videos/{feature}"
        name = self._filled(self.info.video_pattern, episode, prefix, feature)
        path = self.info.root / name
        if not self.info.is_v3:
            return VideoSpan(path)
        return VideoSpan(
            path,
            float(_place(episode, f"{prefix}/from_timestamp")),
            float(_place(episode, f"{prefix}/to_timestamp")),
        )

    def _filled(self, pattern: str, episode: Episode, prefix: str, feature: str) -> str:
        values: dict[str, int | str] = {
            "episode_index": episode.index,
            "episode_chunk": episode.index // self.info.chunk_episodes,
            "video_key": feature,
        }
        if self.info.is_v3:
            values["chunk_index"] = int(_place(episode, f"{prefix}/chunk_index"))
            values["file_index"] = int(_place(episode, f"{prefix}/file_index"))
        try:
            return pattern.format(**values)
        except (KeyError, ValueError, IndexError) as error:
            raise DataError(
                four_parts(
                    "reading info.json",
                    f"a {self.info.version} path pattern may use {', '.join(values)}",
                    f"{pattern!r} ({error})",
                    "Correct data_path or video_path in meta/info.json, or codebase_version if "
                    "the set was converted.",
                )
            ) from error


def _place(episode: Episode, column: str) -> Any:
    if episode.place.get(column) is None:
        raise DataError(
            four_parts(
                "reading the episode table",
                f"meta/episodes must have the column {column} for a camera that is used",
                f"none for episode {episode.index}",
                "Convert the data set again, or take the camera out of modality.json.",
            )
        )
    return episode.place[column]


def read_info(root: Path) -> Info:
    """Returns what meta/info.json says.

    Raises:
        DataError: the folder or the file is missing, malformed, or of a version not read here.
    """
    if not root.is_dir() or not any(root.iterdir()):
        raise DataError(
            four_parts(
                "opening a data set",
                "data.path must name a folder with a LeRobot data set",
                f"{root}, which is {'empty' if root.is_dir() else 'no folder'}",
                "Correct data.path.",
            )
        )
    path = root / "meta" / "info.json"
    values = read_json(path)
    version = _version(path, values)
    is_v3 = version.startswith("v3")
    features = entry(path, values, "features", dict)
    return Info(
        root=root,
        version=version,
        fps=_positive(path, values, "fps"),
        chunk_episodes=int(values.get("chunks_size") or 1000),
        table_pattern=str(values.get("data_path") or (TABLE_V3 if is_v3 else TABLE_V2)),
        video_pattern=str(values.get("video_path") or (VIDEO_V3 if is_v3 else VIDEO_V2)),
        features={name: _feature(path, name, value) for name, value in features.items()},
        robot_type=str(values.get("robot_type") or ""),
    )


def _version(path: Path, values: dict[str, Any]) -> str:
    version = str(entry(path, values, "codebase_version", str))
    if version not in VERSIONS:
        raise DataError(
            four_parts(
                "reading info.json",
                f"codebase_version in {path} must be one of {', '.join(VERSIONS)}",
                repr(version),
                "Convert the data set with LeRobot's own converter.",
            )
        )
    return version


def _positive(path: Path, values: dict[str, Any], key: str) -> float:
    number = float(entry(path, values, key, float))
    if not 0 < number < float("inf"):
        raise DataError(
            four_parts(
                "reading info.json",
                f"{key!r} in {path} must be above 0",
                str(number),
                "Correct it.",
            )
        )
    return number


def _feature(path: Path, name: str, value: Any) -> Feature:
    if not isinstance(value, dict) or "dtype" not in value:
        raise DataError(
            four_parts(
                "reading info.json",
                f"each feature in {path} has a dtype and a shape",
                f"{name}: {value!r}",
                "Correct it.",
            )
        )
    return Feature(name, str(value["dtype"]), tuple(int(side) for side in value.get("shape", ())))


def read_meta(info: Info) -> Meta:
    """Returns the whole description of a data set.

    Raises:
        DataError: a meta file is missing or malformed.
    """
    return Meta(info, read_episodes(info), read_tasks(info))


def read_tasks(info: Info) -> dict[int, str]:
    """Returns the task texts by index."""
    if not info.is_v3:
        path = info.root / "meta" / "tasks.jsonl"
        rows = read_json_lines(path)
        return {entry(path, row, "task_index", int): entry(path, row, "task", str) for row in rows}
    path = info.root / "meta" / "tasks.parquet"
    names = columns_of(path)
    text = next((name for name in ("task", "__index_level_0__") if name in names), "task")
    columns = read_objects(path, ["task_index", text])
    return dict(zip(map(int, columns["task_index"]), map(str, columns[text])))


def read_episodes(info: Info) -> tuple[Episode, ...]:
    """Returns the episodes in order."""
    return _episodes_v3(info) if info.is_v3 else _episodes_v2(info)


def _episodes_v2(info: Info) -> tuple[Episode, ...]:
    path = info.root / "meta" / "episodes.jsonl"
    episodes = [
        Episode(entry(path, row, "episode_index", int), entry(path, row, "length", int))
        for row in read_json_lines(path)
    ]
    return tuple(sorted(episodes, key=lambda episode: episode.index))


def _episodes_v3(info: Info) -> tuple[Episode, ...]:
    folder = info.root / "meta" / "episodes"
    paths = sorted(folder.glob("chunk-*/file-*.parquet")) or [folder / "chunk-000/file-000.parquet"]
    cameras = [name for name, feature in info.features.items() if feature.dtype == "video"]
    place_columns = ["data/chunk_index", "data/file_index"]
    for path in paths:
        for camera in cameras:
            prefix = f"videos/{camera}"
            wanted = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
            known = columns_of(path)
            place_columns += [
                f"{prefix}/{name}"
                for name in wanted
                if f"{prefix}/{name}" in known and f"{prefix}/{name}" not in place_columns
            ]
    rows: list[dict[str, Any]] = []
    for path in paths:
        columns = read_objects(
            path, ["episode_index", "length", "dataset_from_index", *place_columns]
        )
        rows += [dict(zip(columns, values)) for values in zip(*columns.values())]
    return _placed(rows, place_columns)


def _placed(rows: list[dict[str, Any]], place_columns: list[str]) -> tuple[Episode, ...]:
    rows.sort(key=lambda row: int(row["episode_index"]))
    first_in_file: dict[tuple[int, int], int] = {}
    episodes = []
    for row in rows:
        file = (row["data/chunk_index"], row["data/file_index"])
        start = int(row["dataset_from_index"])
        first_row = start - first_in_file.setdefault(file, start)
        place = {name: row[name] for name in place_columns}
        episodes.append(Episode(int(row["episode_index"]), int(row["length"]), first_row, place))
    return tuple(episodes)
