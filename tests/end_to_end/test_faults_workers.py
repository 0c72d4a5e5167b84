"""Workers killed and stopped from outside, at moments that no fault plan can name."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lf_ray.protocol import OutcomeKind, TrialRecord
from lf_ray.testing.group_contract import incarnation, submitted
from lf_ray.testing.ray_groups import RayGroup
from lf_ray.trial.cluster import placement_groups
from lf_ray.trial.faults.leftovers import marked_processes, process_state
from lf_ray.trial.workers import GROUP_MARK

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

# A quiet machine with two cores needs 15 s; this one may be shared.
BACK_WITHIN_S = 90.0


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayGroup]:
    started = RayGroup(tmp_path_factory.mktemp("faults"), faults=())
    yield started
    assert started.close() == []


def pids_of(group: RayGroup) -> dict[int, int]:
    """The workers' processes, once the reset is over and they wait for work."""
    until_replaced(group, 0)
    return {rank: item["pid"] for rank, item in group.state()["members"].items()}


def until_replaced(group: RayGroup, before: int) -> None:
    ends_s = time.monotonic() + BACK_WITHIN_S
    while time.monotonic() < ends_s:
        state = group.state()
        if state["incarnation"] > before and state["state"] == "ready":
            return
        time.sleep(0.2)
    pytest.fail(f"not replaced within {BACK_WITHIN_S} s: {group.state()['history'][-3:]}")


def check_measured_after(record: TrialRecord, fault_wall_s: float) -> None:
    assert record.outcome.kind is OutcomeKind.COMPLETED
    assert record.clock_s["first_step"] - fault_wall_s < BACK_WITHIN_S


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_killed_while_idle(group: RayGroup, rank: int) -> None:
    before = submitted(group, "before")
    killed_s = time.time()
    os.kill(pids_of(group)[rank], signal.SIGKILL)
    until_replaced(group, incarnation(before))
    after = submitted(group, "after")
    check_measured_after(after, killed_s)
    assert after.metrics["attempts"] == 1.0
    assert f"ready: failed: the process of rank {rank} is gone" in after.outcome.reason


def test_a_worker_stopped_while_idle_is_late_for_the_next_request(group: RayGroup) -> None:
    submitted(group, "before")
    os.kill(pids_of(group)[1], signal.SIGSTOP)
    record = submitted(group, "after")
    assert record.outcome.kind is OutcomeKind.COMPLETED
    assert record.metrics["attempts"] == 2.0
    assert "rank 1 is in phase 'pick-up'" in record.outcome.reason
    assert "its process is stopped" in record.outcome.reason


def test_both_workers_killed_at_once(group: RayGroup) -> None:
    before = submitted(group, "before")
    for pid in pids_of(group).values():
        os.kill(pid, signal.SIGKILL)
    until_replaced(group, incarnation(before))
    assert submitted(group, "after").outcome.kind is OutcomeKind.COMPLETED


def test_nothing_is_left_of_a_replaced_group(group: RayGroup) -> None:
    """Stopped processes can't end themselves, and children outlive a killed parent."""
    before = submitted(group, "before")
    pids = pids_of(group)
    environment = Path(f"/proc/{pids[0]}/environ").read_bytes().split(b"\0")
    (mark,) = [item for item in environment if item.startswith(GROUP_MARK.encode())]
    os.kill(pids[0], signal.SIGSTOP)
    os.kill(pids[1], signal.SIGKILL)
    until_replaced(group, incarnation(before))
    assert [process_state(pid) for pid in pids.values()] == ["gone", "gone"]
    assert marked_processes(GROUP_MARK, mark.decode().partition("=")[2]) == []
    assert len(placement_groups(group.cluster)) == 1
    assert len(group.cluster.kin.pids()) > 4
