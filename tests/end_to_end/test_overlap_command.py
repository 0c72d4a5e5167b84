"""`python sweeps/overlap.py` as a person runs it: real Ray, Optuna, MLflow, video and workers."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lf_ray.compose import compose
from lf_ray.machine import Machine
from lf_ray.record.journal import read_journal

ROOT = Path(__file__).resolve().parents[2]
LAPTOP = Machine(num_cores=2, memory_bytes=2**34, shm_bytes=2**33)


def _run(folder: Path, *words: str, timeout_s: float = 400) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "sweeps" / "overlap.py"), *words]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )


def _result_folder(folder: Path) -> Path:
    (found,) = (folder / "outputs" / "overlap").iterdir()
    return found


def _mlflow_runs(database: Path) -> list[tuple[str, str]]:
    with sqlite3.connect(database) as connection:
        rows: list[Any] = connection.execute("select name, status from runs").fetchall()
    return [(str(name), str(status)) for name, status in rows]


def _check_result(
    folder: Path, done: subprocess.CompletedProcess[str], num_trials: Sequence[int]
) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    result = _result_folder(folder)
    for name in ("journal.jsonl", "study.db", "best.yaml", "knee.yaml", "report.html", "report.md"):
        assert (result / name).stat().st_size > 0, name
    assert list((result / "figures").glob("*.svg"))
    summary = json.loads((result / "summary.json").read_text())
    history = read_journal(result / "journal.jsonl")
    assert history.num_trials in num_trials
    assert sum(summary["outcomes"].values()) == history.num_trials
    assert history.ended is not None
    assert not history.unfinished
    assert history.records[0].gate is not None
    assert history.records[0].gate.passed
    for name in ("best.yaml", "knee.yaml"):
        config = compose("train", ["--config", str(result / name)], LAPTOP)
        assert config.model.size == "nano"
    runs = _mlflow_runs(folder / "mlflow.db")
    assert {status for _, status in runs} <= {"FINISHED", "FAILED", "KILLED"}
    # The sweep itself, its trials, and what was measured again or on a slice.
    assert len(runs) == 1 + len({request.id for request in history.started})
    assert "Report:" in done.stdout
    assert "lf_ray.train --config" in done.stdout


@pytest.mark.timeout(420)
def test_a_short_sweep_on_the_sample_set_gives_an_answer(tmp_path: Path) -> None:
    words = ("sweep.trials=3", "sweep.minutes=0.7", "measure.max_s=3", "batch.per_gpu=1")
    done = _run(tmp_path, *words)
    # A machine that is slow or busy may reach sweep.minutes before the third trial.
    _check_result(tmp_path, done, num_trials=(1, 2, 3))
    assert "ray::" not in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.night
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sweep_on_real_robot_data_gives_an_answer(tmp_path: Path, gr1_path: Path) -> None:
    done = _run(tmp_path, f"data.path={gr1_path}", "sweep.trials=4", timeout_s=880)
    _check_result(tmp_path, done, num_trials=(4,))


def test_a_wrong_word_ends_at_once_with_what_is_right(tmp_path: Path) -> None:
    done = _run(tmp_path, "overlap.bucket_size=64")
    assert done.returncode == 2
    assert "overlap.bucket_size_mb" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "outputs").exists()
