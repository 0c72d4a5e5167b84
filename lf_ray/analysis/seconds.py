"""What the seconds of a sweep went to.

Pure. Wall time from the first event to the last, split into classes that add up to it; the time
between an interruption and a resume is left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lf_ray.protocol import TrialRecord, Wire
from lf_ray.record.events import JournalEvent
from lf_ray.record.history import SweepHistory


@dataclass(frozen=True, kw_only=True, slots=True)
class Seconds(Wire):
    """Wall seconds by class.

    Attributes:
        measured: steady steps that count.
        warmup: steps before the steady state, gate steps among them.
        startup: until the first request reaches a group, and starting groups.
        between: preparing, reference runs, capture, resets, everything else of a visit.
        searcher: between one result and the next request: thinking and orchestration.
    """

    measured: float
    warmup: float
    startup: float
    between: float
    searcher: float
    total: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One request on the time line, in seconds from the sweep's start.

    Attributes:
        parts_s: what it went to, in order; begins at `start_s`. `start` is what the first request
            of a process waited for Ray.
    """

    id: str
    start_s: float
    end_s: float
    parts_s: dict[str, float]
    outcome: str


def seconds_of(history: SweepHistory) -> Seconds:
    """Returns the ledger of a sweep, finished or not."""
    total, idle, before = _walk(history.events)
    busy = spans_of(history)
    costs = _sum_costs(history.records)
    lived = sum(span.end_s - span.start_s for span in busy)
    at_once = max(1.0, lived / max(total - idle - before, 1e-9)) if busy else 1.0
    measured, warmup = costs["measured"] / at_once, costs["warmup"] / at_once
    waited_s = sum(span.parts_s.get("start", 0.0) for span in busy)
    startup = before + waited_s + costs["restart"] / at_once
    between = max(0.0, total - measured - warmup - startup - idle)
    return Seconds(
        measured=measured,
        warmup=warmup,
        startup=startup,
        between=between,
        searcher=idle,
        total=total,
    )


def spans_of(history: SweepHistory) -> list[Span]:
    """Returns every finished request on one line; pauses before a resume are cut out."""
    spans: list[Span] = []
    open_s: dict[str, float] = {}
    first: tuple[str, float] | None = None  # of this process: id and when it was sent
    for event, at_s in _dated(history.events):
        if event.kind in ("started", "replicate"):
            open_s[event.data["request"]["id"]] = at_s
            first = first or (event.data["request"]["id"], event.wall_s)
        elif _resumes(event):
            first = None
        elif event.kind == "finished":
            record = event.data["record"]
            name = record["request"]["id"]
            start_s = open_s.pop(name, at_s)
            sent_s = first[1] if first and first[0] == name else None
            spans.append(
                Span(
                    id=name,
                    start_s=start_s,
                    end_s=at_s,
                    parts_s=_parts(record, at_s - start_s, sent_s),
                    outcome=record["outcome"]["kind"],
                )
            )
    return spans


_PART_ORDER = (
    "restart",
    "reset",
    "prepare",
    "compile",
    "reference",
    "capture",
    "warmup",
    "measured",
)


def _parts(record: dict[str, Any], length_s: float, sent_s: float | None) -> dict[str, float]:
    costs_s = record["outcome"]["costs_s"]
    names = [*_PART_ORDER, *sorted(set(costs_s) - set(_PART_ORDER))]
    parts = {name: float(costs_s[name]) for name in names if costs_s.get(name)}
    rest = max(0.0, length_s - sum(parts.values()))
    waited_s = 0.0
    if sent_s is not None:
        waited_s = min(rest, max(0.0, record["clock_s"].get("requested", sent_s) - sent_s))
    before = {"start": waited_s, "other": rest - waited_s}
    return {name: value for name, value in before.items() if value > 0} | parts


def _dated(events: Iterable[JournalEvent]) -> Iterable[tuple[JournalEvent, float]]:
    """Yields each event with the seconds since the sweep's start, pauses left out."""
    at_s, last_s = 0.0, None
    for event in events:
        if last_s is not None and not _resumes(event):
            at_s += max(0.0, event.wall_s - last_s)
        last_s = event.wall_s
        yield event, at_s


def _resumes(event: JournalEvent) -> bool:
    return event.kind == "note" and bool(event.data.get("resumed"))


def _walk(events: Iterable[JournalEvent]) -> tuple[float, float, float]:
    """Returns total seconds, those with no request under way, and those before the first."""
    open_ids: set[str] = set()
    idle, before, last_s, started = 0.0, 0.0, 0.0, False
    for event, at_s in _dated(events):
        if not started:
            before = at_s
        elif not open_ids:
            idle += at_s - last_s
        if event.kind in ("started", "replicate"):
            started = True
            open_ids.add(event.data["request"]["id"])
        elif event.kind == "finished":
            open_ids.discard(event.data["record"]["request"]["id"])
        elif _resumes(event):
            open_ids.clear()
        last_s = at_s
    return last_s, idle, before


def _sum_costs(records: Iterable[TrialRecord]) -> dict[str, float]:
    total = {"measured": 0.0, "warmup": 0.0, "restart": 0.0}
    for record in records:
        for name in total:
            total[name] += record.outcome.costs_s.get(name, 0.0)
    return total
