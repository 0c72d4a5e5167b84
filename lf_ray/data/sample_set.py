"""A small LeRobot data set that lf-ray renders itself: what `data=sample` trains on.

A dot has to reach the disc of the colour that the task names; the other disc is in the way of
guessing. The action (two velocities and a gripper) follows from picture, task and state, so a model
that learns lowers its loss. Real parquet, real h264, version 2.1; written once, then read like any
other data set.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lf_ray.data.lerobot.meta import TABLE_V2, VIDEO_V2
from lf_ray.data.lerobot.statistics import compute_statistics
from lf_ray.data.video import write_video

_VERSION = 1
_TASKS = ("Reach the red disc.", "Reach the blue disc.")
_COLOURS = np.array([[220, 40, 40], [40, 60, 220]], np.float32)
_FPS = 20.0
_STEP = 0.04


@dataclass(frozen=True, kw_only=True)
class SampleSetShape:
    """How large the rendered set is."""

    num_episodes: int = 8
    num_frames: int = 60
    side_px: int = 64
    seed: int = 0

    @property
    def name(self) -> str:
        """Returns a folder name that tells sets apart."""
        return (
            f"sample-v{_VERSION}-{self.num_episodes}x{self.num_frames}-{self.side_px}px-{self.seed}"
        )


def sample_set(cache_dir: Path, shape: SampleSetShape | None = None) -> Path:
    """Returns the folder of the sample set, rendering it first where it is not there yet.

    Safe against several ranks at once and against a writer that was killed: a set is written beside
    its place and moved there whole.

    Raises:
        OSError: the cache folder can't be written.
    """
    shape = shape or SampleSetShape()
    target = cache_dir / shape.name
    if (target / "meta" / "info.json").exists():
        return target
    scratch = cache_dir / f".{shape.name}.{os.getpid()}.tmp"
    _remove_leftovers(cache_dir, shape)
    try:
        render_sample_set(scratch, shape)
        try:
            scratch.rename(target)
        except OSError:
            # Another rank was first; any other reason shows when the set is opened.
            if not (target / "meta" / "info.json").exists():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _remove_leftovers(cache_dir: Path, shape: SampleSetShape) -> None:
    """Removes what writers that are no longer alive, or this one's namesake, left behind."""
    for path in cache_dir.glob(f".{shape.name}.*.tmp"):
        pid = int(path.name.split(".")[-2])
        if pid == os.getpid() or not Path(f"/proc/{pid}").exists():
            shutil.rmtree(path, ignore_errors=True)


def render_sample_set(root: Path, shape: SampleSetShape) -> None:
    """Writes the data set into a folder."""
    rng = np.random.default_rng(shape.seed)
    rows: list[dict[str, NDArray[Any]]] = []
    for episode in range(shape.num_episodes):
        columns = _episode(rng, episode, shape)
        frames = columns.pop("frames")
        columns["index"] = np.arange(shape.num_frames) + episode * shape.num_frames
        _write_table(root / f"data/chunk-000/episode_{episode:06d}.parquet", columns)
        folder = root / "videos/chunk-000/observation.images.front"
        folder.mkdir(parents=True, exist_ok=True)
        write_video(folder / f"episode_{episode:06d}.mp4", frames, _FPS, group_frames=20)
        rows.append(columns)
    _write_meta(root, shape, rows)


