"""Frames of a data set's cameras by row, from the arenas where decoded, else from the files.

Letters: B samples, K views, H W C a frame.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lf_ray.data.files import file_hash, joined_hash, listing_hash, remembered
from lf_ray.data.frames.arena import FrameArena, FrameState
from lf_ray.data.frames.decoder import BadFrame, Footage
from lf_ray.data.frames.request import DecodeReply, DecodeRequest
from lf_ray.data.frames.room import make_room
from lf_ray.data.lerobot.dataset import LeRobotDataset, Rows
from lf_ray.data.lerobot.meta import VideoSpan
from lf_ray.data.lerobot.tables import read_objects
from lf_ray.data.video import Frame, FrameSize, VideoReader, decode_image, library_version

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

    @property
    def num_bytes(self) -> int:
        """Returns the bytes of all its frames."""
        return self.dataset.num_rows * self.size.height * self.size.width * 3

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

    def content_key(self, folder: Path) -> str:
        """Returns a hash of the files' content and of how they are decoded.

        What files of unchanged size and date hash to is remembered in the folder.
        """
        meta = self.dataset.meta
        paths = sorted({self.footage(index).span.path for index in range(len(meta.episodes))})
        kept = folder / "keys" / f"{listing_hash(paths)}.json"
        content = remembered(kept, lambda: joined_hash(file_hash(path) for path in paths))
        lengths = [str(episode.num_frames) for episode in meta.episodes]
        parts = [_FORMAT, library_version(), self.feature, str(tuple(self.size)), *lengths]
        return joined_hash([*parts, content])


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
        number: of the camera among all of a training set.
        camera: the camera.

    Attributes:
        arena: keeps decoded frames; None decodes anew each time.
    """

    def __init__(self, number: int, camera: Camera) -> None:
        self.number = number
        self.camera = camera
        self.arena: FrameArena | None = None
        self._bad: dict[int, BadFrame] = {}

    def requests(self, rows_B: Rows) -> list[DecodeRequest]:
        """Returns what has to be decoded before these rows can be read, by episode."""
        if self.arena is not None:
            rows_B = rows_B[~self.arena.is_ready(rows_B)]
        groups: dict[int, list[int]] = {}
        for row in np.unique(rows_B).tolist():
            if row not in self._bad:
                groups.setdefault(self.camera.dataset.episode_at(row), []).append(row)
        return [self._request(episode, rows) for episode, rows in groups.items()]

    def _request(self, episode: int, rows: Sequence[int]) -> DecodeRequest:
        first = int(self.camera.dataset.first_row_E[episode])
        return DecodeRequest(
            camera=self.number,
            first_row=first,
            footage=self.camera.footage(episode),
            offsets=tuple(row - first for row in rows),
            size=self.camera.size,
            place=None if self.arena is None or self.arena.is_full else self.arena.place,
        )

    def accept(self, reply: DecodeReply) -> None:
        """Remembers what could not be had, and whether the arena had no room."""
        if reply.frames and self.arena is not None:
            self.arena.turn_full()
        self._bad.update(reply.bad)

    def read(
        self, rows_B: Rows, fresh: Mapping[int, Frame], out_BHWC: NDArray[np.uint8]
    ) -> dict[int, BadFrame]:
        """Fills frames in from arena and replies; returns those that could not be had, by place."""
        if self.arena is None:
            places = list(range(len(rows_B)))
        else:
            self.arena.read(rows_B, out_BHWC)
            places = np.flatnonzero(~self.arena.is_ready(rows_B)).tolist()
        bad = {}
        for place in places:
            row = int(rows_B[place])
            if row in fresh:
                out_BHWC[place] = fresh[row]
            else:
                bad[place] = self._bad.get(row) or BadFrame(self._path(row), row, "not decoded")
        return bad

    def _path(self, row: int) -> Path:
        return self.camera.footage(self.camera.dataset.episode_at(row)).span.path

    def missing(self) -> Rows:
        """Returns the rows that the arena has not got and that are not known to be bad."""
        if self.arena is None or self.arena.is_full:
            return np.empty(0, np.int64)
        states = self.arena.states(np.arange(self.camera.dataset.num_rows))
        return np.flatnonzero(states == FrameState.EMPTY)

    def sync(self) -> None:
        """Makes what was decoded survive a crash of the machine."""
        if self.arena is not None:
            self.arena.sync()

    def is_kept_whole(self) -> bool:
        """Returns whether the arena has every frame that can be had."""
        if self.arena is None:
            return False
        states = self.arena.states(np.arange(self.camera.dataset.num_rows))
        return not np.any(states == FrameState.EMPTY)


def open_arenas(cameras: Sequence[Camera], folder: Path, max_bytes: int) -> list[FrameArena | None]:
    """Returns the arena of each camera, None where the folder can't hold one."""
    try:
        keys = [camera.content_key(folder) for camera in cameras]
        wanted = {key: camera.num_bytes for key, camera in zip(keys, cameras)}
        limits = make_room(folder, wanted, max_bytes)
    except OSError:
        return [None] * len(cameras)
    return [_open_arena(camera, folder / key, limits[key]) for key, camera in zip(keys, cameras)]


def _open_arena(camera: Camera, path: Path, max_bytes: int) -> FrameArena | None:
    try:
        return FrameArena(path, camera.dataset.num_rows, camera.size, max_bytes)
    except OSError:
        return None
