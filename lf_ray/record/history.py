"""What a journal says, typed: the history of one sweep.

Reading only. Search resumes from it, analysis draws its conclusions from it, MLflow is rebuilt
from it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lf_ray.errors import RecordError, four_parts
from lf_ray.protocol import Knobs, KnobValue, Purpose, TrialRecord, TrialRequest
from lf_ray.record.events import JournalEvent, parse_events


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepHeader:
    """What a sweep was asked: the payload of its first event.

    Attributes:
        config: the composed settings as plain JSON values.
        space: what varies, by knob.
        machine: device kind, GPU names, ranks, cores ... by name.
        versions: of lf-ray (commit) and of the libraries.
    """

    id: str
    name: str
    config: Mapping[str, Any]
    space: Mapping[str, tuple[KnobValue, ...]]
    space_hash: str
    baseline_knobs: Knobs
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    data_id: str
    seed: int
    wall_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SuggestionRound:
    """Suggestions that were drawn at once."""

    index: int
    suggestions: tuple[Knobs, ...]
    sampler_seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadPoint:
    """A suggestion that changes nothing effective against a point that was measured."""

    knobs: Knobs
    same_as: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepEnd:
    """Why a sweep ended."""

    reason: str
    exit_code: int
    wall_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepHistory:
    """Everything a journal says.

    Attributes:
        started: every request that was sent, in order, replicates and slice visits included.
        records: every request that came back, in order.
        ended: None while it runs, and after a kill.
        torn_bytes: what was left out at the end of the file.
    """

    header: SweepHeader
    events: tuple[JournalEvent, ...]
    rounds: tuple[SuggestionRound, ...]
    started: tuple[TrialRequest, ...]
    records: tuple[TrialRecord, ...]
    dead: tuple[DeadPoint, ...]
    notes: tuple[str, ...]
    stages: tuple[Mapping[str, Any], ...]
    ended: SweepEnd | None
    torn_bytes: int = 0

    @property
    def unfinished(self) -> tuple[TrialRequest, ...]:
        """Returns the requests that were sent and of which nothing came back."""
        done = {record.request.id for record in self.records}
        return tuple(request for request in self.started if request.id not in done)

    @property
    def num_trials(self) -> int:
        """Returns the started trials, each once; replicates and slice visits are none."""
        purposes = (Purpose.BASELINE, Purpose.SEARCH)
        return len({r.id for r in self.started if r.purpose in purposes and not r.replicate_of})


def read_journal(path: Path) -> SweepHistory:
    """Returns the history in a journal; a torn last line is left out.

    Raises:
        RecordError: there is no such file, it holds no sweep, or a line of it is damaged.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RecordError(
            four_parts(
                f"reading the journal {path}",
                "a sweep's result folder holds journal.jsonl",
                str(error),
                "Give the journal.jsonl of a result folder (<output.dir>/<sweep>/<id>/).",
            )
        ) from error
    events, whole_bytes = parse_events(content, path)
    return history_of(events, path, torn_bytes=len(content) - whole_bytes)


def history_of(events: Iterable[JournalEvent], path: Path, *, torn_bytes: int = 0) -> SweepHistory:
    """Returns the events as one typed history; `path` is for messages.

    Raises:
        RecordError: there is no sweep event, or a payload has other fields or types.
    """
    events = tuple(events)
    by_kind: dict[str, list[Any]] = {}
    for event in events:
        by_kind.setdefault(event.kind, []).append(_typed(event, path))
    headers, ends = by_kind.get("sweep", []), by_kind.get("ended", [])
    if not headers:
        raise RecordError(
            four_parts(
                f"reading the journal {path}",
                "it begins with the sweep event",
                f"{len(events)} events without one",
                "Give the journal of a sweep that got as far as starting.",
            )
        )
    resumed = ends and events[-1].kind != "ended"
    return SweepHistory(
        header=headers[0],
        events=events,
        rounds=tuple(by_kind.get("round", [])),
        started=tuple(
            TrialRequest.from_json(e.data["request"]) for e in events if e.kind in _STARTS
        ),
        records=tuple(by_kind.get("finished", [])),
        dead=tuple(by_kind.get("dead", [])),
        notes=tuple(by_kind.get("note", [])),
        stages=tuple(by_kind.get("stage", [])),
        ended=ends[-1] if ends and not resumed else None,
        torn_bytes=torn_bytes,
    )


_STARTS = ("started", "replicate")


def _typed(event: JournalEvent, path: Path) -> Any:
    try:
        return _READERS[event.kind](event)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(
            four_parts(
                f"reading {path}:{event.line}",
                f"a {event.kind} event has the fields of this version",
                f"{type(error).__name__}: {error}",
                "Read it with the version of lf-ray that wrote it.",
            )
        ) from error


def _header(event: JournalEvent) -> SweepHeader:
    data = event.data
    return SweepHeader(
        id=data["id"],
        name=data["name"],
        config=data["config"],
        space={knob: tuple(values) for knob, values in data["space"].items()},
        space_hash=data["space_hash"],
        baseline_knobs=data["baseline_knobs"],
        machine=data["machine"],
        versions=data["versions"],
        data_id=data["data_id"],
        seed=data["seed"],
        wall_s=event.wall_s,
    )


_READERS: dict[str, Callable[[JournalEvent], Any]] = {
    "sweep": _header,
    "round": lambda e: SuggestionRound(
        index=e.data["index"],
        suggestions=tuple(e.data["suggestions"]),
        sampler_seed=e.data["sampler_seed"],
    ),
    "started": lambda e: TrialRequest.from_json(e.data["request"]),
    "replicate": lambda e: TrialRequest.from_json(e.data["request"]),
    "finished": lambda e: TrialRecord.from_json(e.data["record"]),
    "dead": lambda e: DeadPoint(
        knobs=e.data["knobs"], same_as=e.data["same_as"], reason=e.data["reason"]
    ),
    "note": lambda e: str(e.data.get("text", "")),
    "stage": lambda e: e.data,
    "ended": lambda e: SweepEnd(
        reason=e.data["reason"], exit_code=e.data["exit_code"], wall_s=e.wall_s
    ),
}
