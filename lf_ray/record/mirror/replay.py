"""Updates from what is on disk: a journal's events, and the answer's files beside it."""

import json
from collections.abc import Iterable
from pathlib import Path

from lf_ray.protocol import TrialRecord, TrialRequest
from lf_ray.record.events import JournalEvent
from lf_ray.record.mirror.runs import Mirror
from lf_ray.record.mirror.updates import RunUpdate

JOURNAL_NAME = "journal.jsonl"
RESULT_FILES = (
    JOURNAL_NAME,
    "report.html",
    "report.md",
    "summary.json",
    "best.yaml",
    "knee.yaml",
    "fastest.yaml",
    "goodput.yaml",
)


def updates_of(mirror: Mirror, events: Iterable[JournalEvent]) -> Iterable[RunUpdate]:
    """Yields what the events add, as if they came one by one."""
    for event in events:
        if event.kind == "sweep":
            yield mirror.begin(event.data, event.wall_s)
        elif event.kind in ("started", "replicate"):
            yield mirror.started(TrialRequest.from_json(event.data["request"]), event.wall_s)
        elif event.kind == "finished":
            yield from mirror.finished(TrialRecord.from_json(event.data["record"]), event.wall_s)
        elif event.kind == "ended":
            reason, code = str(event.data["reason"]), int(event.data["exit_code"])
            yield from mirror.ended(reason, code, event.wall_s)


def result_updates(mirror: Mirror, folder: Path, at_s: float) -> list[RunUpdate]:
    """Returns the answer as its files say it; nothing before it was written."""
    try:
        summary = json.loads((folder / "summary.json").read_text())
    except (OSError, ValueError):
        return []
    files = [folder / name for name in RESULT_FILES] + sorted((folder / "figures").glob("*.svg"))
    paths = [str(path) for path in files if path.is_file()]
    return [mirror.result(summary, paths, at_s), *mirror.checked(summary)]
