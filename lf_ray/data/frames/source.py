"""Frames of a data set's cameras by row, from the arenas where decoded, else from the files.

Letters: B samples, K views, H W C a frame.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lf_ray.data.files import file_hash, joined_hash
from lf_ray.data.frames.arena import FrameArena, FrameState
from lf_ray.data.frames.decoder import BadFrame, Footage, FrameDecoder
from lf_ray.data.lerobot.dataset import LeRobotDataset, Rows
from lf_ray.data.lerobot.meta import VideoSpan
from lf_ray.data.lerobot.tables import read_objects
from lf_ray.data.video import FrameSize, VideoReader, decode_image, library_version
from lf_ray.errors import DataError

_FORMAT = "1"


class Camera:
    """One view of a data set: where its pictures are, and how large they are made.

    Args:
        dataset: the set.
        feature: the camera's name in info.json.
        size: that every frame is brought to.
    """

    def __init__(self, dataset: LeRobotDataset, feature: str, size: FrameSize) -> None:
        self.dataset = dataset
        self.feature = feature
        self.size = size
        self._is_video = dataset.meta.info.features[feature].dtype == "video"

    def footage(self, episode: int) -> Footage:
        """Returns where an episode's pictures are; episodes by position in the meta folder."""
        meta = self.dataset.meta
        entry = meta.episodes[episode]
        first, end = self.dataset.first_row_E[episode : episode + 2]
        times_s = self.dataset.columns.time_s[first:end]
        frame_s = 1.0 / meta.info.fps
        if self._is_video:
            return Footage(meta.video_span(entry, self.feature), times_s, frame_s)
        span = VideoSpan(meta.table_path(entry))
        return Footage(span, times_s, frame_s, self.feature, entry.first_row)

    def content_key(self) -> str:
        """Returns a hash of the files' content and of how they are decoded."""
        meta = self.dataset.meta
        paths = {self.footage(index).span.path for index in range(len(meta.episodes))}
        lengths = [str(episode.num_frames) for episode in meta.episodes]
        parts = [_FORMAT, library_version(), self.feature, str(tuple(self.size)), *lengths]
        return joined_hash([*parts, *(file_hash(path) for path in sorted(paths))])


def native_size(dataset: LeRobotDataset, feature: str) -> FrameSize:
    """Returns the size of a camera's frames, from its first file rather than from info.json."""
    meta = dataset.meta
    episode = meta.episodes[0]
    if meta.info.features[feature].dtype == "video":
        with VideoReader(meta.video_span(episode, feature).path) as reader:
            return reader.size
    values = read_objects(meta.table_path(episode), [feature])[feature]
    height, width, _ = decode_image(bytes(values[0]["bytes"])).shape
    return FrameSize(height, width)


def frame_size(native: FrameSize, shortest_edge_px: int) -> FrameSize:
    """Returns the size that frames are kept at: no larger than the model's first resize."""
    scale = min(shortest_edge_px / min(native), 1.0)
    return FrameSize(round(native.height * scale), round(native.width * scale))


class FrameSource:
    """Frames of one camera.

    Args:
        camera: the camera.
        arena: keeps decoded frames; None decodes anew each time.
    """

    def __init__(self, camera: Camera, arena: FrameArena | None) -> None:
        self.camera = camera
        self.arena = arena

    def read(
        self, rows_B: Rows, out_BHWC: NDArray[np.uint8], decoder: FrameDecoder
    ) -> dict[int, BadFrame]:
        """Fills `out_BHWC` and returns those that could not be had, by position."""
        if self.arena is None:
            positions = np.arange(len(rows_B))
        else:
            positions = np.flatnonzero(~self.arena.is_ready(rows_B))
        fresh: dict[int, NDArray[np.uint8]] = {}
        bad: dict[int, BadFrame] = {}
        for episode, rows in self._by_episode(rows_B[positions]).items():
            self._decode(episode, rows, decoder, fresh, bad)
        if self.arena is not None:
            self.arena.read(rows_B, out_BHWC)
        for position in positions.tolist():
            frame = fresh.get(int(rows_B[position]))
            if frame is not None:
                out_BHWC[position] = frame
        return {position: bad[int(row)] for position, row in enumerate(rows_B) if int(row) in bad}

    def _by_episode(self, rows: Rows) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        for row in dict.fromkeys(rows.tolist()):
            groups.setdefault(self.camera.dataset.episode_at(row), []).append(row)
        return groups

    def _decode(
        self,
        episode: int,
        rows: Sequence[int],
        decoder: FrameDecoder,
        fresh: dict[int, NDArray[np.uint8]],
        bad: dict[int, BadFrame],
    ) -> None:
        """Decodes rows of an episode; what an arena has room for is kept, passed frames too."""
        first = int(self.camera.dataset.first_row_E[episode])
        footage = self.camera.footage(episode)
        wanted = {row - first for row in rows}
        keep = self.arena is not None and not self.arena.is_full
        try:
            for offset, frame in decoder.frames(footage, sorted(wanted), self.camera.size, keep):
                if offset in wanted:
                    fresh[first + offset] = frame
                if keep and self.arena is not None:
                    self.arena.write(first + offset, frame)
            gone = decoder.bad
        except DataError as error:
            gone = {offset: BadFrame(footage.span.path, offset, str(error)) for offset in wanted}
        for offset, reason in gone.items():
            bad[first + offset] = reason
            if self.arena is not None:
                self.arena.mark_bad(first + offset)

    def missing(self) -> Rows:
        """Returns the rows that the arena has not got and that are not known to be bad."""
        if self.arena is None or self.arena.is_full:
            return np.empty(0, np.int64)
        states = self.arena.states(np.arange(self.camera.dataset.num_rows))
        return np.flatnonzero(states == FrameState.EMPTY)

    def fill(self, rows: Rows, decoder: FrameDecoder) -> None:
        """Decodes rows of one episode into the arena."""
        for episode, wanted in self._by_episode(rows).items():
            self._decode(episode, wanted, decoder, {}, {})

    def sync(self) -> None:
        """Makes what was decoded survive a crash of the machine."""
        if self.arena is not None:
            self.arena.sync()


def open_arena(camera: Camera, folder: Path, max_bytes: int) -> FrameArena | None:
    """Returns the arena of a camera, None where the folder can't hold one."""
    try:
        return FrameArena(
            folder / camera.content_key(), camera.dataset.num_rows, camera.size, max_bytes
        )
    except OSError:
        return None
