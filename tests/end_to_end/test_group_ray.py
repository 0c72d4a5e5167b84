"""The contract of a worker group, kept by Ray's real workers."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from lf_ray.protocol import OutcomeKind
from lf_ray.testing.group_contract import (
    LostWorkerContract,
    ReplacedContract,
    WarmContract,
    incarnation,
    submitted,
)
from lf_ray.testing.ray_groups import RayGroup
from lf_ray.trial.cluster import placement_groups
from lf_ray.trial.faults.leftovers import describe

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayGroup]:
    started = RayGroup(tmp_path_factory.mktemp("group"))
    yield started
    assert started.close() == []


class TestWarmWorkers(WarmContract):
    pass


@pytest.mark.slow
class TestLostWorker(LostWorkerContract):
    pass


@pytest.mark.slow
class TestReplacedWorkers:
    """What real processes do differently; the rest, alike on threads, is for the night."""

    test_a_worker_killed_in_a_collective = ReplacedContract.test_a_worker_killed_in_a_collective
    test_late_out_of_memory = ReplacedContract.test_late_out_of_memory
    test_a_stopped_worker_is_a_hang = ReplacedContract.test_a_stopped_worker_is_a_hang
    test_a_restart_knob = ReplacedContract.test_a_restart_knob
    test_an_error_that_passes = ReplacedContract.test_an_error_that_passes


@pytest.mark.slow
@pytest.mark.night
class TestReplacedWorkersInAllWays(ReplacedContract):
    pass


@pytest.mark.slow
def test_a_killed_controller_leaves_nothing_in_the_way(group: RayGroup) -> None:
    """Its placement group outlives it, and holds what the next workers need."""
    before = submitted(group, "before")
    (controller,) = [pid for pid in group.cluster.kin.pids() if "TrainController" in describe(pid)]
    held = placement_groups(group.cluster)
    os.kill(controller, signal.SIGKILL)
    after = submitted(group, "after")
    assert after.outcome.kind is OutcomeKind.COMPLETED
    assert incarnation(after) == incarnation(before) + 1
    assert len(held) == 1
    assert len(placement_groups(group.cluster)) == 1
    assert placement_groups(group.cluster) != held


def test_nothing_can_be_reached_from_outside(group: RayGroup) -> None:
    submitted(group, "plain")
    outside: list[str] = []
    for pid in group.cluster.kin.pids():
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for item in process.net_connections("inet"):
                address = item.laddr.ip.removeprefix("::ffff:")
                if item.status == psutil.CONN_LISTEN and address not in ("127.0.0.1", "::1"):
                    outside.append(f"{process.name()} {item.laddr.ip}:{item.laddr.port}")
    assert outside == []


def test_the_workers_are_where_the_owner_says(group: RayGroup) -> None:
    submitted(group, "plain")
    members = group.state()["members"]
    assert sorted(members) == [0, 1]
    assert len({item["pid"] for item in members.values()}) == 2
