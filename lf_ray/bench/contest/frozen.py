"""Frozen tables: the journals of a grid, merged, compressed, and with where they came from.

A table is a journal like any other, in one gzip file, that only holds what can be played back. Its
first event names the journals it was made of.
"""

import dataclasses
import gzip
import hashlib
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lf_ray.errors import RecordError, four_parts
from lf_ray.protocol import OutcomeKind, Purpose, TrialRecord
from lf_ray.record.events import JOURNAL_VERSION, parse_events
from lf_ray.record.history import DeadPoint, SweepHistory, history_of, read_journal
from lf_ray.record.journal import plain_json
from lf_ray.search.space import point_key

TABLES = Path(__file__).resolve().parents[1] / "tables"
SUFFIX = ".jsonl.gz"
_ALIKE = (
    ("model", "size"),
    ("model", "image_px"),
    ("cluster", "workers"),
    ("cluster", "device"),
    ("data", "source"),
    ("memory", "limit_gb"),
)


def frozen_path(name: str) -> Path:
    """Returns where the table of this name is, or would be."""
    return TABLES / f"{name}{SUFFIX}"


def frozen_names() -> list[str]:
    """Returns the tables that come with lf-ray."""
    return sorted(path.name.removesuffix(SUFFIX) for path in TABLES.glob(f"*{SUFFIX}"))


def read_table(path: Path) -> SweepHistory:
    """Returns the history in a journal, or in a frozen table.

    Raises:
        RecordError: it can't be read, or is neither.
    """
    if not path.name.endswith(SUFFIX):
        return read_journal(path)
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise RecordError(
            four_parts(
                f"reading the table {path}",
                f"a frozen table is a whole gzip file of events ({SUFFIX})",
                f"{type(error).__name__}: {error}",
                "Freeze it again: python -m lf_ray.bench grid --freeze NAME JOURNAL ...",
            )
        ) from error
    events, _ = parse_events(content, path)
    return history_of(events, path)


def freeze(paths: Sequence[Path], target: Path, batches: Sequence[int] | None = None) -> int:
    """Writes journals as one table and returns its size in bytes.

    A point that several journals measured has all its visits; the first journal's settings and
    baseline are the table's. Tables can be among `paths`, so that one grows by a later journal.
    `batches` leaves out points with another number of samples a rank.

    Raises:
        RecordError: a journal can't be read, was made with another model, memory limit or number
            of ranks, or is there twice, or the table can't be written.
    """
    histories = [read_table(path) for path in paths]
    for history in histories[1:]:
        _refuse_other(histories[0], history)
    made_of = [
        origin for path, history in zip(paths, histories) for origin in _origins(path, history)
    ]
    _refuse_twice([origin["sha256"] for origin in made_of], [origin["sweep"] for origin in made_of])
    merged = _Merged(batches)
    for history in histories:
        merged.add(history)
    header = {**histories[0].events[0].data, "made_of": made_of}
    lines = [_line("sweep", histories[0].header.wall_s, header)]
    for record in merged.records:
        wall_s = record.clock_s.get("finished", 0.0)
        kind = "replicate" if record.request.replicate_of else "started"
        lines.append(_line(kind, wall_s, {"request": record.request.to_json()}))
        lines.append(_line("finished", wall_s, {"record": record.to_json()}))
    for point in merged.dead:
        lines.append(_line("dead", 0.0, plain_json(dataclasses.asdict(point))))
    # No time of writing in it: the same journals make the same file.
    content = gzip.compress("".join(lines).encode(), 9, mtime=0)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    except OSError as error:
        raise RecordError(
            four_parts(
                f"writing the table {target}",
                "tables lie in lf-ray's own folder, which must be writable",
                str(error),
                "Freeze from a checkout of yours.",
            )
        ) from error
    return len(content)


class _Merged:
    """Records and dead points of several journals under one set of ids."""

    def __init__(self, batches: Sequence[int] | None) -> None:
        self._batches = batches
        self.records: list[TrialRecord] = []
        self._dead: dict[str, DeadPoint] = {}
        self._ids: dict[str, str] = {}
        self._num_visits: dict[str, int] = {}
        self._is_first = True

    @property
    def dead(self) -> list[DeadPoint]:
        """Returns what was known to be like another point, unless it was measured after all."""
        return [point for key, point in self._dead.items() if key not in self._ids]

    def add(self, history: SweepHistory) -> None:
        """Takes the records of a journal that can be played back."""
        new_ids: dict[str, str] = {}
        for record in history.records:
            if record.outcome.kind not in (OutcomeKind.COMPLETED, OutcomeKind.INFEASIBLE):
                continue
            if self._batches and record.request.knobs["batch.per_gpu"] not in self._batches:
                continue
            key = point_key(record.request.knobs)
            known = self._ids.get(key)
            name = known or f"t{len(self._ids):03d}"
            self._ids[key] = new_ids[record.point_id] = name
            visit = self._num_visits[name] = self._num_visits.get(name, -1) + 1
            baseline = record.request.purpose is Purpose.BASELINE and self._is_first
            request = dataclasses.replace(
                record.request,
                id=f"{name}r{visit}" if visit else name,
                replicate_of=name if visit else None,
                purpose=Purpose.REPLICATE
                if visit
                else (Purpose.BASELINE if baseline else Purpose.SEARCH),
            )
            self.records.append(dataclasses.replace(record, request=request))
        for point in history.dead:
            if point.same_as in new_ids:
                named = dataclasses.replace(point, same_as=new_ids[point.same_as])
                self._dead.setdefault(point_key(point.knobs), named)
        self._is_first = False


def _origins(path: Path, history: SweepHistory) -> list[dict[str, Any]]:
    """Returns where a journal comes from; a table that grows by more journals keeps its own."""
    header = history.header
    known: list[dict[str, Any]] | None = history.events[0].data.get("made_of")
    if known is not None:
        return known
    return [
        {
            "sweep": header.id,
            "began_wall_s": header.wall_s,
            "machine": header.machine.get("label", ""),
            "driver": header.machine.get("driver", ""),
            "versions": dict(header.versions),
            "num_records": len(history.records),
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
    ]


def _refuse_other(first: SweepHistory, other: SweepHistory) -> None:
    for group, key in _ALIKE:
        was, now = (h.header.config.get(group, {}).get(key) for h in (first, other))
        if was != now:
            raise RecordError(
                four_parts(
                    "merging journals into a table",
                    f"they are alike in {', '.join('.'.join(name) for name in _ALIKE)}",
                    f"{group}.{key} {was} in {first.header.id}, {now} in {other.header.id}",
                    "Freeze them one by one.",
                )
            )


def _refuse_twice(digests: Sequence[str], sweeps: Sequence[str]) -> None:
    twice = [name for name, item in zip(sweeps, digests) if digests.count(item) > 1]
    if twice:
        raise RecordError(
            four_parts(
                "merging journals into a table",
                "each journal is in it once, or its visits would count twice",
                f"{twice[0]} more than once",
                "Give each journal once, and none that a given table is made of.",
            )
        )


def _line(kind: str, wall_s: float, data: dict[str, Any]) -> str:
    event = {"event": kind, "v": JOURNAL_VERSION, "wall_s": wall_s, **data}
    return json.dumps(event, allow_nan=False, separators=(",", ":")) + "\n"
