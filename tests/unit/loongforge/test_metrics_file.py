"""metrics.jsonl read while it grows, and its throughput against the wall clock's."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from lf_ray.errors import TrainerError
from lf_ray.loongforge.metrics_file import MetricsFile, Step, compared_with_wall
from lf_ray.protocol import OutcomeKind, Purpose, TrialOutcome, TrialRecord, TrialRequest
from lf_ray.trial.ranks.outside import with_mismatch


def _line(step: int) -> str:
    values = {"step_time": 0.1, "step": step, "action_loss": 1.0, "samples_per_sec": 40.0}
    return json.dumps(values | {"consumed_samples": 8 * step, "lr": 1e-4}) + "\n"


def test_a_torn_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path)
    assert metrics.read() == 0
    path.write_text(_line(1) + _line(2) + _line(3)[:20])
    assert metrics.read() == 2
    assert [step.written_s for step in metrics.steps] == [None, None]
    with path.open("a") as file:
        file.write(_line(3)[20:])
    os.utime(path, (50.0, 50.0))
    assert metrics.read() == 1
    assert metrics.steps[-1].consumed_samples == 24
    assert metrics.steps[-1].written_s == 50.0


def test_a_line_of_another_shape_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    with pytest.raises(TrainerError, match="step_time"):
        MetricsFile(path).read()


def _steps(apart_s: float) -> list[Step]:
    return [
        Step(
            step_s=0.1,
            loss=1.0,
            grad_norm=1.0,
            lr=1e-4,
            samples_per_s_gpu=40.0,
            consumed_samples=8 * number,
            num_skipped=0,
            written_s=100.0 + number * apart_s,
        )
        for number in range(1, 21)
    ]


def test_samples_of_all_gpus_are_compared_with_the_wall_clock() -> None:
    found = compared_with_wall(_steps(0.1), world_size=2, skipped=4)
    assert found["trainer_samples_per_s"] == pytest.approx(80.0)
    assert found["wall_mismatch_frac"] == pytest.approx(0.0, abs=1e-6)
    late = compared_with_wall(_steps(0.12), world_size=2, skipped=4)
    assert late["wall_samples_per_s"] == pytest.approx(8 / 0.12)
    assert late["wall_mismatch_frac"] == pytest.approx(0.2)
    undated = [replace(step, written_s=None) for step in _steps(0.1)]
    assert compared_with_wall(undated, world_size=2, skipped=4) == {}


@pytest.mark.parametrize(("apart_s", "said"), [(0.104, False), (0.106, True)])
def test_more_than_a_twentieth_is_said_in_the_record(apart_s: float, said: bool) -> None:
    request = TrialRequest(id="t000", knobs={}, seed=0, purpose=Purpose.SEARCH)
    record = TrialRecord(
        request=request,
        outcome=TrialOutcome(kind=OutcomeKind.COMPLETED),
        metrics=compared_with_wall(_steps(apart_s), world_size=2, skipped=4),
    )
    assert ("the wall clock 75.5" in with_mismatch(record).outcome.reason) is said
