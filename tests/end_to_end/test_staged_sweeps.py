"""Sweeps in stages as a person runs them: on simulated clusters in seconds, on the CPU for real."""

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lf_ray.compose import compose, read_found
from lf_ray.launch import Groups, Launch
from lf_ray.machine import Machine
from lf_ray.record.journal import read_journal
from lf_ray.search.command import EXIT_REFUSED, run_sweep
from lf_ray.settings import SweepConfig

ROOT = Path(__file__).resolve().parents[2]
LAPTOP = Machine(num_cores=2, memory_bytes=2**34, shm_bytes=2**33)
NAMED = ("fastest", "knee", "goodput", "best")


def _never_prepared(config: SweepConfig) -> str:
    raise AssertionError("a simulated sweep reads no data")


@contextmanager
def _never_opened(config: SweepConfig, folder: Path) -> Iterator[Groups]:
    raise AssertionError("a simulated sweep starts no workers")
    yield


LAUNCH = Launch(prepare_data=_never_prepared, open_groups=_never_opened)


def simulated(name: str, *words: str) -> tuple[Path, dict[str, Any]]:
    """Runs a sweep script's stages on a simulated cluster; returns its folder and summary."""
    stages = runpy.run_path(str(ROOT / "sweeps" / f"{name}.py"))["STAGES"]
    assert run_sweep(name, stages, list(words), LAUNCH, machine=LAPTOP) == 0
    result = max((Path("outputs") / name).iterdir())
    return result, json.loads((result / "summary.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_joint_says_of_every_stage_what_it_gained_and_whether_the_gains_multiply(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("cluster=sim_8xh200", "measure=smoke", "sweep.trials=9")
    result, summary = simulated("joint", *words)
    said = capsys.readouterr().out
    assert [stage["stage"] for stage in summary["stages"]] == [
        "memory",
        "graph",
        "overlap",
        "batch",
    ]
    assert summary["together"]["verdict"] in ("multiply", "less", "more", "undetermined")
    product, joint = summary["together"]["product"], summary["together"]["joint"]
    assert product["lo"] < product["value"] < product["hi"]
    assert joint["value"] > 1.2  # capture alone is worth that much on this profile
    assert "Do the gains multiply?" in said
    report = (result / "report.md").read_text()
    for text in ("## Stages", "## Do the gains multiply?", "product of the single gains"):
        assert text in report
    assert "Do the gains multiply?" in (result / "report.html").read_text()
    assert sum(summary["outcomes"].values()) == 9
    assert summary["converges"]["verdict"] in ("not checked", "not needed")
    assert compose("train", ["--config", str(result / "best.yaml")], LAPTOP).model.size == "3b"


@pytest.mark.slow
@pytest.mark.night
@pytest.mark.timeout(400)
def test_an_interrupted_joint_sweep_goes_on_from_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("cluster=sim_8xh200", "measure=smoke", "sweep.trials=8")
    result, summary = simulated("joint", *words)
    journal = result / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[: len(lines) // 2]))
    began = [request.id for request in read_journal(journal).started]
    _, again = simulated("joint", *words, f"resume={result.name}")
    started = [request.id for request in read_journal(journal).started]
    assert started[: len(began)] == began
    assert len(set(started)) >= len(started) - 1  # at most the one that was under way
    assert again["stages"][1]["changed"] == summary["stages"][1]["changed"]
    assert again["together"]["singles"].keys() == summary["together"]["singles"].keys()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_batch_lr_leaves_three_named_points_that_compose_back(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    mlflow_database: Callable[[Path], str],
) -> None:
    monkeypatch.chdir(tmp_path)
    mlflow_database(tmp_path / "mlflow.db")
    words = ("cluster=sim_2xh200", "measure=smoke", "sweep.trials=6", "measure.converge_s=1e6")
    result, summary = simulated("batch_lr", *words)
    said = capsys.readouterr().out
    assert set(summary["named"]) == {"fastest", "knee", "goodput"}
    assert 1000 < summary["noise_scale"]["value"] < 4000  # 2000 is simulated
    for name in NAMED:
        path = str(result / f"{name}.yaml")
        config = compose("train", ["--config", path], LAPTOP)
        assert read_found(path)["kind"] == name
        knobs = summary["named"].get(name, summary["best"])["knobs"]
        assert config.batch.per_gpu == knobs["batch.per_gpu"]
        assert config.batch.accumulation == knobs["batch.accumulation"]
        assert config.batch.lr_rule.value == knobs["batch.lr_rule"]
    assert summary["best"]["knobs"] == summary["named"]["goodput"]["knobs"]
    history = read_journal(result / "journal.jsonl")
    runs = [record for record in history.records if record.request.run_samples]
    assert {r.request.knobs["batch.lr_rule"] for r in runs} == {"linear", "sqrt", "none"}
    assert all(len(r.trace.loss) >= 500 for r in runs if r.trace)
    verdict = summary["converges"]["verdict"]
    assert verdict in ("passed", "undetermined", "not needed"), "what is advised was checked"
    assert "Gradient noise scale" in said
    assert "## Three points to choose from" in (result / "report.md").read_text()


def test_too_few_trials_for_the_stages_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stages = runpy.run_path(str(ROOT / "sweeps" / "joint.py"))["STAGES"]
    words = ["cluster=sim_8xh200", "sweep.trials=3"]
    assert run_sweep("joint", stages, words, LAUNCH, machine=LAPTOP) == EXIT_REFUSED
    assert "sweep.trials=8 or more" in capsys.readouterr().err


def _run(folder: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *script.split(), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )


def _result(folder: Path, name: str, done: subprocess.CompletedProcess[str]) -> Path:
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    (result,) = (folder / "outputs" / name).iterdir()
    return result


@pytest.mark.slow
@pytest.mark.night
@pytest.mark.timeout(600)
def test_joint_on_the_cpu(tmp_path: Path) -> None:
    words = ("sweep.trials=4", "sweep.minutes=3", "measure.max_s=4")
    done = _run(tmp_path, str(ROOT / "sweeps" / "joint.py"), *words)
    result = _result(tmp_path, "joint", done)
    summary = json.loads((result / "summary.json").read_text())
    statuses = {stage["stage"]: stage["status"] for stage in summary["stages"]}
    assert (statuses["memory"], statuses["graph"]) == ("dead", "dead")
    assert "emulated" in done.stdout
    assert "Do the gains multiply?" in done.stdout
    assert compose("train", ["--config", str(result / "best.yaml")], LAPTOP).model.size == "nano"


@pytest.mark.slow
@pytest.mark.night
@pytest.mark.timeout(600)
def test_batch_lr_on_the_cpu_and_a_training_with_what_it_found(tmp_path: Path) -> None:
    words = ("sweep.trials=3", "sweep.minutes=4", "measure.max_s=4", "measure.converge_s=30")
    done = _run(tmp_path, str(ROOT / "sweeps" / "batch_lr.py"), *words)
    result = _result(tmp_path, "batch_lr", done)
    history = read_journal(result / "journal.jsonl")
    assert any("noise_signal" in record.metrics for record in history.records)
    assert any(record.outcome.costs_s.get("noise") for record in history.records)
    for name in NAMED:
        assert (result / f"{name}.yaml").stat().st_size > 0
    trained = _run(
        tmp_path,
        "-m lf_ray.train",
        *("--config", str(result / "goodput.yaml"), "train.max_steps=3", "train.save_every=0"),
    )
    assert trained.returncode == 0, trained.stdout + trained.stderr


@pytest.mark.slow
@pytest.mark.night
@pytest.mark.timeout(600)
def test_batch_lr_on_loongforge_ends_in_the_same_report(
    loongforge_words: list[str], tmp_path: Path
) -> None:
    words = ("graph.scope=step", "sweep.trials=3", "sweep.minutes=4", "measure.max_s=3")
    script = str(ROOT / "sweeps" / "batch_lr.py")
    done = _run(tmp_path, script, *loongforge_words, *words, "measure.converge_s=20")
    result = _result(tmp_path, "batch_lr", done)
    summary = json.loads((result / "summary.json").read_text())
    assert summary["noise_scale"] is None
    assert summary["named"]["goodput"]["knobs"]["batch.per_gpu"] == 4
    assert "noise scale is not known" in summary["named"]["goodput"]["note"]
    for name in NAMED:
        config = compose("train", ["--config", str(result / f"{name}.yaml")], LAPTOP)
        assert config.trainer.value == "loongforge"
