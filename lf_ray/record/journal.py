"""The journal: an append-only file that is the only truth about a sweep.

One JSON object a line. A line is on the disk before `append` returns, so whatever was reported as
written survives a kill or a power cut. Lines are data: they are parsed and typed, never evaluated.
Knows nothing of MLflow, search or analysis.
"""

import fcntl
import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from lf_ray.clock import Clock
from lf_ray.errors import RecordError, four_parts
from lf_ray.protocol import Wire
from lf_ray.record.events import EVENT_KINDS, JOURNAL_VERSION, JournalEvent, parse_events
from lf_ray.record.history import SweepHistory, read_journal

__all__ = ["Journal", "JournalEvent", "SweepHistory", "plain_json", "read_journal"]

_log = logging.getLogger(__name__)


class Journal:
    """The writing end of a journal; at most one is open on a file at a time.

    Args:
        path: the file; it and its folder are made when absent, else it is continued.
        clock: dates the lines.

    Raises:
        RecordError: the file can't be opened or is open elsewhere, or a line of it is damaged.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = Path(path)
        self.cut_bytes = 0
        self._clock = clock
        self._fd = _open_for_append(self.path)
        try:
            self._continue()
        except BaseException:
            os.close(self._fd)
            raise

    def _continue(self) -> None:
        """Goes to the end of what is whole, and cuts what is not."""
        content = self.path.read_bytes()
        _, whole_bytes = parse_events(content, self.path)
        self._end = whole_bytes
        self.cut_bytes = len(content) - whole_bytes
        if self.cut_bytes:
            os.ftruncate(self._fd, whole_bytes)
            self._write_note(
                f"cut a torn last line of {self.cut_bytes} bytes, left by a write that was stopped"
            )
        elif whole_bytes and not content.endswith(b"\n"):
            self._write_all(b"\n")

    def _write_note(self, text: str) -> None:
        _log.warning("%s: %s", self.path, text)
        self.append("note", text=text)

    def append(self, kind: str, **payload: Any) -> JournalEvent:
        """Writes one event and returns it once it is on the disk.

        Args:
            kind: one of EVENT_KINDS.
            payload: JSON values, mappings, sequences, protocol values.

        Raises:
            RecordError: the disk is full or the file can't be written; earlier lines are intact.
        """
        assert kind in EVENT_KINDS, kind
        wall_s = self._clock.wall_s()
        data = {name: plain_json(value) for name, value in payload.items()}
        line = json.dumps(
            {"event": kind, "v": JOURNAL_VERSION, "wall_s": wall_s, **data},
            allow_nan=False,
            separators=(",", ":"),
        )
        self._write_all(line.encode() + b"\n")
        return JournalEvent(kind=kind, wall_s=wall_s, data=data)

    def _write_all(self, content: bytes) -> None:
        try:
            written = 0
            while written < len(content):
                written += os.pwrite(self._fd, content[written:], self._end + written)
            os.fsync(self._fd)
        except OSError as error:
            self._undo()
            raise RecordError(
                four_parts(
                    f"writing an event to {self.path}",
                    "every event is on the disk before the sweep goes on",
                    str(error),
                    "Free disk space or make the folder writable, then go on with resume=<id>;"
                    " everything written before is kept.",
                )
            ) from error
        self._end += len(content)

    def _undo(self) -> None:
        """Cuts half a line; where even that fails, the next open does it."""
        try:
            os.ftruncate(self._fd, self._end)
        except OSError:
            _log.warning("%s: half a line could not be cut off", self.path)

    def close(self) -> None:
        """Lets go of the file; may be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def plain_json(value: Any) -> Any:
    """Returns the value as JSON can hold it; non-finite floats become nan, inf or -inf words."""
    if isinstance(value, Wire):
        return value.to_json()
    if isinstance(value, Mapping):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _open_for_append(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RecordError(
            four_parts(
                f"opening the journal {path}",
                "the result folder must be writable",
                str(error),
                "Set output.dir to a folder that you can write.",
            )
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _sync_folder(path.parent)
    except OSError as error:
        os.close(fd)
        raise RecordError(
            four_parts(
                f"opening the journal {path}",
                "one process writes a journal at a time",
                f"{error}: it is open in another process",
                "Let the running sweep end, or end it, before resuming it.",
            )
        ) from error
    return fd


def _sync_folder(folder: Path) -> None:
    """Makes the file's name as durable as its lines."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
