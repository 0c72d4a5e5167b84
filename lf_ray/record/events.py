"""The lines of a journal as events: how bytes are told from damage."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lf_ray.errors import RecordError, four_parts

JOURNAL_VERSION = 1
EVENT_KINDS = (
    "sweep",
    "round",
    "started",
    "finished",
    "replicate",
    "dead",
    "note",
    "stage",
    "ended",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class JournalEvent:
    """One line of a journal.

    Attributes:
        kind: one of EVENT_KINDS.
        wall_s: seconds since the epoch at which it was written.
        data: the payload as plain JSON values.
        line: its number in the file, from 1.
    """

    kind: str
    wall_s: float
    data: Mapping[str, Any]
    line: int = 0


def parse_events(content: bytes, path: Path) -> tuple[list[JournalEvent], int]:
    """Returns the events of a journal's bytes and how many bytes they take.

    The last line may be torn: what is no whole JSON object there is left out of both.

    Raises:
        RecordError: a line before the last is damaged, or a line is no event of this version.
    """
    events: list[JournalEvent] = []
    end = 0
    lines = content.split(b"\n")
    last = max((number for number, line in enumerate(lines) if line.strip()), default=-1)
    for number, line in enumerate(lines[: last + 1]):
        value = _json_object(line)
        if value is None and number == last:
            return events, end
        if value is None:
            raise _damaged(path, number + 1, "a damaged line")
        events.append(_event(value, path, number + 1))
        end = min(end + len(line) + 1, len(content))
    return events, end if last == len(lines) - 1 else len(content)


def _json_object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _event(value: dict[str, Any], path: Path, line: int) -> JournalEvent:
    kind, version, wall_s = (
        value.pop("event", None),
        value.pop("v", None),
        value.pop("wall_s", None),
    )
    if version != JOURNAL_VERSION:
        raise _damaged(path, line, f"version {version!r}")
    if kind not in EVENT_KINDS or not isinstance(wall_s, int | float):
        raise _damaged(path, line, f"event {kind!r} at {wall_s!r}")
    return JournalEvent(kind=kind, wall_s=float(wall_s), data=value, line=line)


def _damaged(path: Path, line: int, got: str) -> RecordError:
    return RecordError(
        four_parts(
            f"reading the journal {path}",
            f"every line is a whole JSON event of version {JOURNAL_VERSION}",
            f"{got} in {path}:{line}",
            "Restore the file from a copy, or move the line out of it to go on without that event.",
        )
    )
