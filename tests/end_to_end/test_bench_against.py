"""`bench step --against loongforge` as a person runs it, LoongForge stood in for by a program."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lf_ray.bench.__main__ import main
from lf_ray.data.sample_set import SampleSetShape, render_sample_set

ROOT = Path(__file__).resolve().parents[2]


def _words(loongforge_words: list[str], tmp_path: Path) -> list[str]:
    data = tmp_path / "frames"
    render_sample_set(data, SampleSetShape(num_episodes=2, num_frames=40, side_px=32))
    kept = ("cluster=", "measure=", "loongforge.python=")
    return [*(w for w in loongforge_words if w.startswith(kept)), f"data.path={data}"]


def _run(tmp_path: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lf_ray.bench", "step", "--against", "loongforge", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_run_gives_both_and_their_ratio(loongforge_words: list[str], tmp_path: Path) -> None:
    words = _words(loongforge_words, tmp_path)
    done = _run(
        tmp_path,
        *("--modes", "eager", "--batches", "2", "--steps", "16", "--rounds", "2"),
        *words,
        LOONGFORGE_PATH=str(tmp_path / "checkout"),
        EAGLE_LOCAL_PATH=str(tmp_path / "eagle-processor"),
    )
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    ours, theirs = said["rows"]
    assert (ours["mode"], theirs["mode"]) == ("eager", "loongforge")
    # On a busy machine a visit may not settle: then that is what is said.
    for row in (ours, theirs):
        assert ("samples_per_s" in row) or "not settled" in row["error"]
    if done.returncode == 0:
        share = ours["ratio"]
        assert share["lo"] < share["value"] < share["hi"]
        assert ours["verdict"] in ("faster", "slower", "undetermined")
        assert "x LoongForge (95 %:" in done.stdout


def test_what_is_missing_is_said_before_anything_starts(
    loongforge_words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = _words(loongforge_words, tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("LOONGFORGE_PATH", "EAGLE_LOCAL_PATH"):
        monkeypatch.setenv(name, "")
    assert main(["step", "--against", "loongforge", *words]) == 2
    assert "loongforge.path=DIR" in capsys.readouterr().err
