"""The life of a worker group as data: states, legal transitions, and what to do next and why.

Pure decisions. It starts, sends and kills nothing: `owner` carries the decisions out. It knows
neither torch nor Ray, and is handed the time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lf_ray.clock import Clock
from lf_ray.errors import GroupError, four_parts
from lf_ray.protocol import (
    ChangeCost,
    Knobs,
    KnobValue,
    OutcomeKind,
    TrialOutcome,
    change_cost,
)


class State(StrEnum):
    """Where a group is in its life.

    COLD -> STARTING -> READY -> RUNNING -> RESETTING -> READY, and DEAD from any of the last four;
    a stopped group is COLD again, a dead one is started anew.
    """

    COLD = "cold"
    STARTING = "starting"
    READY = "ready"
    RUNNING = "running"
    RESETTING = "resetting"
    DEAD = "dead"


class Event(StrEnum):
    """What happens to a group."""

    START = "start"
    UP = "up"
    SEND = "send"
    FINISHED = "finished"
    CLEAN = "clean"
    LOST = "lost"
    STOP = "stop"


TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.COLD, Event.START): State.STARTING,
    (State.DEAD, Event.START): State.STARTING,
    (State.STARTING, Event.UP): State.READY,
    (State.READY, Event.SEND): State.RUNNING,
    (State.RUNNING, Event.FINISHED): State.RESETTING,
    (State.RESETTING, Event.CLEAN): State.READY,
    (State.STARTING, Event.LOST): State.DEAD,
    (State.READY, Event.LOST): State.DEAD,
    (State.RUNNING, Event.LOST): State.DEAD,
    (State.RESETTING, Event.LOST): State.DEAD,
    (State.READY, Event.STOP): State.COLD,
    (State.STARTING, Event.STOP): State.COLD,
    (State.RUNNING, Event.STOP): State.COLD,
    (State.RESETTING, Event.STOP): State.COLD,
    (State.DEAD, Event.STOP): State.COLD,
    (State.COLD, Event.STOP): State.COLD,
}


class Action(StrEnum):
    """What the owner is told to do for a waiting request."""

    START = "start"
    STOP = "stop"
    SEND = "send"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """An action and the reason for it.

    Attributes:
        cost: what the request changes on the group, set when it is sent.
    """

    action: Action
    reason: str
    cost: ChangeCost | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What follows from one attempt's outcome.

    Attributes:
        retry: run the same request once more.
        replace: the group can't be trusted with another request.
        give_up: why no further request should be tried; empty while it should.
    """

    retry: bool
    replace: bool
    give_up: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Streak:
    """Failures of one kind without a success between them."""

    kind: str = ""
    count: int = 0
    first_reason: str = ""

    def after(self, outcome: TrialOutcome) -> "Streak":
        """Returns the streak with this outcome added.

        A measured trial ends it. Infeasible and invalid are answers about the point, not about the
        group: they neither add nor end.
        """
        if outcome.kind in (OutcomeKind.COMPLETED, OutcomeKind.PRUNED):
            return Streak()
        if outcome.kind is not OutcomeKind.FAILED:
            return self
        if outcome.error_kind == self.kind:
            return Streak(kind=self.kind, count=self.count + 1, first_reason=self.first_reason)
        return Streak(kind=outcome.error_kind, count=1, first_reason=outcome.reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """How stubborn the owner is.

    Attributes:
        max_attempts: runs of one request, retries included.
        max_same_failures: failures of one kind in a row after which the sweep should end.
        retried: kinds of failure that another run can cure. Divergence and a failed capture
            repeat: same seed, same draws, same code.
    """

    max_attempts: int = 2
    max_same_failures: int = 3
    retried: frozenset[str] = frozenset({"worker_lost", "hang", "exception", "start"})


def verdict(outcome: TrialOutcome, *, attempt: int, streak: Streak, policy: Policy) -> Verdict:
    """Returns what follows from an attempt (numbered from 1), `streak` including it."""
    give_up = ""
    if streak.count >= policy.max_same_failures:
        give_up = (
            f"{streak.count} failures of kind {streak.kind!r} in a row without a success; "
            f"first: {streak.first_reason}"
        )
    failed = outcome.kind is OutcomeKind.FAILED
    curable = failed and outcome.error_kind in policy.retried
    retry = curable and attempt < policy.max_attempts and not give_up
    if retry:
        reason = f"{outcome.error_kind} may pass: attempt {attempt + 1} of {policy.max_attempts}"
    elif give_up:
        reason = give_up
    elif curable:
        reason = f"failed {attempt} times"
    elif failed:
        reason = f"{outcome.error_kind} would repeat"
    else:
        reason = f"{outcome.kind} is an answer"
    return Verdict(retry=retry, replace=outcome.group_lost, give_up=give_up, reason=reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """One transition that was made, for the log and the time line."""

    wall_s: float
    before: State
    event: Event
    after: State
    reason: str


@dataclass(kw_only=True, slots=True)
class Group:
    """One group's present state, what it runs with, and how it got there.

    Attributes:
        knobs: the knobs that it last ran; None before the first start.
        incarnation: how often it was started; messages of older ones are ignored.
    """

    clock: Clock
    policy: Policy = field(default_factory=Policy)
    state: State = State.COLD
    since_s: float = 0.0
    incarnation: int = 0
    knobs: dict[str, KnobValue] | None = None
    streak: Streak = field(default_factory=Streak)
    gave_up: str = ""
    history: list[Passage] = field(default_factory=list)

    def apply(self, event: Event, reason: str) -> State:
        """Makes a transition and returns the new state.

        Raises:
            GroupError: the event can't happen in this state.
        """
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            legal = ", ".join(known for before, known in TRANSITIONS if before is self.state)
            raise GroupError(
                four_parts(
                    "moving a worker group on",
                    f"a group that is {self.state} can only see {legal}",
                    f"{event} ({reason})",
                    "This is a defect of lf-ray: please report it.",
                )
            )
        if event is Event.START:
            self.incarnation += 1
        if following in (State.DEAD, State.COLD):
            self.knobs = None
        passage = Passage(
            wall_s=self.clock.wall_s(),
            before=self.state,
            event=event,
            after=following,
            reason=reason,
        )
        self.history.append(passage)
        self.state, self.since_s = following, self.clock.monotonic_s()
        return following

    def decide(self, knobs: Knobs) -> Decision:
        """Returns what to do now for a request with these knobs."""
        if self.gave_up:
            return Decision(action=Action.REFUSE, reason=self.gave_up)
        if self.state is State.COLD:
            return Decision(action=Action.START, reason="no group is running")
        if self.state is State.DEAD:
            return Decision(action=Action.START, reason=f"replaces: {self.history[-1].reason}")
        if self.state is not State.READY:
            return Decision(action=Action.WAIT, reason=f"the group is {self.state}")
        assert self.knobs is not None
        cost = change_cost(self.knobs, knobs)
        if cost is ChangeCost.RESTART:
            names = sorted(name for name in knobs if self.knobs.get(name) != knobs[name])
            return Decision(action=Action.STOP, reason=f"{', '.join(names)} needs a new group")
        return Decision(action=Action.SEND, reason=f"{cost} change", cost=cost)

    def runs_with(self, knobs: Knobs) -> None:
        """Notes the knobs that the group is started for, or that a request makes it run."""
        self.knobs = dict(knobs)

    def judge(self, outcome: TrialOutcome, *, attempt: int) -> Verdict:
        """Adds an attempt's outcome to the books and returns what follows from it."""
        self.streak = self.streak.after(outcome)
        result = verdict(outcome, attempt=attempt, streak=self.streak, policy=self.policy)
        self.gave_up = self.gave_up or result.give_up
        return result
