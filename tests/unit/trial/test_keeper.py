"""The keeper ends the marked processes of a driver that was killed, and no others."""

import os
import subprocess
import sys
import time
import uuid

from lf_ray.trial.faults.leftovers import process_state

MARK = "LF_RAY_KEEPER_TEST"
WITHIN_S = 60.0
DRIVER = f"""
import os, subprocess, sys
from lf_ray.trial.faults.keeper import start_keeper

keeper = start_keeper({MARK!r}, sys.argv[1], os.environ)
plain = dict(os.environ)
for environment in ({{**plain, {MARK!r}: sys.argv[1]}}, plain):
    sleeper = subprocess.Popen(
        ["sleep", "300"], env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    print(sleeper.pid)
print(keeper.process.pid, flush=True)
if sys.argv[2] == "stays":
    sys.stdin.read()
print(keeper.release(60.0), flush=True)
"""


def start(how: str) -> tuple["subprocess.Popen[str]", list[int]]:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, uuid.uuid4().hex, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    return driver, [int(driver.stdout.readline()) for _ in range(3)]


def is_gone(pid: int) -> bool:
    ends_s = time.monotonic() + WITHIN_S
    while (gone := process_state(pid) == "gone") is False and time.monotonic() < ends_s:
        time.sleep(0.05)
    return gone


def test_after_a_killed_driver_the_marked_processes_are_ended() -> None:
    driver, (marked, unmarked, keeper) = start("stays")
    try:
        assert process_state(marked) == "running"
        driver.kill()
        driver.communicate(timeout=WITHIN_S)
        assert is_gone(marked)
        assert is_gone(keeper)
        assert process_state(unmarked) == "running"
    finally:
        os.kill(unmarked, 9)


def test_a_released_keeper_ends_what_is_left_and_itself() -> None:
    driver, (marked, unmarked, keeper) = start("leaves")
    try:
        said, _ = driver.communicate(timeout=WITHIN_S)
        assert said.strip() == "True"
        assert is_gone(marked)
        assert is_gone(keeper)
    finally:
        os.kill(unmarked, 9)
