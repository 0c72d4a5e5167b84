"""The data benchmark: its last line is what issue and report read."""

import json
from pathlib import Path
from typing import Any

import pytest

from lf_ray.bench.data import main
from lf_ray.data.sample_set import SampleSetShape, render_sample_set


def last_line(output: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(output.splitlines()[-1])
    return value


def test_the_last_line_is_json_with_both_ratios(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "set"
    render_sample_set(root, SampleSetShape(num_episodes=2, num_frames=40, side_px=32))
    options = ["--model", "nano", "--workers", "0", "--rounds", "1", "--seconds", "0.3"]
    assert main([str(root), *options]) == 0
    numbers = last_line(capsys.readouterr().out)
    assert numbers["ratio_warm"] > 0
    # One turn, one worker count: nothing that the ratio could scatter by.
    assert numbers["ratio_warm_span"] == [numbers["ratio_warm"]] * 2
    assert numbers["ratio_cold"] > 0
    assert numbers["warm_samples_s_core"] > 0


def test_data_that_can_not_be_trained_on_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "data.path" in capsys.readouterr().err


@pytest.mark.slow
def test_the_real_set_reaches_the_targets(
    gr1_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(gr1_path), "--workers", "0", "--rounds", "1", "--seconds", "3"]) == 0
    numbers = last_line(capsys.readouterr().out)
    assert numbers["ratio_warm"] >= 5
    assert numbers["ratio_cold"] >= 2
    assert numbers["warm_samples_s_core"] >= 1500
