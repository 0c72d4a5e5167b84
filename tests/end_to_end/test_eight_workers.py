"""Eight workers as one group on whatever cores there are: one is killed, one runs out of memory.

Correctness only: their times say nothing of eight GPUs.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lf_ray.protocol import Deadlines, OutcomeKind, TrialRecord
from lf_ray.testing.group_contract import incarnation, submitted
from lf_ray.testing.ray_groups import RayGroup
from lf_ray.testing.sessions import Fault

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow, pytest.mark.night]
NUM_WORKERS = 8
# Eight processes take turns on few cores, and start one after the other.
PATIENT = Deadlines(start_s=300, first_batch_s=60, capture_s=60, step_s=15)


def ran(group: RayGroup, name: str) -> TrialRecord:
    return submitted(group, name, deadlines=PATIENT)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayGroup]:
    folder: Path = tmp_path_factory.mktemp("eight")
    faults = (
        Fault(request="oom", kind="oom", phase="rehearsal", ranks=(3,)),
        Fault(request="late_oom", kind="oom", phase="step", ranks=(6,), step=25),
        Fault(
            request="killed",
            kind="sigkill",
            phase="step",
            ranks=(5,),
            step=5,
            once=str(folder / "killed"),
        ),
    )
    started = RayGroup(folder, faults, NUM_WORKERS)
    yield started
    assert started.close() == []


def evidence(what: str, before: TrialRecord, after: TrialRecord) -> None:
    """Says how long the next valid measurement took to begin, from the end of the trial before."""
    seconds = after.clock_s["first_step"] - before.clock_s["finished"]
    line = {"what": what, "n": 1, "workers": NUM_WORKERS, "to_next_step_s": round(seconds, 2)}
    sys.stdout.write(json.dumps(line) + "\n")


def test_one_rank_without_memory_makes_the_point_infeasible(group: RayGroup) -> None:
    before = ran(group, "before")
    assert before.outcome.kind is OutcomeKind.COMPLETED
    assert sorted(group.state()["members"]) == list(range(NUM_WORKERS))
    record = ran(group, "oom")
    assert record.outcome.kind is OutcomeKind.INFEASIBLE
    assert record.outcome.rank == 3
    after = ran(group, "after oom")
    assert after.outcome.kind is OutcomeKind.COMPLETED
    assert incarnation(after) == incarnation(before)  # nothing was sent yet: the group is warm
    evidence("oom_before_communication", before, after)


def test_one_of_eight_killed_in_a_step_is_named_and_the_group_comes_back(group: RayGroup) -> None:
    before = ran(group, "before")
    record = ran(group, "killed")
    assert record.outcome.kind is OutcomeKind.COMPLETED
    assert record.metrics["attempts"] == 2.0
    assert "rank 5" in record.outcome.reason
    assert incarnation(record) == incarnation(before) + 1
    assert sorted(group.state()["members"]) == list(range(NUM_WORKERS))
    evidence("killed_in_a_step", before, record)


def test_one_rank_out_of_memory_while_others_send_hangs_nobody(group: RayGroup) -> None:
    before = ran(group, "before")
    record = ran(group, "late_oom")
    assert record.outcome.kind is OutcomeKind.INFEASIBLE
    assert record.outcome.rank == 6
    after = ran(group, "after")
    assert after.outcome.kind is OutcomeKind.COMPLETED
    assert incarnation(after) == incarnation(before) + 1
    evidence("oom_while_sending", record, after)
