"""Who belongs to a mark: those that carry it, and those in sessions that such ones lead."""

import os
import subprocess
import time
import uuid
from collections.abc import Iterator

import pytest

from lf_ray.trial.faults.leftovers import Kin, process_state

NAME = "LF_RAY_KIN_TEST"
# The child loses its mark, as Ray's agents do to theirs.
PARENT = f"env -u {NAME} sleep 300 & echo $!; exec sleep 300"


@pytest.fixture
def kin() -> Iterator[Kin]:
    kin = Kin(NAME, uuid.uuid4().hex)
    yield kin
    kin.end()


def start(kin: Kin, *, leads: bool) -> tuple["subprocess.Popen[str]", int]:
    """A marked process, in its own session or ours, and a child of it without the mark."""
    parent = subprocess.Popen(
        ["sh", "-c", PARENT],
        env={**os.environ, kin.name: kin.value},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=leads,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    ends_s = time.monotonic() + 30.0
    while b"sleep" not in command(child) and time.monotonic() < ends_s:
        time.sleep(0.01)  # until `env` has dropped the mark
    return parent, child


def command(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().split(b"\0")[0]


def end(parent: "subprocess.Popen[str]") -> None:
    parent.kill()
    parent.communicate(timeout=30)


def test_a_session_is_kin_also_once_its_leader_is_gone(kin: Kin) -> None:
    parent, child = start(kin, leads=True)
    assert sorted(kin.pids()) == sorted([parent.pid, child])
    parent.kill()
    parent.wait(30)
    assert kin.pids() == [child]
    assert kin.end() == [child]
    ends_s = time.monotonic() + 30.0
    while process_state(child) != "gone" and time.monotonic() < ends_s:
        time.sleep(0.01)
    assert kin.pids() == []
    parent.communicate(timeout=30)


def test_what_shares_a_session_that_another_leads_is_no_kin(kin: Kin) -> None:
    parent, child = start(kin, leads=False)
    try:
        assert kin.pids() == [parent.pid]
    finally:
        os.kill(child, 9)
        end(parent)


def test_a_number_that_another_process_got_is_no_kin(kin: Kin) -> None:
    parent, child = start(kin, leads=True)
    stranger = Kin(NAME, uuid.uuid4().hex, members={parent.pid: "0", child: "0"})
    try:
        assert stranger.pids() == []
        parent.kill()
        parent.wait(30)
        assert stranger.pids() == []
    finally:
        os.kill(child, 9)
        end(parent)
