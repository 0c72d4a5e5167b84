"""A whole sweep mirrored to a real SQLite database: live, again, resumed and rebuilt."""

import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lf_ray.analysis.comparison import load_mlflow
from lf_ray.analysis.report.folder import write_result
from lf_ray.protocol import TrialRecord, TrialRequest
from lf_ray.record.__main__ import main
from lf_ray.record.events import JournalEvent
from lf_ray.record.history import read_journal
from lf_ray.record.mlflow_sink import SPOOL_NAME, MlflowSink, replay

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # MLflow's own deprecations are not ours
    pytest.mark.timeout(240),
]
Journals = Callable[..., Path]
Database = Callable[[Path], str]
MAKER = Path(__file__).resolve().parents[1] / "data" / "make_journal.py"


@pytest.fixture(scope="module")
def seeded_journal(tmp_path_factory: pytest.TempPathFactory) -> Journals:
    """Returns a maker of whole simulated sweeps by case."""
    write_sweep = runpy.run_path(str(MAKER))["write_sweep"]
    folder = tmp_path_factory.mktemp("journals")

    def journal(case: str = "peaked") -> Path:
        path: Path = folder / case / "journal.jsonl"
        if not path.exists():
            write_sweep(path, case, 0)
        return path

    return journal


def tell(sink: MlflowSink, events: tuple[JournalEvent, ...], already: int = 0) -> None:
    """Plays a journal's events to a sink as a sweep would, the first `already` as a resume."""
    header = events[0].data
    sink.on_sweep(header, events[:already])
    for event in events[max(1, already) :]:
        if event.kind in ("started", "replicate"):
            sink.on_started(TrialRequest.from_json(event.data["request"]), "", None)
        elif event.kind == "finished":
            sink.on_finished(TrialRecord.from_json(event.data["record"]), None)
        elif event.kind == "ended":
            sink.on_ended(event.data["reason"], event.data["exit_code"], None)
        else:
            sink.on_note(event.kind)


