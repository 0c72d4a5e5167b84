"""Eight ranks in one group, as threads: one is killed, one runs out of memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lf_ray.protocol import Deadlines, OutcomeKind, TrialRecord
from lf_ray.testing.group_contract import incarnation, submitted
from lf_ray.testing.groups import ThreadGroup, ThreadLauncher
from lf_ray.testing.sessions import Fault

NUM_RANKS = 8
PATIENT = Deadlines(start_s=60, first_batch_s=30, capture_s=30, step_s=10)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ThreadGroup]:
    faults = (
        Fault(request="oom", kind="oom", phase="rehearsal", ranks=(3,)),
        Fault(request="late_oom", kind="oom", phase="step", ranks=(6,), step=25),
        Fault(
            request="killed",
            kind="sigkill",
            phase="step",
            ranks=(5,),
            step=5,
            once=str(tmp_path / "killed"),
        ),
    )
    started = ThreadGroup(ThreadLauncher(num_ranks=NUM_RANKS, faults=faults))
    yield started
    started.close()


def ran(group: ThreadGroup, name: str) -> TrialRecord:
    return submitted(group, name, deadlines=PATIENT)


def test_one_without_memory_makes_the_point_infeasible_and_the_group_stays_warm(
    group: ThreadGroup,
) -> None:
    before = ran(group, "before")
    assert before.outcome.kind is OutcomeKind.COMPLETED
    assert sorted(group.state()["members"]) == list(range(NUM_RANKS))
    record = ran(group, "oom")
    assert (record.outcome.kind, record.outcome.rank) == (OutcomeKind.INFEASIBLE, 3)
    assert incarnation(ran(group, "after")) == incarnation(before)


def test_one_killed_in_a_step_is_named_and_all_eight_come_back(group: ThreadGroup) -> None:
    before = ran(group, "before")
    record = ran(group, "killed")
    assert record.outcome.kind is OutcomeKind.COMPLETED
    assert record.metrics["attempts"] == 2.0
    assert "rank 5" in record.outcome.reason
    assert incarnation(record) == incarnation(before) + 1
    assert sorted(group.state()["members"]) == list(range(NUM_RANKS))


def test_one_out_of_memory_while_seven_send_hangs_nobody(group: ThreadGroup) -> None:
    before = ran(group, "before")
    record = ran(group, "late_oom")
    assert (record.outcome.kind, record.outcome.rank) == (OutcomeKind.INFEASIBLE, 6)
    after = ran(group, "after")
    assert after.outcome.kind is OutcomeKind.COMPLETED
    assert incarnation(after) == incarnation(before) + 1
