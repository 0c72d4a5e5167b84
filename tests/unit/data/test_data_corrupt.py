"""A frame that can't be had in mid-epoch: named, then fatal or skipped and counted."""

from pathlib import Path

import numpy as np
import pytest

from lf_ray.data.batches.skipped import NONE_SKIPPED
from lf_ray.data.loader import BatchLoader
from lf_ray.data.video import VideoReader, write_video
from lf_ray.errors import DataError
from lf_ray.settings import DataSettings, SweepConfig

VIDEO = "videos/chunk-000/observation.images.front/episode_000001.mp4"


def config(root: Path, cache_dir: Path, **settings: object) -> SweepConfig:
    data = DataSettings(source="lerobot", path=str(root), cache_dir=str(cache_dir), **settings)  # type: ignore[arg-type]
    return SweepConfig(data=data)


@pytest.fixture
def broken_set(own_set: Path) -> Path:
    """Episode 1's video is broken in its middle, with good ends."""
    path = own_set / VIDEO
    with VideoReader(path) as reader:
        frames = [frame for _, frame in reader.decode(0, 23, reader.size)]
    write_video(path, frames, 20.0, group_frames=4)
    data = bytearray(path.read_bytes())
    middle = data.find(b"mdat") + (data.find(b"moov") - data.find(b"mdat")) // 2
    data[middle : middle + 40] = b"\xff" * 40
    path.write_bytes(data)
    return own_set


@pytest.mark.parametrize("cache", [True, False])
def test_a_corrupt_frame_is_fatal_by_default(broken_set: Path, tmp_path: Path, cache: bool) -> None:
    with BatchLoader(config(broken_set, tmp_path, cache=cache), 0, 1, 0, 4) as loader:
        with pytest.raises(DataError, match=r"frame \d+ of .*episode_000001\.mp4"):
            [loader.next() for _ in range(7)]
        with pytest.raises(DataError):
            loader.next()


@pytest.mark.parametrize("cache", [True, False])
def test_a_corrupt_frame_is_skipped_and_counted_on_request(
    broken_set: Path, tmp_path: Path, cache: bool
) -> None:
    settings = config(broken_set, tmp_path, cache=cache, skip_corrupt=True)
    with BatchLoader(settings, 0, 1, 0, 4) as loader:
        batches = [loader.next()[0] for _ in range(7)]
        bad = list(loader.bad_frames)
        skipped = loader.take_skipped()
        assert skipped.num_samples >= len(bad) > 0
        assert skipped.frames == {str(frame) for frame in bad}
        assert loader.take_skipped() == NONE_SKIPPED
        loader.seek(0)
        again = [loader.next()[0] for _ in range(7)]
        assert loader.take_skipped() == skipped
    assert {frame.path.name for frame in bad} == {"episode_000001.mp4"}
    assert all(0 < frame.frame < 23 for frame in bad)
    for first, second in zip(batches, again):
        assert all(np.array_equal(first[name], second[name]) for name in first)
    assert all(batch["images_BKHWC"].float().std() > 5 for batch in batches)


def test_a_missing_last_frame_costs_no_sample_that_does_not_use_it(
    own_set: Path, tmp_path: Path
) -> None:
    path = own_set / VIDEO
    with VideoReader(path) as reader:
        frames = [frame for _, frame in reader.decode(0, 23, reader.size)]
    write_video(path, frames[:-1], 20.0)
    with BatchLoader(config(own_set, tmp_path), 0, 1, 0, 9) as loader:
        for _ in range(3):
            loader.next()
        assert loader.take_skipped() == NONE_SKIPPED
