"""Video and image files through PyAV: the only file that knows the library.

A reader knows when each frame is shown, which frames are keyframes, and decodes runs of frames.
It never returns a frame that it did not decode: one that can't be decoded, and those that build
on it up to the next keyframe, are errors that name file and frame.
"""

import io
from bisect import bisect_right
from collections.abc import Container, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import av
import av.logging
import numpy as np
from numpy.typing import NDArray

from lf_ray.errors import DataError, four_parts

# Decoders report broken data on stderr as well as by an error; the error is enough.
av.logging.set_level(av.logging.PANIC)

Frame = NDArray[np.uint8]
"""One frame, [H, W, 3] in RGB order."""


class FrameSize(NamedTuple):
    """Height and width of a frame in pixels."""

    height: int
    width: int


class BadRun(NamedTuple):
    """Frames first..last of a file that can't be decoded, and why."""

    first: int
    last: int
    reason: str


class VideoReader:
    """An open video file.

    Attributes:
        times_s: when each frame is shown, in display order.
        keys: indices of the keyframes, ascending.
        size: height and width as coded.
        codec: the decoder's name.
        bad: frames that could not be decoded so far.
    """

    def __init__(self, path: Path, threads: int = 1) -> None:
        self._path = path
        self._threads = threads
        self._container, self._stream = _open(path, threads)
        self._scaler = av.video.reformatter.VideoReformatter()
        self.codec: str = self._stream.codec_context.name
        self.size = FrameSize(self._stream.codec_context.height, self._stream.codec_context.width)
        self.bad: list[BadRun] = []
        self._read_index()

    def _read_index(self) -> None:
        shown: list[tuple[int, bool]] = []
        try:
            for packet in self._container.demux(self._stream):
                if packet.pts is not None and packet.size and not packet.is_discard:
                    shown.append((packet.pts, packet.is_keyframe))
        except av.error.FFmpegError as error:
            raise _unreadable(self._path, f"after {len(shown)} frames: {error.strerror}") from error
        shown.sort()
        if not shown:
            raise _unreadable(self._path, "no video frames")
        self._index_of_pts = {pts: index for index, (pts, _) in enumerate(shown)}
        self._pts = [pts for pts, _ in shown]
        self.keys = [index for index, (_, is_key) in enumerate(shown) if is_key or not index]
        self.times_s: NDArray[np.float64] = np.array(self._pts) * float(self._stream.time_base)

    def __len__(self) -> int:
        return len(self._pts)

    def key_before(self, index: int) -> int:
        """Returns the last keyframe at or before a frame."""
        return self.keys[bisect_right(self.keys, index) - 1]

    def _key_after(self, index: int) -> int:
        position = bisect_right(self.keys, index)
        return self.keys[position] if position < len(self.keys) else len(self)

    def decode(
        self, first: int, last: int, size: FrameSize, wanted: Container[int] | None = None
    ) -> Iterator[tuple[int, Frame]]:
        """Yields frames from the keyframe at or before `first` up to `last`, scaled to `size`.

        Frames that can't be decoded are left out and added to `bad`; decoding goes on at the next
        keyframe. Those not `wanted` are decoded where others need them, but not yielded.
        """
        start = self.key_before(first)
        while start <= last:
            done = start
            try:
                for index, frame in self._decode_from(start):
                    if index > last:
                        return
                    done = index + 1
                    if wanted is None or index in wanted:
                        yield index, _framed(self._scaler, frame, size)
                reason = "the decoder gave no frame"
            except av.error.FFmpegError as error:
                reason = error.strerror
            if done >= len(self):
                return
            start = self._key_after(done)
            self.bad.append(BadRun(done, start - 1, reason))

    def _decode_from(self, key: int) -> Iterator[tuple[int, Any]]:
        """Yields (index, frame) in display order, starting at a keyframe, without a gap."""
        self._seek(key)
        expected = key
        for packet in self._container.demux(self._stream):
            for frame in packet.decode():
                index = self._index_of_pts.get(frame.pts, -1)
                if index < expected:
                    continue  # leading frames of an open group of pictures
                if index > expected or frame.is_corrupt:
                    return
                yield index, frame
                expected += 1

    def _seek(self, key: int) -> None:
        self._container.seek(self._pts[key], stream=self._stream, backward=True)

    def close(self) -> None:
        """Closes the file."""
        self._container.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class SeekingReader:
    """One seek for each frame that is asked for: what a plain loader does. For comparison only."""

    def __init__(self, path: Path) -> None:
        self._container = av.open(str(path))
        self._stream = self._container.streams.video[0]

    def at(self, time_s: float, size: FrameSize) -> Frame:
        """Returns the first frame that is shown at or after a time."""
        time_base = float(self._stream.time_base)
        self._container.seek(int(time_s / time_base), stream=self._stream, backward=True)
        for frame in self._container.decode(self._stream):
            if frame.pts * time_base >= time_s - 1e-4:
                break
        array: Frame = frame.to_ndarray(
            format="rgb24", width=size.width, height=size.height, interpolation="AREA"
        )
        return array


