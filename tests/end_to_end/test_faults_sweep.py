"""Faults under a whole sweep: real Ray, Tune, journal and MLflow, fake sessions.

The sweep goes on where it can, else ends in order; `resume=` then takes it to the same end.
"""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lf_ray.protocol import OutcomeKind
from lf_ray.record.history import SweepHistory, read_journal
from lf_ray.testing.sweep_process import SweepProcess, result_folder
from lf_ray.testing.tracking_server import TrackingServer, free_port

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

WORDS = ("measure=standard", "sweep.trials=4", "sweep.seed=3")
Sweep = Callable[..., SweepProcess]


@pytest.fixture
def sweep() -> Iterator[Sweep]:
    """Starts sweeps, and ends what is left of them."""
    started: list[SweepProcess] = []

    def start(folder: Path, *words: str, **options: Any) -> SweepProcess:
        started.append(SweepProcess(folder, *WORDS, *words, **options))
        return started[-1]

    yield start
    for item in started:
        item.end()


def history(folder: Path) -> SweepHistory:
    return read_journal(result_folder(folder) / "journal.jsonl")


def check_goes_on(sweep: Sweep, folder: Path, *words: str) -> None:
    """The sweep, resumed, comes to its end; what had been finished is not run again."""
    before = Counter(record.request.id for record in history(folder).records)
    life = sweep(folder, f"resume={result_folder(folder).name}", *words)
    assert life.wait() == 0, life.tail()
    assert life.left() == []
    after = history(folder)
    finished = Counter(record.request.id for record in after.records)
    assert set(finished.values()) == {1}
    assert set(before) < set(finished)
    assert after.num_trials == 4
    assert not after.unfinished


def check_interrupted(folder: Path, exit_code: int) -> None:
    """The end is in the journal with its reason, the report stands, and no trial is blamed."""
    assert exit_code == 130
    kept = history(folder)
    assert kept.ended is not None
    assert kept.ended.exit_code == 130
    assert {record.outcome.kind for record in kept.records} == {OutcomeKind.COMPLETED}
    assert len(kept.unfinished) <= 1
    summary = json.loads((result_folder(folder) / "summary.json").read_text())
    assert summary["outcomes"]["completed"] == kept.num_trials - len(kept.unfinished)
    assert (result_folder(folder) / "report.html").stat().st_size > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_process_group_ends_in_order(
    sweep: Sweep, tmp_path: Path, number: signal.Signals
) -> None:
    """As Ctrl-C in a terminal, `timeout` and job managers send it."""
    life = sweep(tmp_path)
    assert life.until_lines(5), life.tail()
    os.killpg(life.process.pid, number)
    code = life.wait(120)
    assert life.left() == [], life.tail()
    check_interrupted(tmp_path, code)
    assert "Traceback" not in life.tail()
    if number is signal.SIGTERM:
        check_goes_on(sweep, tmp_path)


def test_a_signal_to_ray_as_well_costs_no_finished_trial(sweep: Sweep, tmp_path: Path) -> None:
    """As the end of a container sends it: to every process at once.

    Ray's own code may end the driver before it has written its report: then it exits with another
    code, and only the journal stands.
    """
    life = sweep(tmp_path)
    assert life.until_lines(5), life.tail()
    life.send_to_all(signal.SIGTERM)
    code = life.wait(120)
    assert life.left(60.0) == [], life.tail()
    if code == 130:
        check_interrupted(tmp_path, code)
    check_goes_on(sweep, tmp_path)


def test_a_ray_whose_control_process_is_killed_ends_the_sweep_in_order(
    sweep: Sweep, tmp_path: Path
) -> None:
    """Also where the driver is inside Ray's own code, which ends it after a minute."""
    life = sweep(tmp_path)
    assert life.until_lines(5), life.tail()
    life.kill_program("gcs_server")
    code = life.wait(150)
    assert life.left(60.0) == [], life.tail()
    check_interrupted(tmp_path, code)
    ended = history(tmp_path).ended
    assert ended is not None
    assert ended.reason == "Ray's gcs_server ended under the sweep"
    check_goes_on(sweep, tmp_path)


def test_a_second_signal_ends_at_once(sweep: Sweep, tmp_path: Path) -> None:
    life = sweep(tmp_path)
    assert life.until_lines(5), life.tail()
    began_s = time.monotonic()
    for _ in range(2):
        life.send(signal.SIGINT)
        time.sleep(0.3)
    assert life.wait(60) == 130
    assert time.monotonic() - began_s < 30.0
    assert life.left(60.0) == []
    kept = history(tmp_path)
    finished = Counter(record.request.id for record in kept.records)
    assert set(finished.values()) == {1}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that a test may fill."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the right to mount a small tmpfs: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(folder: Path) -> Path:
    """Writes until there is no room, to the last byte; returns the file."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (2**20, 2**12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return ballast


def test_a_full_disk_ends_the_sweep_in_words_and_it_goes_on_once_there_is_room(
    sweep: Sweep, small_disk: Path, tmp_path: Path
) -> None:
    uri = f"tracking.uri=sqlite:///{tmp_path}/mlflow.db"
    life = sweep(small_disk, uri)
    assert life.until_lines(6), life.tail()
    ballast = fill(small_disk)
    assert life.wait(120) == 1
    assert life.left() == []
    ballast.unlink()
    kept = len(history(small_disk).records)
    assert kept >= 1
    check_goes_on(sweep, small_disk, uri)


def send_the_rest(folder: Path) -> None:
    """Runs the command that the sweep prints for what it could not deliver."""
    journal = result_folder(folder) / "journal.jsonl"
    command = [sys.executable, "-m", "lf_ray.record", "rebuild", str(journal)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_tracking_server_that_is_killed_and_comes_back_gets_everything(
    sweep: Sweep, tmp_path: Path
) -> None:
    server = TrackingServer(tmp_path, free_port())
    server.start()
    try:
        life = sweep(tmp_path, f"tracking.uri={server.uri}", sessions={"base_s": 0.02})
        assert life.until_lines(4), life.tail()
        server.kill()
        assert life.until(lambda: "is away" in life.tail()), life.tail()
        server.start()
        came_back_s = time.time()
        assert life.wait() == 0, life.tail()
        assert life.left() == []
        ended = history(tmp_path).ended
        assert ended is not None
        if "were not delivered" in life.tail():
            # On a busy machine the server is up again only once the sweep is about to end.
            assert came_back_s > ended.wall_s - 20.0, life.tail()
            send_the_rest(tmp_path)
    finally:
        server.kill()
    kept = history(tmp_path)
    assert {record.outcome.kind for record in kept.records} == {OutcomeKind.COMPLETED}
    with sqlite3.connect(tmp_path / "server.db") as connection:
        rows = connection.execute("select name, status from runs").fetchall()
    assert len(rows) == 1 + len({request.id for request in kept.started})
    assert {status for _, status in rows} == {"FINISHED"}
