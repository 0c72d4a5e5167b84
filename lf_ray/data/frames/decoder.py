"""Decodes frames of episodes: a few open files, one seek for each run of frames."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lf_ray.data.frames.timeline import NO_FRAME, decode_runs, match_rows, span_frames
from lf_ray.data.lerobot.meta import VideoSpan
from lf_ray.data.lerobot.tables import read_objects
from lf_ray.data.video import Frame, FrameSize, VideoReader, decode_image

_MAX_OPEN_FILES = 16


@dataclass(frozen=True)
class Footage:
    """One camera's pictures of one episode.

    Attributes:
        span: the video, or the parquet file whose column `image_column` holds the pictures.
        row_times_s: the time of each row of the episode.
        frame_s: seconds between two rows.
        first_row: of the episode in the parquet file, for pictures.
    """

    span: VideoSpan
    row_times_s: NDArray[np.float64]
    frame_s: float
    image_column: str | None = None
    first_row: int = 0


@dataclass(frozen=True)
class BadFrame:
    """A picture that could not be had."""

    path: Path
    frame: int
    reason: str

    def __str__(self) -> str:
        return f"frame {self.frame} of {self.path}: {self.reason}"


class FrameDecoder:
    """Decodes rows of episodes; for use by one thread.

    Attributes:
        bad: rows that could not be had, by row, of the last request.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._open: OrderedDict[Path, VideoReader] = OrderedDict()
        self._images: tuple[tuple[Path, str], list[bytes]] | None = None
        self.bad: dict[int, BadFrame] = {}

    def frames(
        self, footage: Footage, rows: Sequence[int], size: FrameSize, keep_passed: bool
    ) -> Iterator[tuple[int, Frame]]:
        """Yields (row of the episode, frame) for the wanted rows, in no certain order.

        Args:
            footage: where the pictures are.
            rows: wanted rows of the episode.
            size: that every frame is brought to.
            keep_passed: also yield rows that had to be decoded on the way.
        """
        self.bad = {}
        if footage.image_column is not None:
            yield from self._still_images(footage, rows, size)
            return
        reader = self._reader(footage.span.path)
        first, end = span_frames(
            reader.times_s, footage.span.from_s, footage.span.to_s, footage.frame_s
        )
        frame_of_row = match_rows(footage.row_times_s, reader.times_s[first:end], footage.frame_s)
        row_of_frame = {
            first + frame: row for row, frame in enumerate(frame_of_row.tolist()) if frame >= 0
        }
        wanted = self._wanted(footage, rows, frame_of_row, first)
        bad_before = len(reader.bad)
        keys = np.array(reader.keys, np.int64)
        only = None if keep_passed else set(wanted.tolist())
        for run_first, run_last in decode_runs(wanted, keys):
            for index, frame in reader.decode(run_first, run_last, size, only):
                row = row_of_frame.get(index)
                if row is not None:
                    yield row, frame
        for run in reader.bad[bad_before:]:
            for index in range(run.first, run.last + 1):
                if index in row_of_frame:
                    self.bad[row_of_frame[index]] = BadFrame(footage.span.path, index, run.reason)

    def _wanted(
        self, footage: Footage, rows: Sequence[int], frame_of_row: NDArray[np.int64], first: int
    ) -> NDArray[np.int64]:
        frames = []
        for row in sorted(rows):
            frame = int(frame_of_row[row])
            if frame == NO_FRAME:
                reason = f"no frame for the row at {footage.row_times_s[row]:.3f} s"
                self.bad[row] = BadFrame(footage.span.path, row, reason)
            else:
                frames.append(first + frame)
        return np.array(sorted(frames), np.int64)

    def _reader(self, path: Path) -> VideoReader:
        reader = self._open.pop(path, None) or VideoReader(path, self._threads)
        self._open[path] = reader
        if len(self._open) > _MAX_OPEN_FILES:
            self._open.popitem(last=False)[1].close()
        return reader

    def _still_images(
        self, footage: Footage, rows: Sequence[int], size: FrameSize
    ) -> Iterator[tuple[int, Frame]]:
        assert footage.image_column is not None
        key = (footage.span.path, footage.image_column)
        if self._images is None or self._images[0] != key:
            values = read_objects(footage.span.path, [footage.image_column])[footage.image_column]
            self._images = key, [_image_bytes(value, footage.span.path) for value in values]
        for row in rows:
            yield row, decode_image(self._images[1][footage.first_row + row], size)

    def close(self) -> None:
        """Closes all files."""
        for reader in self._open.values():
            reader.close()
        self._open.clear()


def _image_bytes(value: object, table: Path) -> bytes:
    if isinstance(value, dict):
        if value.get("bytes"):
            return bytes(value["bytes"])
        return (table.parent / str(value["path"])).read_bytes()
    assert isinstance(value, bytes)
    return value