def fitted(own: FrameSize, frame: FrameSize) -> FrameSize:
    """Returns the largest size with the picture's own shape that fits into a frame."""
    scale = min(frame.height / own.height, frame.width / own.width)
    return FrameSize(
        min(round(own.height * scale), frame.height), min(round(own.width * scale), frame.width)
    )


def _framed(scaler: Any, picture: Any, size: FrameSize) -> Frame:
    """Returns a picture scaled into a frame; what its shape leaves free is black, evenly around."""
    inner = fitted(FrameSize(picture.height, picture.width), size)
    array: Frame = scaler.reformat(
        picture, width=inner.width, height=inner.height, format="rgb24", interpolation="AREA"
    ).to_ndarray()
    if inner == size:
        return array
    frame = np.zeros((*size, 3), np.uint8)
    top, left = (size.height - inner.height) // 2, (size.width - inner.width) // 2
    frame[top : top + inner.height, left : left + inner.width] = array
    return frame


def _open(path: Path, threads: int) -> tuple[Any, Any]:
    try:
        container = av.open(str(path))
    except (av.error.FFmpegError, OSError) as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    if not container.streams.video:
        container.close()
        raise _unreadable(path, "a file without a video stream")
    stream = container.streams.video[0]
    if stream.codec_context is None:
        container.close()
        raise _unreadable(path, "a codec that this PyAV has no decoder for")
    context = stream.codec_context
    context.thread_count = threads
    # Stop at the first broken frame: by default decoders paint over it and go on.
    context.options = {"err_detect": "explode"}
    return container, stream


def _unreadable(path: Path, got: str) -> DataError:
    return DataError(
        four_parts(
            f"opening the video {path}",
            "it must be a whole file that PyAV can decode",
            got,
            "Copy or download the file again, or re-encode it as h264.",
        )
    )


def bad_frames(path: Path, bad: BadRun) -> DataError:
    """Returns the error for frames of a file that can't be decoded."""
    return DataError(
        four_parts(
            f"decoding the video {path}",
            "every frame of a used camera must be decodable",
            f"frames {bad.first} to {bad.last} that are not ({bad.reason})",
            "Restore the file, or set data.skip_corrupt=true to leave such frames out.",
        )
    )


def library_version() -> str:
    """Returns the versions of the decoders and the scaler, which decide the pixels."""
    parts = ("libavcodec", "libswscale")
    return " ".join(".".join(map(str, av.library_versions[part])) for part in parts)


def decode_image(data: bytes, size: FrameSize | None = None) -> Frame:
    """Returns an encoded still image (PNG, JPEG) as RGB, scaled to `size` where given."""
    try:
        with av.open(io.BytesIO(data)) as container:
            frame = next(container.decode(video=0))
            own = FrameSize(frame.height, frame.width)
            return _framed(av.video.reformatter.VideoReformatter(), frame, size or own)
    except (av.error.FFmpegError, StopIteration) as error:
        raise DataError(
            four_parts(
                "decoding a still image",
                "it must be a whole PNG or JPEG",
                f"{len(data)} bytes that are not ({error})",
                "Restore the file that holds it.",
            )
        ) from error


def encode_image(frame_HWC: Frame) -> bytes:
    """Returns a frame as PNG."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="image2pipe") as container:
        stream = container.add_stream("png", rate=1)
        stream.height, stream.width = frame_HWC.shape[:2]
        stream.pix_fmt = "rgb24"
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame_HWC), format="rgb24")
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return buffer.getvalue()


def write_video(
    path: Path,
    frames: Sequence[Frame] | NDArray[np.uint8],
    fps: float,
    *,
    codec: str = "libx264",
    group_frames: int = 30,
    times_s: Sequence[float] | None = None,
) -> None:
    """Writes frames as a video, at a fixed rate or at the given times.

    Args:
        path: the file to write; its suffix picks the container.
        frames: RGB frames of one size.
        fps: frames a second; also the clock's base where times are given.
        codec: encoder by its FFmpeg name.
        group_frames: distance of the keyframes.
        times_s: when each frame is shown; ascending.
    """
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=Fraction(fps).limit_denominator(1000))
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = group_frames
        stream.codec_context.thread_count = 1
        stream.codec_context.time_base = Fraction(1, 10_000)
        for index, frame_HWC in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame_HWC), format="rgb24")
            shown_s = index / fps if times_s is None else times_s[index]
            frame.pts = round(shown_s * 10_000)
            frame.time_base = Fraction(1, 10_000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
