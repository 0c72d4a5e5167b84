"""A driver that goes, by its own choice or not, leaves no process behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lf_ray.trial.cluster import SWEEP_MARK
from lf_ray.trial.faults.leftovers import Kin, describe

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

WITHIN_S = 15.0
# Like a sweep, the driver handles SIGTERM itself: by leaving in order.
PROGRAM = """
import os, signal, sys
from pathlib import Path

import ray

from lf_ray.protocol import Budget
from lf_ray.testing.group_contract import request
from lf_ray.testing.ray_groups import cpu_workers
from lf_ray.testing.sessions import FakeFactory
from lf_ray.trial.cluster import start_cluster, stop_cluster
from lf_ray.trial.workers import GroupPlan, close_owner, start_owner

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
folder = Path(sys.argv[1])
config = cpu_workers()
cluster = start_cluster(config, folder)
try:
    owner = start_owner(GroupPlan(config=config, folder=folder, make_session=FakeFactory()))
    ray.get(owner.submit.remote(request("t0")))
    print(cluster.kin.value, flush=True)
    busy = sys.argv[2] == "busy"
    budget = Budget(min_steps=10**6, max_steps=10**6, max_s=10**6, target_frac=1e-9)
    ray.get([owner.submit.remote(request("t1", budget=budget))] if busy else [], timeout=None)
    print("idle", flush=True)
    sys.stdin.read()
finally:
    close_owner(owner)
    print("left", stop_cluster(cluster), flush=True)
"""


@contextmanager
def driver(folder: Path, how: str) -> Iterator[tuple["subprocess.Popen[str]", Kin]]:
    """A driver with a group that is idle or in the middle of a trial, and its kin."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        mark = process.stdout.readline().strip()
        assert mark, process.communicate(timeout=20)[1]
        if how == "idle":
            assert process.stdout.readline().strip() == "idle"
        else:
            time.sleep(2.0)
        kin = Kin(SWEEP_MARK, mark)
        assert len(kin.pids()) > 4
        yield process, kin
    finally:
        process.kill()
        process.communicate(timeout=20)


def left_after(kin: Kin, within_s: float) -> list[str]:
    ends_s = time.monotonic() + within_s
    while (pids := kin.pids()) and time.monotonic() < ends_s:
        time.sleep(0.2)
    return [describe(pid) for pid in pids]


@pytest.mark.night
@pytest.mark.parametrize("how", ["idle", "busy"])
def test_a_killed_driver_leaves_nothing(tmp_path: Path, how: str) -> None:
    """And soon; that it leaves nothing is seen of each of the ten in `test_faults_resume`."""
    with driver(tmp_path, how) as (process, kin):
        process.kill()
        process.wait(10)
        assert left_after(kin, WITHIN_S) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_driver_told_to_end_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with driver(tmp_path, "busy") as (process, kin):
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
        assert "left []" in out
        assert left_after(kin, 0.0) == []


@pytest.mark.parametrize("component", ["raylet", "gcs_server"])
def test_a_driver_whose_ray_is_killed_ends_too(tmp_path: Path, component: str) -> None:
    with driver(tmp_path, "busy") as (process, kin):
        (pid,) = [pid for pid in kin.pids() if describe(pid).split()[1] == component]
        os.kill(pid, signal.SIGKILL)
        process.wait(150)
        assert process.returncode != 0
        assert left_after(kin, WITHIN_S) == []
