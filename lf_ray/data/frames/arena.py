"""Decoded frames of one camera in a sparse file, shared by all ranks and trials of a machine.

A frame has a place from the start, its row number, and one state byte. It is written by `pwrite`
(so that a full disk is an error, not a signal), marked after that, and read through a memory map.
Writers need no lock: two that decode the same frame write the same bytes, and one that is killed
leaves the frame unmarked. Marks made before the last boot count only if the frames were synced.
Letters: N frames, B samples, H W C a frame.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lf_ray.data.video import Frame, FrameSize

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class FrameState(IntEnum):
    """What is known about a frame."""

    EMPTY = 0
    WRITTEN = 1
    SYNCED = 2
    BAD = 3


@dataclass(frozen=True)
class ArenaPlace:
    """Enough to open an arena in another process."""

    path: Path
    num_frames: int
    max_bytes: int


class FrameArena:
    """The frames of one camera.

    Args:
        path: without suffix; the arena makes `path.frames`, `path.state` and `path.boot`.
        num_frames: rows of the data set.
        size: of every frame.
        max_bytes: what may be written in all; the rest stays undecoded.

    Raises:
        OSError: the folder can't be written, or has no room for the state bytes.
    """

    def __init__(self, path: Path, num_frames: int, size: FrameSize, max_bytes: int) -> None:
        self.path = path
        self.place = ArenaPlace(path, num_frames, max_bytes)
        self.size = size
        self._shape = (num_frames, size.height, size.width, 3)
        self._frame_bytes = size.height * size.width * 3
        self._max_frames = max_bytes // self._frame_bytes
        self._is_full = False
        path.parent.mkdir(parents=True, exist_ok=True)
        # Held shared as long as the arena is open, so that nobody removes it (`room`).
        self._use = _locked(path, fcntl.LOCK_SH)
        self._file = os.open(path.with_suffix(".frames"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._map(num_frames)
        except OSError:
            self.close()
            raise

    def _map(self, num_frames: int) -> None:
        with open_exclusively(self.path):
            os.ftruncate(self._file, num_frames * self._frame_bytes)
            state_path = self.path.with_suffix(".state")
            state_file = os.open(state_path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                # Reserved at once: a store through a map to a full disk kills the process.
                os.posix_fallocate(state_file, 0, num_frames)
            finally:
                os.close(state_file)
            self._states_N: NDArray[np.uint8] = np.memmap(
                state_path, np.uint8, "r+", shape=(num_frames,)
            )
            self._forget_unsynced()
        self._frames_NHWC: NDArray[np.uint8] = np.memmap(
            self.path.with_suffix(".frames"), np.uint8, "r", shape=self._shape
        )

    def _forget_unsynced(self) -> None:
        boot_path = self.path.with_suffix(".boot")
        boot = _BOOT_ID.read_text() if _BOOT_ID.exists() else ""
        if boot_path.exists() and boot_path.read_text() == boot:
            return
        self._states_N[self._states_N == FrameState.WRITTEN] = FrameState.EMPTY
        boot_path.write_text(boot)

    def states(self, rows_B: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Returns the state of each row."""
        return self._states_N[rows_B]

    def is_ready(self, rows_B: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns which rows can be read."""
        states_B = self._states_N[rows_B]
        return np.asarray((states_B == FrameState.WRITTEN) | (states_B == FrameState.SYNCED))

    def read(self, rows_B: NDArray[np.int64], out_BHWC: NDArray[np.uint8]) -> None:
        """Copies frames that are ready."""
        np.take(self._frames_NHWC, rows_B, axis=0, out=out_BHWC, mode="clip")

    def write(self, row: int, frame_HWC: Frame) -> bool:
        """Keeps a frame and returns whether there was room for it."""
        if self._is_full or not self._has_room():
            return False
        try:
            written = os.pwrite(
                self._file, np.ascontiguousarray(frame_HWC).data, row * self._frame_bytes
            )
        except OSError:
            written = 0
        if written != self._frame_bytes:
            self._is_full = True
            return False
        self._states_N[row] = FrameState.WRITTEN
        return True

    def _has_room(self) -> bool:
        if self._max_frames < self._shape[0] and self.num_ready() >= self._max_frames:
            self._is_full = True
        return not self._is_full

    def turn_full(self) -> None:
        """Stops keeping frames: another process found that there is no room."""
        self._is_full = True

    @property
    def is_full(self) -> bool:
        """Returns whether a frame was turned away."""
        return self._is_full

    def mark_bad(self, row: int) -> None:
        """Remembers that a row has no decodable frame."""
        self._states_N[row] = FrameState.BAD

    def num_ready(self) -> int:
        """Returns how many frames can be read."""
        states_N = self._states_N
        return int(np.count_nonzero(states_N)) - int(np.count_nonzero(states_N == FrameState.BAD))

    def sync(self) -> None:
        """Makes written frames survive a crash of the machine."""
        written_N = self._states_N == FrameState.WRITTEN
        if written_N.any():
            os.fdatasync(self._file)
            self._states_N[written_N] = FrameState.SYNCED

    def close(self) -> None:
        """Closes the file; the maps go when nobody uses them any more."""
        os.close(self._file)
        os.close(self._use)


def _locked(path: Path, kind: int) -> int:
    """Returns the open file whose lock says that an arena is in use."""
    use = os.open(path.with_suffix(".use"), os.O_RDWR | os.O_CREAT, 0o644)
    os.utime(use)
    fcntl.flock(use, kind)
    return use


@contextmanager
def open_exclusively(path: Path) -> Iterator[None]:
    """Lets one process at a time make or reset an arena; the lock goes when its holder dies."""
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
