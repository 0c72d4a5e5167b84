"""The frame cache: right pictures, shared, bounded, safe against what can go wrong."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from lf_ray.data.batches.filling import fill_cache
from lf_ray.data.batches.opening import open_training_set
from lf_ray.data.batches.training_set import CacheState, TrainingSet
from lf_ray.data.frames.arena import FrameArena, FrameState
from lf_ray.data.frames.fill import ArenaFiller
from lf_ray.data.frames.pool import DecoderPool
from lf_ray.data.frames.request import Answerer, DecodeReply, DecodeRequest
from lf_ray.data.stream import Picks
from lf_ray.data.video import Frame, FrameSize, VideoReader, write_video
from lf_ray.errors import DataError
from lf_ray.settings import DataSettings, ModelSettings

SIZE = FrameSize(4, 6)


def arena_at(path: Path, num_frames: int = 10, max_bytes: int = 1 << 20) -> FrameArena:
    return FrameArena(path / "arena", num_frames, SIZE, max_bytes)


def picture(number: int) -> np.ndarray:
    return np.full((*SIZE, 3), number, np.uint8)


def opened(root: Path, cache_dir: Path, *, cache: bool = True, cache_gib: float = 1) -> TrainingSet:
    data = DataSettings(
        source="lerobot",
        path=str(root),
        cache_dir=str(cache_dir),
        cache=cache,
        cache_gib=cache_gib,
    )
    return open_training_set(data, ModelSettings())


def images(training_set: TrainingSet, samples: list[int]) -> np.ndarray:
    out = np.zeros(training_set.image_shape(len(samples)), np.uint8)
    zeros = np.zeros(len(samples), np.int64)
    picks = Picks(zeros, np.array(samples), zeros)
    answerer = Answerer(threads=1)
    fresh: dict[int, dict[int, Frame]] = {}
    for request in training_set.requests([picks]):
        reply = answerer.answer(request)
        fresh.setdefault(reply.camera, {}).update(reply.frames)
    _, bad = training_set.arrays(picks, 0, fresh, out)
    assert not bad
    return out


def test_frames_come_back_and_are_seen_by_others(tmp_path: Path) -> None:
    mine, other = arena_at(tmp_path), arena_at(tmp_path)
    assert mine.write(3, picture(30))
    rows = np.array([3, 4])
    assert other.is_ready(rows).tolist() == [True, False]
    out = np.zeros((1, *SIZE, 3), np.uint8)
    other.read(np.array([3]), out)
    assert np.array_equal(out[0], picture(30))
    mine.mark_bad(4)
    assert other.states(rows).tolist() == [FrameState.WRITTEN, FrameState.BAD]
    assert other.num_ready() == 1


def test_the_byte_limit_is_kept(tmp_path: Path) -> None:
    arena = arena_at(tmp_path, max_bytes=3 * 72)
    assert [arena.write(row, picture(row)) for row in range(5)] == [True] * 3 + [False] * 2
    assert arena.is_full
    assert arena.num_ready() == 3


def test_a_full_disk_ends_the_filling_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = arena_at(tmp_path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert not arena.write(0, picture(1))
    assert arena.is_full
    assert arena.num_ready() == 0


def test_after_a_crash_of_the_machine_only_synced_frames_count(tmp_path: Path) -> None:
    arena = arena_at(tmp_path)
    arena.write(0, picture(1))
    arena.sync()
    arena.write(1, picture(2))
    (tmp_path / "arena.boot").write_text("another boot")
    assert arena_at(tmp_path).is_ready(np.array([0, 1])).tolist() == [True, False]


_WRITE_FOR_EVER = """
import sys, numpy as np
from pathlib import Path
from lf_ray.data.frames.arena import FrameArena
from lf_ray.data.video import FrameSize
arena = FrameArena(Path(sys.argv[1]) / "arena", 200, FrameSize(4, 6), 1 << 20)
while True:
    for row in range(200):
        arena.write(row, np.full((4, 6, 3), row, np.uint8))