def _episode(
    rng: np.random.Generator, episode: int, shape: SampleSetShape
) -> dict[str, NDArray[Any]]:
    task = episode % len(_TASKS)
    num_frames = shape.num_frames
    # The discs lie on different halves and swap between episodes, so colour has to be read.
    halves = np.array([-0.5, 0.5]) * (1 if (episode // 2) % 2 else -1)
    discs_2XY = np.stack([halves, rng.uniform(-0.7, 0.7, 2)], axis=1)
    at_XY = rng.uniform(-0.8, 0.8, 2)
    states, actions, frames = [], [], []
    for _ in range(num_frames):
        gap_XY = discs_2XY[task] - at_XY
        distance = float(np.linalg.norm(gap_XY))
        velocity_XY = gap_XY * min(1.0, _STEP / max(distance, 1e-6))
        grip = 1.0 if distance < 2 * _STEP else -1.0
        states.append([*at_XY, _touch(distance)])
        actions.append([*(velocity_XY / _STEP), grip])
        frames.append(_picture(shape.side_px, discs_2XY, at_XY))
        at_XY = at_XY + velocity_XY
        if distance < _STEP / 2:
            at_XY = rng.uniform(-0.8, 0.8, 2)
    return {
        "observation.state": np.array(states, np.float32),
        "action": np.array(actions, np.float32),
        "timestamp": np.arange(num_frames) / _FPS,
        "frame_index": np.arange(num_frames),
        "episode_index": np.full(num_frames, episode),
        "task_index": np.full(num_frames, task),
        "frames": np.stack(frames),
    }


def _touch(distance: float) -> float:
    """Returns whether the dot touches its disc, as the gripper's own sensor would."""
    return 1.0 if distance < 2 * _STEP else 0.0


def _picture(
    side_px: int, discs_2XY: NDArray[np.float64], at_XY: NDArray[np.float64]
) -> NDArray[np.uint8]:
    grid = (np.arange(side_px) + 0.5) / side_px * 2 - 1
    picture_HWC = np.full((side_px, side_px, 3), 30.0, np.float32)
    spots = [(discs_2XY[0], 0.2, _COLOURS[0]), (discs_2XY[1], 0.2, _COLOURS[1])]
    spots.append((at_XY, 0.1, np.array([230, 230, 230], np.float32)))
    for centre_XY, radius, colour in spots:
        distance = np.hypot(grid[:, None] - centre_XY[1], grid[None, :] - centre_XY[0])
        cover = np.clip((radius - distance) * side_px / 2 + 0.5, 0, 1)[:, :, None]
        picture_HWC = picture_HWC * (1 - cover) + colour * cover
    return picture_HWC.astype(np.uint8)


def _write_table(path: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {name: list(values) if values.ndim == 2 else values for name, values in columns.items()}
    pq.write_table(pa.table(table), path)


def _write_meta(root: Path, shape: SampleSetShape, rows: list[dict[str, NDArray[Any]]]) -> None:
    meta = root / "meta"
    meta.mkdir(parents=True, exist_ok=True)
    joined = {name: np.concatenate([part[name] for part in rows]) for name in rows[0]}
    vectors = ("observation.state", "action")
    stats = {name: _plain(compute_statistics(joined[name])) for name in vectors}
    _write_json(meta / "stats.json", stats)
    _write_lines(
        meta / "episodes.jsonl",
        [
            {"episode_index": i, "tasks": [_TASKS[i % 2]], "length": shape.num_frames}
            for i in range(shape.num_episodes)
        ],
    )
    _write_lines(
        meta / "tasks.jsonl", [{"task_index": i, "task": task} for i, task in enumerate(_TASKS)]
    )
    _write_json(meta / "modality.json", _modality())
    # Last, because its presence says that the set is whole.
    _write_json(meta / "info.json", _info(shape))


def _modality() -> dict[str, Any]:
    return {
        "state": {"position": {"start": 0, "end": 2}, "touch": {"start": 2, "end": 3}},
        "action": {"velocity": {"start": 0, "end": 2}, "gripper": {"start": 2, "end": 3}},
        "video": {"front": {"original_key": "observation.images.front"}},
        "annotation": {"human.action.task_description": {"original_key": "task_index"}},
    }


def _info(shape: SampleSetShape) -> dict[str, Any]:
    side = shape.side_px
    scalars = {
        "timestamp": "float64",
        "frame_index": "int64",
        "episode_index": "int64",
        "index": "int64",
        "task_index": "int64",
    }
    return {
        "codebase_version": "v2.1",
        "robot_type": "lf_ray_dot",
        "total_episodes": shape.num_episodes,
        "total_frames": shape.num_episodes * shape.num_frames,
        "total_tasks": len(_TASKS),
        "chunks_size": 1000,
        "fps": _FPS,
        "data_path": TABLE_V2,
        "video_path": VIDEO_V2,
        "features": {
            "observation.images.front": {"dtype": "video", "shape": [side, side, 3]},
            "observation.state": {"dtype": "float32", "shape": [3]},
            "action": {"dtype": "float32", "shape": [3]},
            **{name: {"dtype": dtype, "shape": [1]} for name, dtype in scalars.items()},
        },
    }


def _plain(stats: Mapping[str, NDArray[np.float64]]) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in stats.items()}


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _write_lines(path: Path, values: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
