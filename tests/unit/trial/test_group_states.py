"""The group's life as data: which transitions exist, and what is decided in each state."""

import pytest

from lf_ray.clock import FakeClock
from lf_ray.errors import GroupError
from lf_ray.protocol import ChangeCost, OutcomeKind, TrialOutcome
from lf_ray.settings import SweepConfig, knobs_of
from lf_ray.trial.group import (
    TRANSITIONS,
    Action,
    Event,
    Group,
    Policy,
    State,
    Streak,
    verdict,
)

KNOBS = knobs_of(SweepConfig())
COMPLETED = TrialOutcome(kind=OutcomeKind.COMPLETED)


def failed(kind: str, group_lost: bool = False) -> TrialOutcome:
    return TrialOutcome(
        kind=OutcomeKind.FAILED, reason=f"a {kind}", error_kind=kind, group_lost=group_lost
    )


def group_in(state: State) -> Group:
    """A group led to a state by legal events."""
    path = {
        State.COLD: [],
        State.STARTING: [Event.START],
        State.READY: [Event.START, Event.UP],
        State.RUNNING: [Event.START, Event.UP, Event.SEND],
        State.RESETTING: [Event.START, Event.UP, Event.SEND, Event.FINISHED],
        State.DEAD: [Event.START, Event.LOST],
    }[state]
    group = Group(clock=FakeClock())
    for event in path:
        group.apply(event, "on the way")
        group.runs_with(KNOBS)
    assert group.state is state
    return group


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("event", list(Event))
def test_exactly_the_listed_transitions_are_legal(state: State, event: Event) -> None:
    group = group_in(state)
    following = TRANSITIONS.get((state, event))
    if following is None:
        with pytest.raises(GroupError, match=f"a group that is {state}"):
            group.apply(event, "why not")
        assert group.state is state
    else:
        assert group.apply(event, "why") is following
        assert group.history[-1].reason == "why"


def test_every_state_can_be_stopped_and_every_live_one_lost() -> None:
    for state in State:
        assert TRANSITIONS[state, Event.STOP] is State.COLD
    for state in (State.STARTING, State.READY, State.RUNNING, State.RESETTING):
        assert TRANSITIONS[state, Event.LOST] is State.DEAD


def test_times_of_transitions_come_from_the_clock() -> None:
    clock = FakeClock()
    group = Group(clock=clock)
    group.apply(Event.START, "first")
    clock.sleep(12.5)
    group.apply(Event.UP, "up")
    assert group.since_s == 12.5
    assert group.history[1].wall_s - group.history[0].wall_s == 12.5


@pytest.mark.parametrize(
    ("state", "action"),
    [
        (State.COLD, Action.START),
        (State.DEAD, Action.START),
        (State.STARTING, Action.WAIT),
        (State.READY, Action.SEND),
        (State.RUNNING, Action.WAIT),
        (State.RESETTING, Action.WAIT),
    ],
)
def test_what_is_done_for_a_waiting_request(state: State, action: Action) -> None:
    decision = group_in(state).decide(KNOBS)
    assert decision.action is action
    assert decision.reason


def test_a_replacement_tells_what_it_replaces() -> None:
    group = group_in(State.READY)
    group.apply(Event.LOST, "rank 1 is gone")
    assert "rank 1 is gone" in group.decide(KNOBS).reason


@pytest.mark.parametrize(
    ("change", "cost"),
    [
        ({"overlap.ratio": 0.5}, ChangeCost.HOT),
        ({"batch.per_gpu": 8}, ChangeCost.RECAPTURE),
        ({"graph.scope": "step", "overlap.ratio": 0.1}, ChangeCost.RECAPTURE),
    ],
)
def test_a_ready_group_takes_hot_and_recapture_changes(
    change: dict[str, float | str], cost: ChangeCost
) -> None:
    decision = group_in(State.READY).decide({**KNOBS, **change})
    assert (decision.action, decision.cost) == (Action.SEND, cost)


def test_a_restart_knob_stops_the_group_and_is_named() -> None:
    decision = group_in(State.READY).decide({**KNOBS, "memory.backend": "arena"})
    assert decision.action is Action.STOP
    assert "memory.backend" in decision.reason


def test_incarnations_count_starts_and_a_stopped_group_forgets_its_knobs() -> None:
    group = group_in(State.READY)
    assert group.incarnation == 1
    group.apply(Event.STOP, "restart knob")
    assert group.knobs is None
    group.apply(Event.START, "with other knobs")
    assert group.incarnation == 2


@pytest.mark.parametrize("kind", ["worker_lost", "hang", "exception"])
def test_what_may_pass_is_retried_once(kind: str) -> None:
    group = group_in(State.READY)
    assert group.judge(failed(kind), attempt=1).retry
    assert not group.judge(failed(kind), attempt=2).retry


@pytest.mark.parametrize("kind", ["diverged", "capture"])
def test_what_would_repeat_is_not_retried(kind: str) -> None:
    assert not group_in(State.READY).judge(failed(kind), attempt=1).retry


@pytest.mark.parametrize("kind", [OutcomeKind.INFEASIBLE, OutcomeKind.INVALID])
def test_answers_are_neither_retried_nor_counted(kind: OutcomeKind) -> None:
    group = group_in(State.READY)
    for _ in range(10):
        result = group.judge(TrialOutcome(kind=kind, reason="r", error_kind="oom"), attempt=1)
        assert not result.retry
    assert not group.gave_up
    assert group.streak == Streak()


def test_three_of_a_kind_in_a_row_give_up_and_tell_the_first_reason() -> None:
    group = group_in(State.READY)
    for attempt in (1, 2, 1):
        group.judge(failed("hang"), attempt=attempt)
    assert "3 failures of kind 'hang' in a row" in group.gave_up
    assert "a hang" in group.gave_up
    assert group.decide(KNOBS).action is Action.REFUSE


def test_a_success_or_another_kind_begins_the_count_anew() -> None:
    group = group_in(State.READY)
    for outcome in (failed("hang"), failed("hang"), COMPLETED, failed("hang"), failed("hang")):
        group.judge(outcome, attempt=2)
    group.judge(failed("worker_lost"), attempt=2)
    assert not group.gave_up
    assert group.streak.count == 1


def test_an_infeasible_trial_between_failures_does_not_hide_them() -> None:
    group = group_in(State.READY)
    infeasible = TrialOutcome(kind=OutcomeKind.INFEASIBLE, reason="r", error_kind="oom")
    for outcome in (failed("hang"), infeasible, failed("hang"), infeasible, failed("hang")):
        group.judge(outcome, attempt=2)
    assert group.gave_up


def test_nothing_is_retried_once_given_up() -> None:
    streak = Streak(kind="hang", count=3, first_reason="first")
    result = verdict(failed("hang"), attempt=1, streak=streak, policy=Policy())
    assert not result.retry
    assert "first" in result.give_up


@pytest.mark.parametrize("lost", [True, False])
def test_a_verdict_replaces_exactly_the_lost_group(lost: bool) -> None:
    outcome = failed("exception", group_lost=lost)
    assert verdict(outcome, attempt=1, streak=Streak(), policy=Policy()).replace is lost