"""


def test_a_killed_writer_leaves_only_whole_frames(tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", _WRITE_FOR_EVER, str(tmp_path)])
    deadline = time.monotonic() + 30
    while not (tmp_path / "arena.state").exists() or not any(
        (tmp_path / "arena.state").read_bytes()
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    writer.kill()
    writer.wait()
    arena = arena_at(tmp_path, num_frames=200)
    ready = np.flatnonzero(arena.is_ready(np.arange(200)))
    assert len(ready)
    out = np.zeros((len(ready), *SIZE, 3), np.uint8)
    arena.read(ready, out)
    assert all(np.array_equal(frame, picture(row)) for row, frame in zip(ready.tolist(), out))


def test_pictures_are_the_same_with_and_without_cache(tiny_set: Path, tmp_path: Path) -> None:
    samples = [0, 8, 9, 20, 26, 3]
    plain = images(opened(tiny_set, tmp_path, cache=False), samples)
    cached = opened(tiny_set, tmp_path)
    assert np.array_equal(images(cached, samples), plain)
    assert np.array_equal(images(cached, samples), plain)
    tight = opened(tiny_set, tmp_path / "tight", cache_gib=20_000 / 2**30)
    for _ in range(2):
        assert np.array_equal(images(tight, samples), plain)


def test_pictures_belong_to_their_rows(tiny_set: Path, tmp_path: Path) -> None:
    training_set = opened(tiny_set, tmp_path)
    got = images(training_set, [0, 10])
    for place, (episode, frame) in enumerate([(0, 0), (1, 1)]):
        path = tiny_set / f"videos/chunk-000/observation.images.front/episode_{episode:06d}.mp4"
        with VideoReader(path) as reader:
            expected = dict(reader.decode(frame, frame, reader.size))[frame]
        assert np.array_equal(got[place, 0], expected)


def test_episodes_of_one_video_file_are_told_apart(
    tiny_set: Path, v3_set: Path, image_set: Path, tmp_path: Path
) -> None:
    samples = [0, 8, 9, 18, 26]
    expected = images(opened(tiny_set, tmp_path), samples)
    assert np.array_equal(images(opened(image_set, tmp_path), samples), expected)
    recoded = images(opened(v3_set, tmp_path), samples)
    assert np.abs(recoded.astype(int) - expected).mean() < 3


def test_filling_covers_every_frame_once_over_ranks(tiny_set: Path, tmp_path: Path) -> None:
    training_set = opened(tiny_set, tmp_path)
    units = training_set.unfilled()
    assert [len(unit.rows) for unit in units] == [24, 24, 24]
    fillers = [ArenaFiller(units, rank, 2, DecoderPool(rank, 1)) for rank in range(2)]
    assert all(filler.wait(20) for filler in fillers)
    for filler in fillers:
        filler.close()
    assert not training_set.unfilled()
    assert not opened(tiny_set, tmp_path).unfilled()


def test_a_sweeps_cache_is_filled_before_it_begins(tiny_set: Path, tmp_path: Path) -> None:
    training_set = opened(tiny_set, tmp_path, cache=False)
    assert training_set.cache_state() is CacheState.OFF
    fill_cache(training_set, pytest.fail)
    assert training_set.cache_state() is CacheState.WHOLE
    training_set.close()


def test_filling_that_stands_still_is_an_error(
    tiny_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def stuck(answerer: Answerer, request: DecodeRequest) -> DecodeReply:
        released.wait(20)
        return DecodeReply(request.camera)

    monkeypatch.setattr(Answerer, "answer", stuck)
    said: list[str] = []
    # Closing waits for the request that is being answered.
    timer = threading.Timer(2.0, released.set)
    timer.start()
    with pytest.raises(DataError, match="no progress after 0 of 3"):
        fill_cache(opened(tiny_set, tmp_path), said.append, silent_s=0.1)
    timer.join()
    assert "72 frames" in said[0]


def test_a_changed_video_is_decoded_anew(own_set: Path, tmp_path: Path) -> None:
    before = images(opened(own_set, tmp_path), [0])
    path = own_set / "videos/chunk-000/observation.images.front/episode_000000.mp4"
    write_video(path, [np.full((32, 32, 3), 200, np.uint8)] * 24, 20.0)
    after = images(opened(own_set, tmp_path), [0])
    assert abs(int(after.mean()) - 200) < 5
    assert abs(int(before.mean()) - 200) > 50


def test_cameras_of_different_sizes_share_a_frame(own_set: Path, tmp_path: Path) -> None:
    import json

    for name in ("meta/info.json", "meta/modality.json"):
        value = json.loads((own_set / name).read_text())
        if "features" in value:
            value["features"]["observation.images.wide"] = {"dtype": "video", "shape": [16, 32, 3]}
        else:
            value["video"]["wide"] = {"original_key": "observation.images.wide"}
        (own_set / name).write_text(json.dumps(value))
    folder = own_set / "videos/chunk-000/observation.images.wide"
    folder.mkdir()
    for episode in range(3):
        frames = [np.full((16, 32, 3), 200, np.uint8)] * 24
        write_video(folder / f"episode_{episode:06d}.mp4", frames, 20.0)
    got = images(opened(own_set, tmp_path), [0])
    assert got.shape == (1, 2, 32, 32, 3)
    assert not got[0, 1, :8].any()
    assert got[0, 1, 9:23].mean() > 180


def test_a_variable_rate_video_is_read_by_time(own_set: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    times_s = np.cumsum(rng.uniform(0.03, 0.07, 30)).round(3)
    shown = np.sort(rng.choice(np.arange(1, 30), 23, replace=False))
    shown = np.concatenate([[0], shown])
    levels = [np.full((32, 32, 3), 8 * number, np.uint8) for number in range(30)]
    name = "episode_000000"
    path = own_set / f"videos/chunk-000/observation.images.front/{name}.mp4"
    write_video(path, levels, 20.0, times_s=list(times_s - times_s[0]))
    table = own_set / f"data/chunk-000/{name}.parquet"
    rows = pq.read_table(table).to_pydict()
    rows["timestamp"] = (times_s[shown] - times_s[0]).tolist()
    pq.write_table(pa.table(rows), table)
    got = images(opened(own_set, tmp_path), list(range(9))).mean(axis=(1, 2, 3, 4))
    assert np.abs(got - 8 * shown[:9]).max() < 4
