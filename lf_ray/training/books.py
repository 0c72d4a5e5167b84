"""train.jsonl: what happened in a training, one line an event; written by rank 0, read by the rest.

A line is `{"event": ..., "step": ..., "wall_s": ...}` with more keys by event: `started`, `step`,
`saved`, `save_failed`, `exported`, `action_error`, `finish_failed` (of either), `ended`. Steps
after the last checkpoint run again when a training goes on: a `started` line takes back the steps
from its own on. A number that JSON has none for stands as its word: nan, inf, -inf. No torch.
"""

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from io import BufferedRandom
from pathlib import Path
from typing import Any

from lf_ray.clock import Clock
from lf_ray.record.journal import plain_json

BOOKS_NAME = "train.jsonl"
_log = logging.getLogger(__name__)
Line = dict[str, Any]


class Books:
    """Appends lines; half a line that a killed process left is taken away first."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        path.touch()
        self._file: BufferedRandom = path.open("r+b")
        self._file.seek(_whole_bytes(path))
        self._file.truncate()

    def write(self, event: str, step: int, **values: Any) -> None:
        """Adds one event."""
        self.write_all([(event, step, values)])

    def write_all(self, events: Iterable[tuple[str, int, Mapping[str, Any]]]) -> None:
        """Adds events in one go; they are in the file, not yet on the disk, when this returns."""
        wall_s = round(self._clock.wall_s(), 3)
        lines = [
            json.dumps(
                {"event": event, "step": step, "wall_s": wall_s, **plain_json(values)},
                allow_nan=False,
            )
            for event, step, values in events
        ]
        self._file.write("".join(f"{line}\n" for line in lines).encode())
        self._file.flush()

    def close(self) -> None:
        """Puts everything on the disk and closes the file.

        A full disk costs the last lines, not the training whose checkpoint is safe.
        """
        try:
            with self._file as file:
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            _log.exception("the last lines of %s", self._file.name)


class BooksReader:
    """Reads what was added since the last look; a line that is still being written is left."""

    def __init__(self, path: Path, from_end: bool = False) -> None:
        self._path = path
        self._offset = _whole_bytes(path) if from_end and path.exists() else 0

    def news(self) -> list[Line]:
        """Returns the new lines."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return list(_lines(whole))


def read_books(path: Path) -> list[Line]:
    """Returns all whole lines of a training, oldest first."""
    return BooksReader(path).news()


def steps_of(lines: Iterable[Line]) -> list[Line]:
    """Returns the steps that count, each once, in order."""
    steps: dict[int, Line] = {}
    for line in lines:
        if line["event"] == "started":
            steps = {step: item for step, item in steps.items() if step < line["step"]}
        elif line["event"] == "step":
            steps[line["step"]] = line
    return [steps[step] for step in sorted(steps)]


def _lines(data: bytes) -> Iterator[Line]:
    for text in data.decode(errors="replace").splitlines():
        try:
            value = json.loads(text)
        except ValueError:
            continue
        if isinstance(value, dict) and {"event", "step"} <= value.keys():
            yield value


def _whole_bytes(path: Path) -> int:
    data = path.read_bytes()
    return data.rfind(b"\n") + 1
