"""Decoding: order, seeks, codecs, broken files. Pictures carry their number, so a mix-up shows."""

from pathlib import Path

import numpy as np
import pytest

from lf_ray.data.video import (
    Frame,
    FrameSize,
    VideoReader,
    decode_image,
    encode_image,
    write_video,
)
from lf_ray.errors import DataError

NUM_FRAMES = 45


def numbered(number: int, side: int = 64) -> Frame:
    """A picture whose brightness by columns spells its number in binary."""
    bits = [(number >> bit) & 1 for bit in range(8)]
    row = np.repeat(np.array(bits, np.uint8) * 200 + 20, side // 8)
    return np.broadcast_to(row[None, :, None], (side, side, 3)).copy()


def number_of(frame: Frame) -> int:
    columns = frame.mean(axis=(0, 2)).reshape(8, -1).mean(axis=1)
    return sum(int(value > 120) << bit for bit, value in enumerate(columns))


@pytest.fixture(scope="module")
def h264(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("video") / "h264.mp4"
    write_video(path, [numbered(i) for i in range(NUM_FRAMES)], 20.0, group_frames=10)
    return path


@pytest.mark.parametrize("codec", ["libx264", "libx265", "libsvtav1"])
def test_any_frame_of_any_codec_is_the_right_one(codec: str, tmp_path: Path) -> None:
    path = tmp_path / "video.mp4"
    write_video(path, [numbered(i) for i in range(NUM_FRAMES)], 20.0, codec=codec, group_frames=10)
    with VideoReader(path) as reader:
        assert len(reader) == NUM_FRAMES
        assert np.allclose(reader.times_s, np.arange(NUM_FRAMES) / 20, atol=1e-3)
        for index in (0, 44, 13, 10, 9, 30):
            frames = dict(reader.decode(index, index, reader.size, {index}))
            assert list(frames) == [index]
            assert number_of(frames[index]) == index
        assert not reader.bad


def test_a_run_yields_what_it_passes_only_when_asked(h264: Path) -> None:
    with VideoReader(h264) as reader:
        key = reader.key_before(13)
        assert 0 < key < 13
        passed = dict(reader.decode(13, 22, reader.size))
        assert sorted(passed) == list(range(key, 23))
        assert all(number_of(frame) == index for index, frame in passed.items())
        assert list(dict(reader.decode(13, 22, reader.size, {13, 22}))) == [13, 22]


def test_frames_are_scaled_and_keep_their_shape(h264: Path) -> None:
    with VideoReader(h264) as reader:
        frame = dict(reader.decode(37, 37, FrameSize(32, 32), {37}))[37]
        wide = dict(reader.decode(37, 37, FrameSize(32, 64), {37}))[37]
    assert frame.shape == (32, 32, 3)
    assert number_of(frame) == 37
    assert wide.shape == (32, 64, 3)
    assert np.array_equal(wide[:, 16:48], frame)
    assert not wide[:, :16].any()
    assert not wide[:, 48:].any()


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_broken_group_is_left_out_and_the_next_goes_on(
    threads: int, h264: Path, tmp_path: Path
) -> None:
    path = tmp_path / "broken.mp4"
    data = bytearray(h264.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 60] = b"\xff" * 60
    path.write_bytes(data)
    with VideoReader(path, threads) as reader:
        got = dict(reader.decode(0, NUM_FRAMES - 1, reader.size))
        (bad,) = reader.bad
    assert bad.last + 1 in reader.keys
    assert sorted(got) == [i for i in range(NUM_FRAMES) if not bad.first <= i <= bad.last]
    assert all(number_of(frame) == index for index, frame in got.items())


@pytest.mark.parametrize("content", [b"", b"not a video", None])
def test_an_unreadable_file_is_named(content: bytes | None, h264: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.mp4"
    path.write_bytes(h264.read_bytes()[:3000] if content is None else content)
    with pytest.raises(DataError, match=r"bad\.mp4"):
        VideoReader(path)


def test_a_codec_without_a_decoder_is_named(h264: Path, tmp_path: Path) -> None:
    path = tmp_path / "unknown.mp4"
    path.write_bytes(h264.read_bytes().replace(b"avc1", b"zzzz"))
    with pytest.raises(DataError, match=r"unknown\.mp4.*no decoder for"):
        VideoReader(path)


def test_still_images_round_trip() -> None:
    frame = numbered(77)
    assert np.array_equal(decode_image(encode_image(frame)), frame)
    assert number_of(decode_image(encode_image(frame), FrameSize(32, 32))) == 77
    with pytest.raises(DataError, match="still image"):
        decode_image(b"nothing")
