"""A tracking server that is away: at start, in mid-sweep, for ever, or deaf. Nothing is lost."""

import runpy
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lf_ray.protocol import TrialRecord, TrialRequest
from lf_ray.record.events import JournalEvent
from lf_ray.record.history import SweepHistory, read_journal
from lf_ray.record.mlflow_sink import SPOOL_NAME, MlflowSink, replay
from lf_ray.testing.tracking_server import TrackingServer, free_port

pytestmark = [
    pytest.mark.filterwarnings("default"),  # MLflow's own deprecations are not ours
    pytest.mark.timeout(600),
]
MAKER = Path(__file__).resolve().parents[1] / "data" / "make_journal.py"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> SweepHistory:
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    runpy.run_path(str(MAKER))["write_sweep"](path, "interrupted", 0)
    return read_journal(path)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def server(tmp_path: Path, port: int) -> Iterator[TrackingServer]:
    made = TrackingServer(tmp_path, port)
    yield made
    made.kill()


def _tell(sink: MlflowSink, events: tuple[JournalEvent, ...]) -> None:
    for event in events:
        if event.kind == "sweep":
            sink.on_sweep(event.data, ())
        elif event.kind in ("started", "replicate"):
            sink.on_started(TrialRequest.from_json(event.data["request"]), "", None)
        elif event.kind == "finished":
            sink.on_finished(TrialRecord.from_json(event.data["record"]), None)
        elif event.kind == "ended":
            sink.on_ended(event.data["reason"], event.data["exit_code"], None)


def _runs(uri: str) -> dict[str, Any]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("overlap")
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    keys = [run.data.tags["lf_ray.trial_key"].split("/", 1)[1] for run in runs]
    assert len(keys) == len(set(keys)), "a trial has two runs"
    return dict(zip(keys, runs))


def _wait(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} took longer than {limit_s} s"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_closed_port_is_said_at_once_and_costs_the_sweep_nothing(
    tmp_path: Path, port: int, history: SweepHistory
) -> None:
    said: list[str] = []
    sink = MlflowSink(f"http://127.0.0.1:{port}", tmp_path, notify=said.append)
    began_s = time.monotonic()
    _tell(sink, history.events)
    assert time.monotonic() - began_s < 1.0
    _wait(lambda: bool(said), 2.0, "the warning")
    assert "is away" in said[0]
    began_s = time.monotonic()
    sink.close()
    assert time.monotonic() - began_s < 5.0
    assert sink.names() == {"experiment": "overlap", "parent_run": None}
    (warning,) = sink.warnings()
    assert str(tmp_path / SPOOL_NAME) in warning
    assert "lf_ray.record rebuild" in warning
    # What waits is enough to make everything again.
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    replay(history.events, uri, tmp_path)
    assert set(_runs(uri)) == {"sweep", *(request.id for request in history.started)}
    assert not (tmp_path / SPOOL_NAME).exists()


def test_a_server_that_never_answers_is_given_up(tmp_path: Path, history: SweepHistory) -> None:
    said: list[str] = []
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(16)
        uri = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        sink = MlflowSink(uri, tmp_path, notify=said.append)
        began_s = time.monotonic()
        _tell(sink, history.events)
        assert time.monotonic() - began_s < 4.0  # a single call waits for 5 s, then tries again
        sink.close(timeout_s=3.0)
        assert time.monotonic() - began_s < 12.0
    assert any("not delivered" in text for text in sink.warnings())


@pytest.mark.slow
def test_killed_in_mid_sweep_and_back_nothing_is_lost(
    server: TrackingServer, history: SweepHistory, tmp_path: Path
) -> None:
    said: list[str] = []
    uri = server.uri
    sink = MlflowSink(uri, tmp_path, notify=said.append)
    third = len(history.events) // 3
    _tell(sink, history.events[:third])  # down at start
    _wait(lambda: any("away" in text for text in said), 3.0, "the warning")
    server.start()
    _wait(
        lambda: any("what waited was sent" in text for text in said), 180.0, "the spool's delivery"
    )
    _tell(sink, history.events[third : 2 * third])
    _wait(lambda: "t005" in _runs(uri), 180.0, "a run after the server came")
    said.clear()
    server.kill()
    _tell(sink, history.events[2 * third :])
    _wait(lambda: any("away" in text for text in said), 90.0, "the warning")
    server.start()
    sink.close(120.0)
    assert sink.warnings() == []
    assert not (tmp_path / SPOOL_NAME).exists()
    runs = _runs(uri)
    assert set(runs) == {"sweep", *(request.id for request in history.started)}
    assert "RUNNING" not in {run.info.status for run in runs.values()}
    direct = f"sqlite:///{tmp_path}/direct.db"
    replay(history.events, direct, tmp_path)
    expected = _runs(direct)
    for key, run in runs.items():
        assert run.data.metrics == expected[key].data.metrics, key
        assert run.data.params == expected[key].data.params, key
