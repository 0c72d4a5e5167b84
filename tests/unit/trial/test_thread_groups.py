"""The owner's whole behaviour on ranks that are threads: no Ray, no torch."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lf_ray.errors import GroupError
from lf_ray.protocol import OutcomeKind, TrialRecord
from lf_ray.testing.group_contract import (
    LostWorkerContract,
    ReplacedContract,
    WarmContract,
    planned_faults,
    request,
    submitted,
)
from lf_ray.testing.groups import ThreadGroup, ThreadLauncher
from lf_ray.testing.sessions import FakeSession, Fault


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ThreadGroup]:
    started = ThreadGroup(ThreadLauncher(faults=planned_faults(tmp_path, ThreadGroup.step_s)))
    yield started
    started.close()


class TestWarmThreads(WarmContract):
    pass


class TestLostThread(LostWorkerContract):
    pass


class TestReplacedThreads(ReplacedContract):
    pass


def group_with(*faults: Fault) -> ThreadGroup:
    return ThreadGroup(ThreadLauncher(faults=faults))


def until(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    ends_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < ends_s, "it never came to hold"
        time.sleep(0.02)


def test_a_worker_lost_while_idle_is_replaced_before_the_next_request() -> None:
    group = group_with()
    try:
        submitted(group, "t0")
        until(lambda: group.state()["state"] == "ready")
        group.launcher.worlds[1].fates[1] = "gone"
        until(lambda: group.state()["incarnation"] == 2)
        record = submitted(group, "t1")
        assert record.outcome.kind is OutcomeKind.COMPLETED
        assert record.metrics["attempts"] == 1.0
        assert "[group 1, ready: failed: the process of rank 1 is gone]" in record.outcome.reason
    finally:
        group.close()


def test_a_group_that_never_starts_is_given_up_with_its_reason() -> None:
    group = group_with(Fault(kind="data", phase="start", ranks=(1,)))
    try:
        record = submitted(group, "t0")
        assert record.outcome.kind is OutcomeKind.FAILED
        assert "3 failures of kind 'exception' in a row" in record.outcome.reason
        assert "rank 1, start: DataError: planned data in start" in record.outcome.reason
        assert group.state()["gave_up"]
        again = submitted(group, "t1")
        assert "not tried" in again.outcome.reason
        assert len(group.launcher.started_with) == 3
    finally:
        group.close()


def test_an_implausible_link_ends_the_start_and_is_named() -> None:
    def slow() -> dict[str, float]:
        raise GroupError("While probing: 100 MB/s. Got 2 MB/s (ranks 0 and 1 at 2 MB/s).")

    group = ThreadGroup(ThreadLauncher(probe=slow))
    try:
        record = submitted(group, "t0")
        assert record.outcome.kind is OutcomeKind.FAILED
        assert "ranks 0 and 1 at 2 MB/s" in record.outcome.reason
        assert group.launcher.sessions == []
    finally:
        group.close()


def test_what_the_probe_reads_is_in_the_group_s_first_record() -> None:
    group = ThreadGroup(ThreadLauncher(probe=lambda: {"probe_latency_s": 1e-4}))
    try:
        assert submitted(group, "t0").metrics["probe_latency_s"] == 1e-4
        assert "probe_latency_s" not in submitted(group, "t1").metrics
    finally:
        group.close()


def test_a_model_that_does_not_fit_is_infeasible_and_not_started_again() -> None:
    group = group_with(Fault(kind="oom", phase="start"))
    try:
        record = submitted(group, "t0")
        assert record.outcome.kind is OutcomeKind.INFEASIBLE
        assert record.outcome.error_kind == "oom"
        assert len(group.launcher.started_with) == 1
    finally:
        group.close()


def test_three_failures_of_one_kind_in_a_row_end_it() -> None:
    group = group_with(Fault(kind="exception", phase="step", ranks=(0,), step=3))
    try:
        first = submitted(group, "t0")
        assert first.metrics["attempts"] == 2.0
        second = submitted(group, "t1")
        assert second.metrics["attempts"] == 1.0
        assert "3 failures of kind 'exception'" in group.state()["gave_up"]
        assert "not tried" in submitted(group, "t2").outcome.reason
    finally:
        group.close()


def test_sessions_are_closed_when_the_group_is() -> None:
    group = group_with()
    submitted(group, "t0")
    group.close()
    assert all(item.closed for item in group.launcher.sessions if isinstance(item, FakeSession))
    assert not any(thread.is_alive() for thread in group.launcher.threads[1])


def test_a_trial_under_way_at_the_close_is_answered() -> None:
    group = group_with(Fault(kind="sleep", phase="step", step=5, seconds=3600))
    answers: list[TrialRecord] = []
    asking = threading.Thread(target=lambda: answers.append(submitted(group, "t0")))
    asking.start()
    until(lambda: group.state()["state"] == "running")
    group._call(group.owner.close(), 30.0)
    asking.join(10.0)
    assert "closed while the trial ran" in answers[0].outcome.reason
    group.close()


def test_requests_after_the_close_are_refused() -> None:
    group = group_with()
    submitted(group, "t0")
    group._call(group.owner.close(), 30.0)
    record = TrialRecord.from_json(group.submit(request("t1")))
    assert record.outcome.kind is OutcomeKind.FAILED
    assert "closed" in record.outcome.reason
    group.close()


def test_the_group_started_ahead_serves_the_first_request() -> None:
    group = group_with()
    try:
        group._call(group.owner.prepare(request("t0")["knobs"]), 10.0)
        record = submitted(group, "t0")
        assert record.metrics["incarnation"] == 1.0
    finally:
        group.close()


def test_no_torch_is_imported_on_the_way() -> None:
    program = (
        "import sys, lf_ray.trial.visit, lf_ray.trial.group, lf_ray.trial.owner, "
        "lf_ray.trial.ranks.serve, lf_ray.testing.groups\n"
        "assert not {'torch', 'ray'} & set(sys.modules), 'torch or ray was imported'"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
