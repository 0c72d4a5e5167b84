"""The one path of a sweep's events: decision -> journal -> planner's books -> observers.

Whoever runs trials (Tune, or a plain loop in this process) asks here for the next request and
hands records back. Nothing is told to anybody before it is in the journal.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lf_ray.clock import Clock
from lf_ray.errors import RecordError
from lf_ray.protocol import Interval, Knobs, TrialRecord, TrialRequest
from lf_ray.record.events import JournalEvent
from lf_ray.record.journal import plain_json
from lf_ray.search.plan.audit import audited, failed_record
from lf_ray.search.plan.decisions import Decision, Line, Request, Stop, Wait
from lf_ray.search.plan.state import SweepState
from lf_ray.search.plan.visits import is_trial, throughput
from lf_ray.search.planner import Outlook, exit_code

_log = logging.getLogger(__name__)

INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Standing:
    """What an observer may show beside an event.

    Attributes:
        best_id: of the point that would be called best now.
        counts: trials by outcome.
    """

    outlook: Outlook
    best_id: str | None
    best_knobs: Knobs | None
    best_samples_per_s: Interval | None
    baseline_samples_per_s: Interval | None
    counts: Mapping[str, int]


class Observer(Protocol):
    """Is told what happens, after the journal. An observer that raises is told nothing more."""

    def on_sweep(self, header: Mapping[str, Any], events: Sequence[JournalEvent]) -> None:
        """The sweep begins, or is resumed after `events`."""
        ...

    def on_started(self, request: TrialRequest, reason: str, standing: Standing) -> None:
        """A request goes to a group."""
        ...

    def on_finished(self, record: TrialRecord, standing: Standing) -> None:
        """A record came back."""
        ...

    def on_note(self, text: str) -> None:
        """Something worth a line: a phase ends, a suggestion is dead, an observer is lost."""
        ...

    def on_ended(self, reason: str, exit_code: int, standing: Standing) -> None:
        """The sweep is over; nothing follows."""
        ...


class SweepPlanner(Protocol):
    """Says what comes next: `lf_ray.search.planner.Planner`, or one of several stages."""

    @property
    def state(self) -> SweepState:
        """Returns the books that show where the sweep stands."""
        ...

    def observe(self, event: JournalEvent) -> None:
        """Takes an event of the journal in."""
        ...

    def decide(self, now_wall_s: float) -> Decision:
        """Returns what to do next."""
        ...

    def outlook(self, now_wall_s: float) -> Outlook:
        """Returns where the sweep stands, for people."""
        ...


class EventLog(Protocol):
    """Where events are kept; `lf_ray.record.journal.Journal` is the real one."""

    def append(self, kind: str, **payload: Any) -> JournalEvent:
        """Keeps one event and returns it once it is safe."""
        ...


class MemoryLog:
    """A journal in memory, for replay and tests: same events, no file."""

    def __init__(self, clock: Clock) -> None:
        self.events: list[JournalEvent] = []
        self._clock = clock

    def append(self, kind: str, **payload: Any) -> JournalEvent:
        """Keeps one event as plain JSON values."""
        data = {name: plain_json(value) for name, value in payload.items()}
        event = JournalEvent(kind=kind, wall_s=self._clock.wall_s(), data=data)
        self.events.append(event)
        return event


class Conductor:
    """Carries out what the planner decides.

    Attributes:
        stop: why the sweep is over, once it is.
        broken: why no more events can be kept, once that is so.

    Args:
        planner: without events yet.
        log: where events are kept.
        observers: told in this order, after the log.
        clock: dates decisions.
    """

    def __init__(
        self, planner: SweepPlanner, log: EventLog, observers: Sequence[Observer], clock: Clock
    ) -> None:
        self.planner = planner
        self._log = log
        self._observers = list(observers)
        self._clock = clock
        self.stop: Stop | None = None
        self.broken: RecordError | None = None

    def begin(self, header: Mapping[str, Any], events: Sequence[JournalEvent] = ()) -> None:
        """Starts a sweep, or goes on after the events of an interrupted one."""
        for event in events:
            self.planner.observe(event)
        if events:
            self._keep("note", text="resumed", resumed=True)
        else:
            self._keep("sweep", **header)
        self._tell(lambda observer: observer.on_sweep(header, events))

    def next(self) -> Request | Wait | Stop:
        """Returns what to do now. A request counts as started when this returns."""
        if self.stop is not None:
            return self.stop
        while True:
            decision = self.planner.decide(self._clock.wall_s())
            if isinstance(decision, Line):
                self._write(decision)
            elif isinstance(decision, Request):
                self._start(decision)
                return decision
            elif isinstance(decision, Stop):
                self._end(decision)
                return decision
            else:
                return decision

    def finish(self, record: TrialRecord) -> TrialRecord:
        """Takes a record back, and returns it as it was kept."""
        kept = audited(record)
        self._keep("finished", record=kept)
        standing = self.standing()
        self._tell(lambda observer: observer.on_finished(kept, standing))
        return kept

    def fail(self, request: TrialRequest, reason: str, error_kind: str) -> None:
        """Takes note that a request came to nothing."""
        self.finish(failed_record(request, reason, error_kind))

    def give_up(self, reason: str) -> None:
        """Ends the sweep because no further trial could run."""
        if self.stop is None:
            self._end(Stop(reason, exit_code(self.planner.state)))

    def interrupt(self, reason: str) -> None:
        """Ends the sweep early; requests under way are run again when it is resumed."""
        if self.stop is None:
            self._end(Stop(reason, INTERRUPTED))

    def note(self, text: str) -> None:
        """Keeps a line for people."""
        self._keep("note", text=text)
        self._tell(lambda observer: observer.on_note(text))

    def standing(self) -> Standing:
        """Returns where the sweep stands."""
        state = self.planner.state
        best, baseline = state.best, state.baseline
        return Standing(
            outlook=self.planner.outlook(self._clock.wall_s()),
            best_id=best.id if best else None,
            best_knobs=best.knobs if best else None,
            best_samples_per_s=throughput(best) if best else None,
            baseline_samples_per_s=baseline.throughput if baseline else None,
            counts=state.counts(),
        )

    def _keep(self, kind: str, **payload: Any) -> JournalEvent:
        try:
            event = self._log.append(kind, **payload)
        except RecordError as error:
            self._break(error)
            raise
        self.planner.observe(event)
        return event

    def _break(self, error: RecordError) -> None:
        """Ends the sweep where its events can't be kept: what is not kept has not happened."""
        if self.broken is None:
            self.broken = error
            self.stop = Stop(f"the journal can't be written: {error}", 1)
            self._tell_end(self.stop)

    def _write(self, line: Line) -> None:
        self._keep(line.kind, **line.payload)
        self._tell(lambda observer: observer.on_note(line.reason))

    def _start(self, decision: Request) -> None:
        kind = "started" if is_trial(decision.request) else "replicate"
        self._keep(kind, request=decision.request, reason=decision.reason)
        standing = self.standing()
        self._tell(lambda o: o.on_started(decision.request, decision.reason, standing))

    def _end(self, stop: Stop) -> None:
        self.stop = stop
        if self.planner.state.ended is None:
            self._keep("ended", reason=stop.reason, exit_code=stop.exit_code)
        self._tell_end(stop)

    def _tell_end(self, stop: Stop) -> None:
        standing = self.standing()
        self._tell(lambda observer: observer.on_ended(stop.reason, stop.exit_code, standing))

    def _tell(self, call: Callable[[Observer], None]) -> None:
        for observer in list(self._observers):
            try:
                call(observer)
            except Exception as error:
                # A view that breaks costs the view, not the sweep.
                self._observers.remove(observer)
                name = type(observer).__name__
                _log.exception("%s is told nothing more", name)
                if self.broken is None:
                    self.note(f"{name} is told nothing more: {type(error).__name__}: {error}")


def run_in_process(conductor: Conductor, execute: Callable[[TrialRequest], TrialRecord]) -> Stop:
    """Runs a begun sweep to its end, one request after the other, without Tune.

    Args:
        conductor: begun.
        execute: answers a request; what it raises becomes a failed record.
    """
    while True:
        decision = conductor.next()
        if isinstance(decision, Stop):
            return decision
        assert isinstance(decision, Request), decision
        try:
            record = execute(decision.request)
        except Exception as error:
            conductor.fail(decision.request, f"{type(error).__name__}: {error}", "exception")
        else:
            conductor.finish(record)


def parse_record(request: TrialRequest, data: Mapping[str, Any]) -> TrialRecord:
    """Returns the record that workers sent for a request, a failed one where it is none."""
    try:
        record = TrialRecord.from_json(data)
    except (RecordError, TypeError, ValueError) as error:
        return failed_record(request, f"unreadable record: {error}", "exception")
    if record.request.id != request.id:
        reason = f"the record of {record.request.id} came back for {request.id}"
        return failed_record(request, reason, "exception")
    return dataclasses.replace(record, request=request)
