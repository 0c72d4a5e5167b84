"""`python sweeps/overlap.py trainer=loongforge` as a person runs it, on the stand-in program."""

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import ray

from lf_ray.compose import compose
from lf_ray.machine import Machine
from lf_ray.protocol import Budget, OutcomeKind, Purpose, TrialRecord, TrialRequest
from lf_ray.record.journal import read_journal
from lf_ray.settings import knobs_of
from lf_ray.trial.cluster import start_cluster, stop_cluster
from lf_ray.trial.launch import session_maker
from lf_ray.trial.workers import GroupPlan, close_owner, start_owner

ROOT = Path(__file__).resolve().parents[2]
LAPTOP = Machine(num_cores=2, memory_bytes=2**34, shm_bytes=2**33)


def _run(
    folder: Path, *words: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "sweeps" / "overlap.py"), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "COLUMNS": "200", **(environment or {})},
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_sweep_ends_in_the_same_report(loongforge_words: list[str], tmp_path: Path) -> None:
    words = ["graph.scope=step", "sweep.trials=4", "sweep.minutes=1.5", "measure.max_s=4"]
    # The baseline does not fit, so the sweep goes on from half of its batch.
    fault = {"STAND_IN_FAULT": "oom@6:1", "STAND_IN_FAULT_BATCH": "4"}
    done = _run(tmp_path, *loongforge_words, *words, environment=fault)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    (result,) = (tmp_path / "outputs" / "overlap").iterdir()
    for name in ("best.yaml", "report.html", "report.md", "summary.json"):
        assert (result / name).stat().st_size > 0, name
    history = read_journal(result / "journal.jsonl")
    assert history.num_trials == 4
    assert {float(item.knobs["overlap.ratio"]) for item in history.started} <= {0.0, 1.0}
    assert history.header.data_id.startswith("loongforge-")
    first = history.records[0].outcome
    assert (first.kind, first.error_kind) == (OutcomeKind.INFEASIBLE, "oom")
    assert "Tried to allocate 2.00 GiB" in first.reason
    done_records = [r for r in history.records if r.outcome.kind is OutcomeKind.COMPLETED]
    assert done_records
    assert all(r.outcome.effective["trainer"] == "loongforge" for r in done_records)
    assert not any(r.outcome.group_lost for r in history.records)
    assert not any(r.outcome.costs_s.get("restart") for r in history.records[1:])
    assert len(json.loads((result / "summary.json").read_text())["outcomes"]) >= 1
    # One folder for each visit: the group stayed, its children did not.
    assert len(list((result / "loongforge").iterdir())) >= len(history.records)


@pytest.mark.slow
@pytest.mark.night
def test_gpus_are_for_the_children(loongforge_words: list[str], tmp_path: Path) -> None:
    # Ray believes what it is told of GPUs; the stand-in needs none.
    config = compose("overlap", loongforge_words, LAPTOP)
    config.cluster.device = "cuda"
    request = TrialRequest(
        id="t000",
        knobs=knobs_of(config),
        seed=1,
        purpose=Purpose.BASELINE,
        budget=Budget(max_steps=40, max_s=4.0, target_frac=0.3),
    )
    cluster = start_cluster(config, tmp_path / "ray")
    plan = GroupPlan(
        config=config,
        folder=tmp_path / "ray",
        make_session=session_maker(config, tmp_path),
        gpu_in_child=True,
    )
    owner = start_owner(plan)
    try:
        answer = ray.get(owner.submit.remote(request.to_json()), timeout=100)
        record = TrialRecord.from_json(answer)
        assert ray.available_resources().get("GPU", 0) == 0
    finally:
        close_owner(owner)
        assert stop_cluster(cluster) == []
    assert record.outcome.kind is OutcomeKind.COMPLETED, record.outcome.reason
    logs = sorted((tmp_path / "loongforge").glob("*/rank*.log"))
    assert [path.read_text().split("\n")[0] for path in logs] == ["sees 0,1"] * 2


def test_what_loongforge_lacks_ends_at_once(
    loongforge_words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [*loongforge_words, "graph.scope=step", "loongforge.path=nowhere"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["overlap.py", *words])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "sweeps" / "overlap.py"), run_name="__main__")
    assert end.value.code == 2
    assert "loongforge.path=DIR" in capsys.readouterr().err
    assert not list((tmp_path / "outputs").glob("overlap/*"))
