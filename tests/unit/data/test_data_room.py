"""The bound of the frame cache over several data sets."""

import os
from pathlib import Path

import numpy as np
import pytest

from lf_ray.data.frames.arena import FrameArena
from lf_ray.data.frames.room import make_room
from lf_ray.data.video import FrameSize

SIZE = FrameSize(64, 64)
FRAME_BYTES = 64 * 64 * 3
ARENA_BYTES = 20 * FRAME_BYTES


def filled(folder: Path, name: str, opened_s: float) -> FrameArena:
    arena = FrameArena(folder / name, 20, SIZE, ARENA_BYTES)
    for row in range(20):
        assert arena.write(row, np.full((*SIZE, 3), row, np.uint8))
    os.utime(folder / f"{name}.use", (opened_s, opened_s))
    return arena


def names(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.frames")}


def test_nothing_goes_while_there_is_room(tmp_path: Path) -> None:
    filled(tmp_path, "old", 1.0).close()
    limits = make_room(tmp_path, {"new": ARENA_BYTES}, 3 * ARENA_BYTES)
    assert limits == {"new": ARENA_BYTES}
    assert names(tmp_path) == {"old"}


def test_the_arena_opened_longest_ago_goes_first(tmp_path: Path) -> None:
    filled(tmp_path, "older", 1.0).close()
    filled(tmp_path, "newer", 2.0).close()
    limits = make_room(tmp_path, {"new": ARENA_BYTES}, int(2.2 * ARENA_BYTES))
    assert limits == {"new": ARENA_BYTES}
    assert names(tmp_path) == {"newer"}


def test_an_open_arena_stays_and_the_new_one_gets_less(tmp_path: Path) -> None:
    arena = filled(tmp_path, "used", 1.0)
    limits = make_room(tmp_path, {"new": ARENA_BYTES}, int(1.5 * ARENA_BYTES))
    assert names(tmp_path) == {"used"}
    assert 0.3 * ARENA_BYTES < limits["new"] < 0.6 * ARENA_BYTES
    arena.close()


def test_cameras_share_what_there_is(tmp_path: Path) -> None:
    limits = make_room(tmp_path, {"a": 3 * ARENA_BYTES, "b": ARENA_BYTES}, 2 * ARENA_BYTES)
    assert limits == {"a": int(1.5 * ARENA_BYTES), "b": int(0.5 * ARENA_BYTES)}


def test_the_disk_is_not_filled_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    usage = shutil.disk_usage(tmp_path)
    little = (1 << 30) + ARENA_BYTES // 4
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=little))
    limits = make_room(tmp_path, {"new": ARENA_BYTES}, 10 * ARENA_BYTES)
    assert limits == {"new": ARENA_BYTES // 4}
