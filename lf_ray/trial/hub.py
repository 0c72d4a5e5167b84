"""What the ranks of a group and its owner tell each other: orders down, events up.

Everything runs on one event loop, so there are no locks. Messages of an older incarnation are
ignored: its ranks are told to leave.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lf_ray.clock import Clock
from lf_ray.protocol import TrialOutcome
from lf_ray.trial.faults.deadlines import Progress, Standing
from lf_ray.trial.faults.outcomes import ErrorReport

POLL_S = 1.0
"""How long a rank's question for work stays open before it is asked again."""
_STORE_POLL_S = 0.05


@dataclass(slots=True)
class Mailbox:
    """What is known of one incarnation of a group.

    Attributes:
        members: what each rank said of itself: pid, node, and a handle to end it by.
        store_port: where the first rank's store listens, 0 before it does.
        number: of the last order; `request` belongs to it.
        faults: errors told by ranks, in order of arrival.
        gone: ranks whose process was found gone, in that order.
        first_sign_s: when the first fault was told, or the first process was found gone.
    """

    members: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    progress: dict[int, Progress] = field(default_factory=dict)
    standings: dict[int, Standing] = field(default_factory=dict)
    faults: list[ErrorReport] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    first_sign_s: float | None = None
    up: set[int] = field(default_factory=set)
    store_port: int = 0
    number: int = 0
    request: Mapping[str, Any] | None = None
    records: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    probe: Mapping[str, float] = field(default_factory=dict)
    clean: int = 0
    levels: Mapping[str, float] = field(default_factory=dict)
    failed: TrialOutcome | None = None
    leave: bool = False


class Hub:
    """The part of the owner that ranks talk to."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.incarnation = 0
        self.box = Mailbox()
        self.news = asyncio.Event()
        self._orders = asyncio.Event()

    def renew(self, incarnation: int) -> None:
        """Begins a new incarnation; ranks of the old one will be told to leave."""
        self.incarnation = incarnation
        self.box = Mailbox()
        self._orders.set()

    def publish(self, request: Mapping[str, Any], pick_up_s: float) -> int:
        """Hands a request to all ranks and returns its number."""
        self.box.number += 1
        self.box.request = request
        self.box.standings.clear()
        now_s = self.clock.monotonic_s()
        for rank in self.box.members:
            self.box.progress[rank] = Progress(phase="pick-up", limit_s=pick_up_s, since_s=now_s)
        self._orders.set()
        return self.box.number

    def dismiss(self) -> None:
        """Tells all ranks to leave."""
        self.box.leave = True
        self._orders.set()

    async def next_order(self, incarnation: int, after: int) -> dict[str, Any]:
        """Answers a rank that asks for work; an empty order after `POLL_S` without any."""
        deadline_s = self.clock.monotonic_s() + POLL_S
        while True:
            if incarnation != self.incarnation or self.box.leave:
                return {"leave": True}
            if self.box.number > after:
                return {"number": self.box.number, "request": self.box.request}
            self._orders.clear()
            left_s = deadline_s - self.clock.monotonic_s()
            try:
                await asyncio.wait_for(self._orders.wait(), max(left_s, 0.0))
            except TimeoutError:
                return {}

    async def store_port(self, incarnation: int) -> int:
        """Returns the port of the first rank's store; 0 after `POLL_S` without, -1 to leave."""
        ends_s = self.clock.monotonic_s() + POLL_S
        while incarnation == self.incarnation and not self.box.leave:
            if self.box.store_port or self.clock.monotonic_s() > ends_s:
                return self.box.store_port
            await asyncio.sleep(_STORE_POLL_S)
        return -1

    async def tell(self, incarnation: int, rank: int, what: str, value: Mapping[str, Any]) -> None:
        """Takes a rank's event.

        hello: pid, node and handle; store: the port of the ranks' store; phase: what it enters;
        up: its session stands; fault: an error that others may wait on; late: where it stands past
        its limit; probe: of the link, as metrics; record: rank 0's record; clean: the session is
        restored; start_failed, reset_failed: the agreed outcome.
        """
        if incarnation != self.incarnation:
            return
        box = self.box
        if what == "phase":
            self._enter(rank, value)
        elif what == "fault":
            self._fault(value)
        elif what in ("hello", "up", "late"):
            self._of_rank(rank, what, value)
        elif what == "store":
            box.store_port = value["port"]
        elif what == "probe":
            box.probe = value
        elif what == "record":
            box.records[value["number"]] = value["record"]
        elif what == "clean":
            box.clean, box.levels = value["number"], value["levels"]
        else:
            box.failed = TrialOutcome.from_json(value)
        self.news.set()

    def _of_rank(self, rank: int, what: str, value: Mapping[str, Any]) -> None:
        if what == "hello":
            self.box.members[rank] = value
        elif what == "up":
            self.box.up.add(rank)
        else:
            self.box.standings[rank] = Standing.from_json(value)

    def _fault(self, value: Mapping[str, Any]) -> None:
        self.box.faults.append(ErrorReport.from_json(value))
        if self.box.first_sign_s is None:
            self.box.first_sign_s = self.clock.monotonic_s()

    def _enter(self, rank: int, value: Mapping[str, Any]) -> None:
        self.box.standings.pop(rank, None)
        if value["limit_s"] is None:
            self.box.progress.pop(rank, None)
            return
        self.box.progress[rank] = Progress(
            phase=value["phase"], limit_s=value["limit_s"], since_s=self.clock.monotonic_s()
        )
