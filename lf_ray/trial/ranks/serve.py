"""The life of one worker: build the session, then serve requests until told to leave.

Waiting for work is a call to the owner, never a collective. The same loop runs in Ray's workers
and in threads of a test; it knows neither Ray nor torch.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lf_ray.clock import Clock
from lf_ray.protocol import TrialOutcome, TrialRecord, TrialRequest
from lf_ray.trial.faults.deadlines import Standing, standing
from lf_ray.trial.faults.outcomes import ErrorReport, error_report
from lf_ray.trial.ranks.contracts import Control, WorkerSession
from lf_ray.trial.visit import BLOCK_S, Bench, VisitSettings, agree, run_visit

IDLE = "idle"

Visit = Callable[[WorkerSession, Bench, TrialRequest, VisitSettings], TrialRecord]
"""Answers a request on one rank; the record is the same on all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What the owner answers to a rank that asks for work.

    Attributes:
        number: of the request within the group's life; 0 without one.
        leave: the group is being stopped.
    """

    number: int = 0
    request: Mapping[str, Any] | None = None
    leave: bool = False


class Link(Protocol):
    """A rank's line to the group's owner. Calls that only tell return at once."""

    def next_order(self, after: int) -> Order:
        """Returns the order after number `after`; an empty one when a second passed without."""
        ...

    def tell(self, what: str, value: Mapping[str, Any]) -> None:
        """Tells the owner of an event; see `Hub.tell` for their names."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeSettings:
    """What a rank is told for its whole life.

    Attributes:
        start_s: from the order to start until every rank's model stands.
        probe_s: for the look at the link before it.
        visit: what a request is answered with; picklable.
    """

    start_s: float = 300.0
    probe_s: float = 60.0
    reset_s: float = 60.0
    gate_steps: int = 3
    block_s: float = BLOCK_S
    visit: Visit = run_visit


class RankWatch:
    """Tells the owner which phase this rank enters, and where it stands if a phase takes too long.

    Silent inside a phase: the thread sleeps until the limit, so a timed block sees nothing of it.
    """

    def __init__(self, link: Link, rank: int) -> None:
        self._link = link
        self._rank = rank
        self._thread_id = threading.get_ident()
        self._changed = threading.Condition()
        self._phase = IDLE
        self._limit_s: float | None = None
        self._count = 0
        self._closed = False
        self._thread = threading.Thread(target=self._look, name="rank-watch", daemon=True)
        self._thread.start()

    def enter(self, phase: str, limit_s: float | None) -> None:
        """Begins a phase that may take `limit_s`; None waits for ever."""
        with self._changed:
            self._phase, self._limit_s = phase, limit_s
            self._count += 1
            self._changed.notify()
        self._link.tell("phase", {"phase": phase, "limit_s": limit_s})

    def fault(self, report: ErrorReport) -> None:
        """Tells of an error that other ranks may be waiting on."""
        self._link.tell("fault", report.to_json())

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(5.0)

    def _look(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                count = self._count
                self._changed.wait(self._limit_s)
                if self._closed or self._count != count:
                    continue
                late = standing(self._rank, self._phase, self._thread_id)
                self._limit_s = None
            self._tell_late(late)

    def _tell_late(self, late: Standing) -> None:
        self._link.tell("late", late.to_json())


def serve(
    link: Link,
    control: Control,
    make_session: Callable[[], WorkerSession],
    *,
    clock: Clock,
    settings: ServeSettings,
    probe: Callable[[], Mapping[str, float]] | None = None,
) -> None:
    """Serves requests on this rank until the owner says leave, or the group can't be trusted.

    `probe` looks at the link before anything is built; it raises where the link is no good.
    """
    watch = RankWatch(link, control.rank)
    bench = Bench(control=control, clock=clock, watch=watch)
    try:
        if probe is not None:
            reading = agree(bench, "probe", settings.probe_s, probe, communicated=True)
            if isinstance(reading, TrialOutcome):
                if control.rank == 0:
                    link.tell("start_failed", reading.to_json())
                return
            if control.rank == 0:
                link.tell("probe", reading)
        session = agree(bench, "start", settings.start_s, make_session, communicated=True)
        if isinstance(session, TrialOutcome):
            if control.rank == 0:
                link.tell("start_failed", session.to_json())
            return
        try:
            link.tell("up", {})
            _Rank(link, bench, session, settings).serve()
        finally:
            watch.enter("close", settings.reset_s)
            session.close()
    except Exception as error:
        # Not an outcome of a trial: the control line itself is gone.
        report = error_report(error, rank=control.rank, phase="serve", wall_s=clock.wall_s())
        watch.fault(report)
        raise
    finally:
        watch.close()


@dataclass(slots=True)
class _Rank:
    link: Link
    bench: Bench
    session: WorkerSession
    settings: ServeSettings
    told_gradients: bool = False
    reset_s: float = 0.0

    def serve(self) -> None:
        last = 0
        while True:
            self.bench.watch.enter(IDLE, None)
            order = Order()
            while not order.leave and order.request is None:
                order = self.link.next_order(last)
            if order.request is None:
                return
            last = order.number
            if not self._visit(order.number, TrialRequest.from_json(order.request)):
                return

    def _visit(self, number: int, request: TrialRequest) -> bool:
        """Runs a request and restores the session; returns whether the group can go on."""
        visit = VisitSettings(
            gate_steps=self.settings.gate_steps,
            block_s=self.settings.block_s,
            first_of_group=not self.told_gradients,
            reset_s=self.reset_s,
        )
        record = self.settings.visit(self.session, self.bench, request, visit)
        self.told_gradients = self.told_gradients or bool(record.gradients)
        first = self.bench.control.rank == 0
        if first:
            self.link.tell("record", {"number": number, "record": record.to_json()})
        if record.outcome.group_lost:
            return False
        started_s = self.bench.clock.monotonic_s()
        levels = agree(
            self.bench, "reset", self.settings.reset_s, self.session.reset, communicated=True
        )
        self.reset_s = self.bench.clock.monotonic_s() - started_s
        if isinstance(levels, TrialOutcome):
            if first:
                self.link.tell("reset_failed", levels.to_json())
            return False
        if first:
            self.link.tell("clean", {"number": number, "levels": dict(levels)})
        return True
