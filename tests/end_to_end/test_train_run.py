"""A training on Ray's workers, through everything that may happen to it."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lf_ray.machine import child_pids
from lf_ray.training.books import Line, read_books, steps_of
from lf_ray.training.checkpoint.folder import complete_checkpoints

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = [
    "model=nano",
    "cluster=cpu",
    "train.max_steps=60",
    "train.save_every=10",
    "graph.scope=step+optimizer",
    "pipeline.prefix=on",
]

# What a sweep on another machine may have said: no step here is as fast as it promises.
FOUND = {
    "kind": "best",
    "sweep": "overlap",
    "id": "s1",
    "model": "nano",
    "world_size": 2,
    "device": "cpu",
    "throughput_samples_per_s": {
        "value": 5000.0,
        "lo": 4990.0,
        "hi": 5010.0,
        "num_steps": 40,
        "num_visits": 2,
    },
}


class Trainings:
    """Runs `python -m lf_ray.train` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = f"data.cache_dir={folder / 'cache'}"

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "lf_ray.train", *words]

    def start(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.command(*words),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )

    def run(self, *words: str) -> tuple[int, str]:
        process = self.start(*words)
        try:
            out, _ = process.communicate(timeout=700)
        finally:
            process.kill()
        return process.returncode, out

    def results(self) -> list[Path]:
        return sorted(path.parent for path in self.folder.glob("outputs/train/*/config.yaml"))


@pytest.fixture
def trainings(tmp_path: Path) -> Trainings:
    return Trainings(tmp_path)


def until(
    process: "subprocess.Popen[str]",
    books: Callable[[], list[Line]],
    ready: Callable[[list[Line]], bool],
    within_s: float = 300.0,
) -> list[Line]:
    ends_s = time.monotonic() + within_s
    while time.monotonic() < ends_s:
        lines = books()
        if ready(lines):
            return lines
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    raise AssertionError(f"not within {within_s} s: {books()[-3:]}")


def workers_of(process: "subprocess.Popen[str]") -> list[int]:
    found = []
    for pid in child_pids(process.pid):
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
        except OSError:
            continue
        if title.startswith("ray::") and "TrainWorker" in title:
            found.append(pid)
    return found


def numbers(lines: list[Line]) -> list[tuple[Any, ...]]:
    return [(item["step"], item["loss"], item["grad_norm"], item["lr"]) for item in steps_of(lines)]


def test_a_killed_rank_a_sigterm_and_a_resume_change_no_number(trainings: Trainings) -> None:
    process = trainings.start(*SETTINGS, trainings.cache)
    try:
        known: list[Path] = []

        def books() -> list[Line]:
            known[:] = trainings.results()
            return read_books(known[0] / "train.jsonl") if known else []

        until(process, books, lambda lines: any(item["step"] >= 12 for item in lines))
        os.kill(workers_of(process)[0], signal.SIGKILL)
        starts = until(
            process, books, lambda lines: sum(x["event"] == "started" for x in lines) == 2
        )
        assert [x["step"] for x in starts if x["event"] == "started"][1] in (10, 20, 30, 40, 50)
        until(process, books, lambda lines: lines[-1]["event"] == "step")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    folder = known[0]
    assert process.returncode == 130, out
    assert "lost: " in out
    assert f"Go on:   python -m lf_ray.train resume={folder.name}" in out
    stopped = steps_of(read_books(folder / "train.jsonl"))[-1]["step"] + 1
    assert complete_checkpoints(folder / "checkpoints")[-1].name == f"step-{stopped:08d}"
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["exit_code"], summary["steps"]) == (130, stopped)
    assert len(summary["losses"]) == 1

    refused, said = trainings.run(f"resume={folder.name}", "train.lr=0.5")
    assert refused == 2
    assert "train.lr 0.001 -> 0.5" in said
    code, out = trainings.run(f"resume={folder.name}")
    assert code == 0, out
    assert f"from step {stopped}" in out
    assert (folder / "export" / "model.safetensors.index.json").is_file()
    assert json.loads((folder / "summary.json").read_text())["action_error"]["held_out"]

    (trainings.folder / "best.yaml").write_text(yaml.safe_dump({"found": FOUND}))
    code, out = trainings.run("--config", "best.yaml", *SETTINGS, trainings.cache)
    assert code == 0, out
    straight = trainings.results()[-1]
    assert straight != folder
    assert "The configuration is stale" in out
    assert json.loads((straight / "summary.json").read_text())["canary"]["word"] == "stale"
    expected = numbers(read_books(straight / "train.jsonl"))
    assert len(expected) == 60
    assert numbers(read_books(folder / "train.jsonl")) == expected


@pytest.mark.night
def test_a_found_configuration_is_trained_watched_and_mirrored(trainings: Trainings) -> None:
    found = {**FOUND, "baseline_knobs": {"batch.per_gpu": 2, "batch.accumulation": 1}}
    best = {"batch": {"per_gpu": 4, "lr_rule": "linear"}, "overlap": {"ratio": 0.5}, "found": found}
    (trainings.folder / "best.yaml").write_text(yaml.safe_dump(best))
    words = ["--config", "best.yaml", "cluster=cpu", "train.max_samples=480", trainings.cache]
    code, out = trainings.run(*words, "train.lr=5e-4", "measure=publish")
    assert code == 0, out
    folder = trainings.results()[0]
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["steps"], summary["samples"]) == (60, 480)
    assert "lr 0.001 after" in out
    # Settled or not: no step is as fast as that promise, and it is said while training goes on.
    assert summary["canary"]["word"] == "stale"
    assert "The configuration is stale" in out
    assert "the sweep measured 5000" in out
    assert summary["export"]
    with sqlite3.connect(trainings.folder / "mlflow.db") as database:
        tags = dict(database.execute("select key, value from tags"))
        names = {name for (name,) in database.execute("select distinct key from metrics")}
        (status,) = database.execute("select status from runs").fetchone()
    assert (tags["found.id"], tags["lf_ray.purpose"], status) == ("s1", "train", "FINISHED")
    assert {"loss", "lr", "throughput", "action_error", "data_wait"} <= names
    predicted = subprocess.run(
        [sys.executable, "-m", "lf_ray.predict", f"model.weights={folder}", "--frame", "3"],
        cwd=trainings.folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert predicted.returncode == 0, predicted.stderr
    assert json.loads(predicted.stdout.splitlines()[-1])["actions"]
