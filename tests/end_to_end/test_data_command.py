"""`python sweeps/data.py` as a person runs it: real Ray and video, frames that are broken."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from lf_ray.data.sample_set import SampleSetShape, render_sample_set
from lf_ray.data.video import VideoReader, write_video
from lf_ray.record.journal import read_journal

ROOT = Path(__file__).resolve().parents[2]
VIDEO = "videos/chunk-000/observation.images.front/episode_000001.mp4"
pytestmark = [pytest.mark.slow, pytest.mark.night, pytest.mark.timeout(600)]


@pytest.fixture
def broken_set(tmp_path: Path) -> Path:
    """Three episodes; the video of the second is broken in its middle."""
    root = tmp_path / "set"
    render_sample_set(root, SampleSetShape(num_episodes=3, num_frames=24, side_px=32))
    path = root / VIDEO
    with VideoReader(path) as reader:
        frames = [frame for _, frame in reader.decode(0, 23, reader.size)]
    write_video(path, frames, 20.0, group_frames=4)
    data = bytearray(path.read_bytes())
    middle = data.find(b"mdat") + (data.find(b"moov") - data.find(b"mdat")) // 2
    data[middle : middle + 40] = b"\xff" * 40
    path.write_bytes(data)
    return root


def test_the_input_paths_sweep_ends_in_words_and_counts_what_it_skipped(
    broken_set: Path, tmp_path: Path
) -> None:
    words = [
        *("data=lerobot", f"data.path={broken_set}", f"data.cache_dir={tmp_path / 'cache'}"),
        *("data.skip_corrupt=true", "data.step_s=0.02", "sweep.trials=2"),
    ]
    done = subprocess.run(
        [sys.executable, str(ROOT / "sweeps" / "data.py"), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a step of 20 ms" in done.stdout
    assert "Next:    python sweeps/overlap.py data.workers=" in done.stdout
    assert "samples were skipped" in done.stdout
    (folder,) = (tmp_path / "outputs" / "data").iterdir()
    baseline = read_journal(folder / "journal.jsonl").records[0]
    assert baseline.outcome.effective["data_cache"] == "whole"
    assert baseline.metrics["samples_skipped"] > 0
    assert all("episode_000001.mp4" in frame for frame in baseline.bad_frames)
    assert "samples were skipped" in (folder / "report.md").read_text()
    assert json.loads((folder / "summary.json").read_text())["sweep"] == "data"
    with sqlite3.connect(tmp_path / "mlflow.db") as connection:
        rows = connection.execute("select value from metrics where key = 'samples_skipped'")
        assert min(value for (value,) in rows.fetchall()) > 0