def runs_of(uri: str, sweep: str = "overlap") -> dict[str, Any]:
    """Returns the runs by trial key; fails on a key that two runs have."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(sweep)
    assert experiment is not None
    found: dict[str, Any] = {}
    for run in client.search_runs([experiment.experiment_id], max_results=1000):
        key = run.data.tags["lf_ray.trial_key"].split("/", 1)[1]
        assert key not in found, f"two runs for {key}"
        found[key] = run
    return found


@pytest.fixture(scope="module")
def mirrored(
    seeded_journal: Journals, tmp_path_factory: pytest.TempPathFactory, mlflow_database: Database
) -> tuple[str, Path, Path]:
    folder = tmp_path_factory.mktemp("mirrored")
    uri = mlflow_database(folder / "mlflow.db")
    journal = seeded_journal("peaked")
    history = read_journal(journal)
    sink = MlflowSink(uri, folder)
    tell(sink, history.events)
    shutil.copy(journal, folder / "journal.jsonl")
    answer = write_result(folder, history, mlflow=sink.names(60.0))
    sink.add_result(answer, folder)
    sink.close(120.0)
    assert sink.warnings() == []
    return uri, folder, journal


def test_each_request_has_one_run_in_its_place(mirrored: tuple[str, Path, Path]) -> None:
    uri, folder, journal = mirrored
    runs = runs_of(uri)
    history = read_journal(journal)
    assert set(runs) == {"sweep", *(request.id for request in history.started)}
    parent = runs["sweep"].info.run_id
    direct = [k for k, r in runs.items() if r.data.tags.get("mlflow.parentRunId") == parent]
    assert len(direct) == history.num_trials
    nested = runs["t000r1"].data.tags["mlflow.parentRunId"]
    assert nested == runs["t000"].info.run_id
    assert {run.info.status for run in runs.values()} == {"FINISHED", "FAILED"}
    assert not (folder / SPOOL_NAME).exists()


def test_numbers_are_the_reports(mirrored: tuple[str, Path, Path]) -> None:
    runs = runs_of(mirrored[0])
    best = runs["t004"].data
    assert best.params["bucket_size_mb"] == "1"
    assert best.params["overlap_ratio"] == "0.8"
    assert best.params["run_effective.num_buckets"] == "40"
    assert (
        best.metrics["throughput_lo"] < best.metrics["throughput"] < best.metrics["throughput_hi"]
    )
    assert best.tags["outcome"] == "completed"
    assert best.tags["gate"] == "passed"
    assert runs["t005"].data.tags["reason"].startswith("rank 1 died")
    sweep = runs["sweep"].data
    assert sweep.metrics["gain"] == pytest.approx(1.32, abs=0.02)
    assert sweep.tags["best_trial"] == "t004"
    keys = {
        tuple(sorted(r.data.params)) for r in runs.values() if r.data.tags.get("gate") == "passed"
    }
    assert len(keys) == 1, "the Compare page needs the same keys everywhere"


def test_artifacts_lie_beside_the_database(mirrored: tuple[str, Path, Path]) -> None:
    uri, folder, _ = mirrored
    run = runs_of(uri)["sweep"]
    place = Path(run.info.artifact_uri.removeprefix("file://"))
    assert place.is_relative_to(folder / "mlartifacts")
    names = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    assert {"config.json", "report.html", "best.yaml", "figures/slices.svg"} <= names


def test_sweeps_can_be_read_back_from_mlflow(
    mirrored: tuple[str, Path, Path], tmp_path: Path
) -> None:
    (answer,) = load_mlflow(mirrored[0], tmp_path)
    assert answer.winner is not None
    assert answer.winner.id == "t004"


@pytest.mark.slow
def test_told_again_nothing_is_added(mirrored: tuple[str, Path, Path], tmp_path: Path) -> None:
    """A resumed sweep, whose first half is sent again by another process."""
    uri, _, journal = mirrored
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    before = runs_of(uri)
    points = len(client.get_metric_history(before["t004"].info.run_id, "throughput"))
    history = read_journal(journal)
    sink = MlflowSink(uri, tmp_path)
    tell(sink, history.events, already=40)
    sink.close(120.0)
    after = runs_of(uri)
    assert {k: r.info.run_id for k, r in before.items()} == {
        k: r.info.run_id for k, r in after.items()
    }
    assert len(client.get_metric_history(after["t004"].info.run_id, "throughput")) == points
    assert {run.info.status for run in after.values()} == {"FINISHED", "FAILED"}


def test_a_killed_sweep_leaves_no_run_running(
    seeded_journal: Journals, tmp_path: Path, mlflow_database: Database
) -> None:
    uri = mlflow_database(tmp_path / "mlflow.db")
    events = read_journal(seeded_journal("interrupted")).events
    started = [i for i, event in enumerate(events) if event.kind == "started"]
    cut = events[: started[3] + 1]  # the driver died inside the fourth trial
    sink = MlflowSink(uri, tmp_path)
    tell(sink, cut)
    sink.close(120.0)
    assert runs_of(uri)["t003"].info.status == "RUNNING"
    replay(cut, uri, tmp_path)
    runs = runs_of(uri)
    assert runs["t003"].info.status == runs["sweep"].info.status == "KILLED"
    assert "RUNNING" not in {run.info.status for run in runs.values()}


@pytest.mark.slow
def test_rebuild_makes_the_same_runs(
    mirrored: tuple[str, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live_uri, _, journal = mirrored
    uri = f"sqlite:///{tmp_path}/again.db"
    assert main(["rebuild", str(journal), "--uri", uri]) == 0
    assert "updates sent" in capsys.readouterr().out
    live, again = runs_of(live_uri), runs_of(uri)
    assert set(live) == set(again)
    for key in set(live) - {"sweep"}:
        assert live[key].data.params == again[key].data.params
        assert live[key].data.metrics == again[key].data.metrics
        assert live[key].info.status == again[key].info.status


def test_rebuild_refuses_what_it_cannot_use(
    seeded_journal: Journals, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = str(seeded_journal("no_baseline"))
    assert main(["rebuild", str(tmp_path / "no.jsonl")]) == 2
    assert "result folder holds journal.jsonl" in capsys.readouterr().err
    assert main(["rebuild", journal, "--uri", "./mlruns"]) == 2
    assert "sqlite:///mlflow.db" in capsys.readouterr().err
    assert main(["rebuild", journal, "--uri", "http://127.0.0.1:9"]) == 1
    assert "Start the server" in capsys.readouterr().err


def test_a_retry_with_other_effective_values_keeps_both(
    tmp_path: Path, mlflow_database: Database
) -> None:
    """Parameters are written once; what a second attempt changed becomes a tag."""
    from lf_ray.record.mirror.updates import RunUpdate
    from lf_ray.record.mlflow_sink import MlflowRuns

    uri = mlflow_database(tmp_path / "mlflow.db")
    runs = MlflowRuns(uri, "retry", "s1")
    runs.apply(RunUpdate(key="t001", name="t001", params={"effective.batch": "8"}))
    runs.apply(RunUpdate(key="t001", params={"effective.batch": "4", "new": "1"}))
    data = runs_of(uri, "retry")["t001"].data
    assert data.params == {"effective.batch": "8", "new": "1"}
    assert data.tags["retry.effective.batch"] == "4"
