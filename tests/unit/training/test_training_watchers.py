"""What is shown of a training, and what MLflow is told of it."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from lf_ray.clock import FakeClock
from lf_ray.record.mirror.updates import RunUpdate
from lf_ray.training.books import Line
from lf_ray.training.mirror import KEY, TrainingMirror
from lf_ray.training.progress import Progress, Standing

STARTED: Line = {
    "event": "started",
    "step": 0,
    "samples_per_step": 8,
    "num_steps": 100,
    "checkpoint": "",
}
ERROR: Line = {
    "event": "action_error",
    "step": 100,
    "scaled": 0.05,
    "scaled_lo": 0.02,
    "scaled_hi": 0.08,
    "by_group": {"arm": 0.01},
    "by_group_ends": {"arm": [0.004, 0.016]},
    "num_samples": 64,
    "num_episodes": 2,
    "held_out": True,
}


def step(number: int, loss: Any = 0.5, wait_s: float = 0.0) -> Line:
    return {
        "event": "step",
        "step": number,
        "loss": loss,
        "grad_norm": 1.0,
        "lr": 1e-4,
        "step_s": 0.2,
        "wait_s": wait_s,
    }


def test_a_standing_knows_speed_and_time_left() -> None:
    standing = Standing(100, 8)
    assert standing.words() == "step 0/100"
    standing.take(STARTED)
    for number in range(40):
        standing.take(step(number, wait_s=0.05))
    assert standing.throughput == pytest.approx(40.0)
    assert standing.left_s == pytest.approx(12.0)
    assert standing.words() == (
        "step 40/100  loss 0.5  lr 1.00e-04  40 samples/s  data wait 25%  0:12 left"
    )
    again = {**STARTED, "step": 20, "checkpoint": "step-00000020"}
    assert standing.take(again) == "going on from step-00000020"
    assert (standing.step, standing.throughput, standing.num_starts) == (20, None, 2)
    failed = standing.take({"event": "save_failed", "step": 20, "error": "disk full"})
    assert "CHECKPOINT OF STEP 20 NOT WRITTEN: disk full" in failed
    said = standing.take(ERROR)
    assert "64 samples of 2 held-out episodes): 0.05 normalised (95 %: 0.02 to 0.08);" in said
    assert said.endswith("arm 0.01 (95 %: 0.004 to 0.016)")
    alone: Line = {**ERROR, "num_episodes": 1, "by_group_ends": {"arm": [None, None]}}
    said = standing.take({**alone, "scaled_lo": None, "scaled_hi": None})
    assert said.endswith(
        "0.05 normalised; in the robot's units: arm 0.01; one episode gives no interval"
    )
    assert "not measured: x" in standing.take({"event": "action_error", "step": 1, "error": "x"})


def test_plain_lines_come_now_and_then_and_notes_at_once() -> None:
    stream, clock = io.StringIO(), FakeClock()
    with Progress("train t", Standing(100, 8), stream, clock) as progress:
        progress.take([STARTED, step(0)])
        clock.sleep(5)
        progress.take([step(1)])
        progress.note("lost: rank 1")
        clock.sleep(6)
        progress.take([step(2)])
    lines = stream.getvalue().splitlines()
    assert lines[0] == "lost: rank 1"
    assert lines[1].startswith("step 3/100")
    assert len(lines) == 2


def test_a_terminal_gets_a_block_that_stays_at_the_end() -> None:
    stream = io.StringIO()
    progress = Progress("train t", Standing(100, 8), stream, FakeClock(), terminal=True)
    with progress:
        progress.take([STARTED, step(49)])
        progress.note("checkpoint of step 40 written")
    shown = stream.getvalue()
    assert "train t" in shown
    assert "step 50/100" in shown
    assert "checkpoint of step 40 written" in shown


class _Runs:
    """Takes updates instead of MLflow."""

    def __init__(self) -> None:
        self.updates: list[RunUpdate] = []

    def apply(self, update: RunUpdate) -> None:
        self.updates.append(update)


def test_a_mirror_sends_means_and_ends_the_run(tmp_path: Path) -> None:
    clock = FakeClock()
    mirror = TrainingMirror("sqlite:///x.db", tmp_path, clock, notify=print)
    runs = _Runs()
    mirror._runs = runs  # type: ignore[assignment]
    summary = tmp_path / "summary.json"
    summary.write_text("{}")
    config = {"model": {"size": "nano"}, "cluster": {"workers": 2}, "train": {"lr": 1e-3}}
    mirror.begin(config, {"overlap.bucket_size_mb": 8.0}, {"gpu": "none"})
    mirror.take([STARTED])
    for number in range(10):
        clock.sleep(1.0)
        mirror.take([step(number, loss=float(number))])
    mirror.take([step(10, loss="nan"), ERROR])
    mirror.end(130, {"outcome": "completed"}, [summary, tmp_path / "none.json"])
    assert mirror.close() == []
    first, *_, last = runs.updates
    assert {update.key for update in runs.updates} == {KEY}
    assert first.params["bucket_size_mb"] == "8"
    assert first.tags["lf_ray.purpose"] == "train"
    assert json.loads(first.texts["config.json"]) == config
    assert (last.status, last.files) == ("KILLED", (str(summary),))
    points = [point for update in runs.updates for point in update.metrics]
    losses = [(point.step, point.value) for point in points if point.name == "loss"]
    assert losses == [(4, 2.0), (9, 7.0)]
    assert {point.value for point in points if point.name == "throughput"} == {40.0}
    errors = {p.name: p.value for p in points if p.name.startswith("action_error")}
    assert errors == {"action_error": 0.05, "action_error_lo": 0.02, "action_error_hi": 0.08}
    assert any("non_finite.loss" in update.tags for update in runs.updates)
