"""Tiny data sets, rendered once and copied for tests that break them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lf_ray.data.sample_set import SampleSetShape, render_sample_set
from lf_ray.data.video import Frame, VideoReader, encode_image, write_video

TINY = SampleSetShape(num_episodes=3, num_frames=24, side_px=32)


@pytest.fixture(scope="session")
def tiny_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good version 2.1 set: read only."""
    root = tmp_path_factory.mktemp("sets") / "tiny"
    render_sample_set(root, TINY)
    return root


@pytest.fixture
def own_set(tiny_set: Path, tmp_path: Path) -> Path:
    """A copy of the tiny set that a test may break."""
    return Path(shutil.copytree(tiny_set, tmp_path / "set"))


@pytest.fixture
def edit_json() -> Callable[[Path, Callable[[Any], None]], None]:
    """Changes a JSON file in place."""

    def edit(path: Path, change: Callable[[Any], None]) -> None:
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))

    return edit


@pytest.fixture
def v3_set(tiny_set: Path, tmp_path: Path) -> Path:
    """The tiny set as version 3.0: all episodes in one parquet and one video file."""
    return to_v3(tiny_set, tmp_path / "v3")


@pytest.fixture
def image_set(tiny_set: Path, tmp_path: Path) -> Path:
    """The tiny set as version 3.0 with pictures as PNG in the parquet file."""
    return to_v3(tiny_set, tmp_path / "images", as_images=True)


def to_v3(source: Path, root: Path, as_images: bool = False) -> Path:
    frames: list[Frame] = []
    tables: list[Any] = []
    episodes: list[dict[str, Any]] = []
    start = 0
    camera = "observation.images.front"
    for path in sorted(source.glob("data/*/*.parquet")):
        table = pq.read_table(path)
        video = source / "videos/chunk-000" / camera / f"{path.stem}.mp4"
        with VideoReader(video) as reader:
            frames += [frame for _, frame in reader.decode(0, len(reader) - 1, reader.size)]
        stop = start + len(table)
        episodes.append(
            {
                "episode_index": len(episodes),
                "length": len(table),
                "tasks": ["any"],
                "dataset_from_index": start,
                "dataset_to_index": stop,
                "data/chunk_index": 0,
                "data/file_index": 0,
                f"videos/{camera}/chunk_index": 0,
                f"videos/{camera}/file_index": 0,
                f"videos/{camera}/from_timestamp": start / 20,
                f"videos/{camera}/to_timestamp": stop / 20,
            }
        )
        tables.append(table)
        start = stop
    table = pa.concat_tables(tables)
    for folder in ("data/chunk-000", f"videos/{camera}/chunk-000", "meta/episodes/chunk-000"):
        (root / folder).mkdir(parents=True)
    if as_images:
        column = [{"bytes": encode_image(frame), "path": None} for frame in frames]
        table = table.append_column(camera, pa.array(column))
    else:
        write_video(root / f"videos/{camera}/chunk-000/file-000.mp4", frames, 20.0, group_frames=7)
    pq.write_table(table, root / "data/chunk-000/file-000.parquet")
    pq.write_table(
        pa.Table.from_pylist(episodes), root / "meta/episodes/chunk-000/file-000.parquet"
    )
    _write_v3_meta(source, root, camera, as_images)
    return root


def _write_v3_meta(source: Path, root: Path, camera: str, as_images: bool) -> None:
    info = json.loads((source / "meta/info.json").read_text())
    info["codebase_version"] = "v3.0"
    info["data_path"] = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    info["video_path"] = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    if as_images:
        info["features"][camera]["dtype"] = "image"
    (root / "meta/info.json").write_text(json.dumps(info))
    for name in ("stats.json", "modality.json"):
        shutil.copy(source / "meta" / name, root / "meta" / name)
    rows = [json.loads(line) for line in (source / "meta/tasks.jsonl").read_text().splitlines()]
    texts, numbers = [row["task"] for row in rows], [row["task_index"] for row in rows]
    pq.write_table(
        pa.table({"task_index": numbers, "__index_level_0__": texts}), root / "meta/tasks.parquet"
    )
