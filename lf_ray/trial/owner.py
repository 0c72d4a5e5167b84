"""The owner of one worker group: takes requests, keeps the group alive, returns records.

It runs as an actor beside the workers, but knows Ray no more than torch: a launcher starts and
kills ranks, which talk to the hub. One task looks after the group: whatever happens to a rank ends
in `_look`, and a lost group is replaced at once, so that the next request finds it up.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from lf_ray.clock import Clock
from lf_ray.protocol import Knobs, OutcomeKind, TrialOutcome, TrialRecord, TrialRequest
from lf_ray.trial.faults.deadlines import Progress
from lf_ray.trial.faults.losses import Graces, Signs, loss_of
from lf_ray.trial.faults.outcomes import lost
from lf_ray.trial.group import Action, Event, Group, Policy, State
from lf_ray.trial.hub import Hub

TICK_S = 0.1
PICK_UP_S = 10.0
LEAVE_S = 10.0


class Launcher(Protocol):
    """Starts and ends the ranks of a group.

    Attributes:
        node: where the group runs.
    """

    node: str

    @property
    def num_ranks(self) -> int:
        """Returns the number of ranks of a group."""
        ...

    def start(self, incarnation: int, knobs: Knobs) -> None:
        """Begins to start all ranks; they will say hello to the hub."""
        ...

    def ended(self, incarnation: int) -> TrialOutcome | None:
        """Returns why the incarnation is over, None while it runs."""
        ...

    def process(self, member: Mapping[str, Any]) -> str:
        """Returns running, stopped, gone or unknown for a rank that said hello."""
        ...

    def kill(self, incarnation: int, members: Mapping[int, Mapping[str, Any]]) -> None:
        """Ends all ranks of the incarnation now, stopped and hung ones too."""
        ...


class GroupOwner(Hub):
    """Serves one request at a time on a group that it starts, watches and replaces."""

    def __init__(
        self,
        launcher: Launcher,
        clock: Clock,
        *,
        policy: Policy | None = None,
        graces: Graces | None = None,
        start_s: float = 300.0,
    ) -> None:
        super().__init__(clock)
        self.launcher = launcher
        self.group = Group(clock=clock, policy=policy or Policy())
        self.graces = graces or Graces()
        self.start_s = start_s
        self.closed = False
        self._notes: list[str] = []
        self._request: TrialRequest | None = None
        self._result: TrialRecord | None = None
        self._refusal: TrialOutcome | None = None
        self._lost_wall_s: float | None = None
        self._one = asyncio.Lock()
        self._changed = asyncio.Event()
        self._tender: asyncio.Task[None] | None = None

    # What trials call.

    async def submit(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Runs a request, retried as the policy says, and returns its record as plain JSON."""
        parsed = TrialRequest.from_json(request)
        requested_s = self.clock.wall_s()
        async with self._one:
            self._tend()
            attempt, restart_s = 0, 0.0
            while True:
                attempt += 1
                seconds, outcome = await self._until_sent(parsed)
                restart_s += seconds
                if outcome is not None:
                    record = TrialRecord(request=parsed, outcome=outcome)
                    break
                record = await self._until_finished()
                if not self.group.judge(record.outcome, attempt=attempt).retry:
                    break
                self._note(record.outcome, f"attempt {attempt}")
            return self._complete(record, attempt, restart_s, requested_s)

    async def submit_if_free(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """Runs a request unless another one is under way; returns its record and `gave_up`."""
        if self._one.locked():
            return None
        record = await self.submit(request)
        return {"record": record, "gave_up": self.group.gave_up}

    async def prepare(self, knobs: Knobs) -> None:
        """Begins to start the group before the first request is there."""
        self._tend()
        if self.group.state is State.COLD and not self.closed:
            self._start(knobs, "started ahead of the first request")

    async def state(self) -> dict[str, Any]:
        """Returns where the group stands and how it got there."""
        return {
            "state": self.group.state.value,
            "incarnation": self.group.incarnation,
            "gave_up": self.group.gave_up,
            "members": {rank: dict(item) for rank, item in self.box.members.items()},
            "node": self.launcher.node,
            "levels": dict(self.box.levels),
            "history": [dataclasses.asdict(item) for item in self.group.history],
        }

    async def close(self) -> None:
        """Stops the group, ends what is left of it, and takes no further request."""
        self.closed = True
        self.group.gave_up = self.group.gave_up or "the group is closed"
        await self._stop("closed")
        if self._request is not None and self._result is None:
            outcome = lost("group", "the group was closed while the trial ran")
            self._result = TrialRecord(request=self._request, outcome=outcome)
            self._changed.set()
        if self._tender is not None:
            self._tender.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._tender

    # Doing what the group's decisions say.

    async def _until_sent(self, request: TrialRequest) -> tuple[float, TrialOutcome | None]:
        """Brings the group to the request.

        Returns the seconds that a start took, and an outcome where the request will never run.
        """
        began_s = self.clock.monotonic_s()
        restarted = self.group.state is State.STARTING
        while True:
            decision = self.group.decide(request.knobs)
            seconds = self.clock.monotonic_s() - began_s if restarted else 0.0
            if decision.action is Action.REFUSE:
                kind = self.group.streak.kind or "group"
                return seconds, lost(kind, f"not tried: {decision.reason}")
            if decision.action is Action.SEND:
                self._send(request, decision.reason)
                return seconds, None
            if decision.action is Action.WAIT:
                await self._change()
                continue
            restarted = True
            if decision.action is Action.STOP:
                await self._stop(decision.reason)
            elif self._refusal is not None:
                refusal, self._refusal = self._refusal, None
                return seconds, refusal
            else:
                self._start(request.knobs, decision.reason)

    def _send(self, request: TrialRequest, reason: str) -> None:
        self.group.apply(Event.SEND, f"{request.id}: {reason}")
        self.group.runs_with(request.knobs)
        self._result = None
        self._request = request
        self.publish(request.to_json(), PICK_UP_S)

    async def _until_finished(self) -> TrialRecord:
        while self._result is None:
            await self._change()
        return self._result

    def _start(self, knobs: Knobs, reason: str) -> None:
        self.group.apply(Event.START, reason)
        self.group.runs_with(knobs)
        self.renew(self.group.incarnation)
        now_s = self.clock.monotonic_s()
        for rank in range(self.launcher.num_ranks):
            self.box.progress[rank] = Progress(phase="start", limit_s=self.start_s, since_s=now_s)
        self.launcher.start(self.group.incarnation, knobs)

    async def _stop(self, reason: str) -> None:
        """Ends the group: ranks that wait for work leave in order, others are ended."""
        waiting = self.group.state in (State.READY, State.RESETTING)
        incarnation, members = self.group.incarnation, self.box.members
        self.group.apply(Event.STOP, reason)
        self.dismiss()
        ends_s = self.clock.monotonic_s() + LEAVE_S
        while waiting and self.launcher.ended(incarnation) is None:
            if self.clock.monotonic_s() > ends_s:
                break
            await asyncio.sleep(TICK_S)
        if incarnation:
            self.launcher.kill(incarnation, members)
        self._changed.set()

    async def _change(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    # Looking after the group.

    def _tend(self) -> None:
        if self._tender is None:
            self._tender = asyncio.get_running_loop().create_task(self._look_after())

    async def _look_after(self) -> None:
        while not self.closed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.news.wait(), TICK_S)
            self.news.clear()
            if self._look():
                self._changed.set()

    def _look(self) -> bool:
        """Moves the group on by what is known of it; returns whether it changed."""
        state, number = self.group.state, self.box.number
        if state in (State.COLD, State.DEAD):
            return False
        if state is State.RUNNING and number in self.box.records:
            self._take(TrialRecord.from_json(self.box.records[number]))
        elif state is State.RESETTING and self.box.clean == number:
            self.group.apply(Event.CLEAN, "restored")
        elif (loss := loss_of(self._signs())) is not None:
            self._lose(loss)
        elif state is State.STARTING and len(self.box.up) == self.launcher.num_ranks:
            self.group.apply(Event.UP, f"{self.launcher.num_ranks} ranks are up")
        else:
            return False
        return True

    def _take(self, record: TrialRecord) -> None:
        self._result = record
        self.group.apply(Event.FINISHED, f"{record.request.id}: {record.outcome.kind}")
        if record.outcome.group_lost:
            self._replace(record.outcome)

    def _signs(self) -> Signs:
        box, now_s = self.box, self.clock.monotonic_s()
        processes = {rank: self.launcher.process(item) for rank, item in box.members.items()}
        box.gone += [
            rank for rank, what in processes.items() if what == "gone" and rank not in box.gone
        ]
        if box.gone and box.first_sign_s is None:
            box.first_sign_s = now_s
        return Signs(
            num_ranks=self.launcher.num_ranks,
            now_s=now_s,
            agreed=box.failed,
            faults=box.faults,
            first_s=box.first_sign_s,
            processes=processes,
            gone=box.gone,
            ended=self.launcher.ended(self.group.incarnation),
            progress=box.progress,
            standings=box.standings,
            graces=self.graces,
        )

    def _lose(self, loss: TrialOutcome) -> None:
        """Takes the books of a loss that no record tells of, then replaces the group."""
        state = self.group.state
        if state is State.RUNNING:
            assert self._request is not None
            self._result = TrialRecord(request=self._request, outcome=loss)
        elif loss.kind is OutcomeKind.INFEASIBLE and state is State.STARTING:
            self._refusal = loss
        else:
            self._note(loss, f"group {self.group.incarnation}, {state}")
            self.group.judge(loss, attempt=1)
        self._replace(loss)

    def _replace(self, loss: TrialOutcome) -> None:
        """Ends what is left of the group and begins its replacement, if there is to be one."""
        knobs, self._lost_wall_s = dict(self.group.knobs or {}), self.clock.wall_s()
        incarnation, members = self.group.incarnation, self.box.members
        self.group.apply(Event.LOST, loss.reason)
        self.launcher.kill(incarnation, members)
        if not (self.closed or self.group.gave_up or self._refusal):
            self._start(knobs, f"replaces: {loss.reason}")

    def _note(self, outcome: TrialOutcome, when: str) -> None:
        self._notes.append(f"[{when}: {outcome.kind}: {outcome.reason}]")

    def _complete(
        self, record: TrialRecord, attempt: int, restart_s: float, requested_s: float
    ) -> dict[str, Any]:
        """Returns the record with what only the owner knows of it."""
        data = record.to_json()
        data["outcome"]["reason"] = " ".join(
            part for part in (record.outcome.reason, *self._notes) if part
        )
        self._notes.clear()
        data["outcome"]["costs_s"]["restart"] = restart_s
        if self.launcher.node:
            data["outcome"]["effective"]["node"] = self.launcher.node
        # The probe belongs to the group; its first record tells of it.
        data["metrics"] |= self.box.probe
        self.box.probe = {}
        data["metrics"]["attempts"] = float(attempt)
        data["metrics"]["incarnation"] = float(self.group.incarnation)
        data["clock_s"]["requested"] = requested_s
        data["clock_s"].setdefault("finished", self.clock.wall_s())
        if self._lost_wall_s is not None and restart_s:
            data["clock_s"]["lost"], self._lost_wall_s = self._lost_wall_s, None
        return data
