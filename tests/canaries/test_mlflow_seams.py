"""Seams of MLflow 3.17 that record/mlflow_sink.py leans on and that nobody promised.

If one of these fails after an upgrade, look at the sink again; do not just change the assertion.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("default")  # MLflow's own deprecations are not ours


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, mlflow_database: Callable[[Path], str]) -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    logging.getLogger("alembic").setLevel(logging.ERROR)
    folder = tmp_path_factory.mktemp("mlflow")
    return MlflowClient(tracking_uri=mlflow_database(folder / "mlflow.db"))


@pytest.fixture
def run_id(client: Any, tmp_path: Path) -> str:
    name = tmp_path.name
    experiment = client.create_experiment(name, artifact_location=str(tmp_path / "artifacts"))
    return str(client.create_run(experiment).info.run_id)


def test_the_same_metric_logged_twice_is_stored_once(client: Any, run_id: str) -> None:
    """Sending a spool twice must not double the history."""
    from mlflow.entities import Metric

    points = [Metric("loss", 0.5, 1000, 1), Metric("loss", 0.4, 1001, 2)]
    for _ in range(2):
        client.log_batch(run_id, points)
    assert [(m.value, m.step) for m in client.get_metric_history(run_id, "loss")] == [
        (0.5, 1),
        (0.4, 2),
    ]


def test_the_latest_metric_is_the_one_of_the_highest_step(client: Any, run_id: str) -> None:
    """The final throughput is logged one step after the last."""
    from mlflow.entities import Metric

    client.log_batch(run_id, [Metric("throughput", 80.0, 1000, 25)])
    client.log_batch(run_id, [Metric("throughput", 70.0, 2000, 3)])
    assert client.get_run(run_id).data.metrics["throughput"] == 80.0


def test_a_parameter_is_written_once(client: Any, run_id: str) -> None:
    """The sink compares before it writes, and keeps what changed as a tag."""
    from mlflow.exceptions import MlflowException

    client.log_param(run_id, "a", "1")
    client.log_param(run_id, "a", "1")
    with pytest.raises(MlflowException) as found:
        client.log_param(run_id, "a", "2")
    assert found.value.error_code == "INVALID_PARAMETER_VALUE"


def test_infinity_is_stored_as_a_huge_number(client: Any, run_id: str) -> None:
    """Why the mirror sends no non-finite value: it would sort first."""
    client.log_metric(run_id, "bad", float("inf"))
    assert client.get_run(run_id).data.metrics["bad"] > 1e300


def test_a_run_may_go_back_to_running_and_end_again(client: Any, run_id: str) -> None:
    """A resumed sweep sends its beginning again."""
    client.set_terminated(run_id, "FINISHED", 5000)
    client.update_run(run_id, status="RUNNING")
    client.set_terminated(run_id, "FAILED", 6000)
    info = client.get_run(run_id).info
    assert (info.status, info.end_time) == ("FAILED", 6000)


def test_a_parent_is_a_tag(client: Any, run_id: str) -> None:
    """Nesting across processes: no active-run stack is needed."""
    experiment = client.get_run(run_id).info.experiment_id
    child = client.create_run(experiment, tags={"mlflow.parentRunId": run_id})
    found = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{run_id}'")
    assert [run.info.run_id for run in found] == [child.info.run_id]


def test_a_folder_as_store_raises(tmp_path: Path) -> None:
    """Why check_uri refuses ./mlruns before a sweep starts."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    with pytest.raises(MlflowException):
        MlflowClient(tracking_uri=str(tmp_path / "mlruns")).search_experiments()


def test_the_clients_patience_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.environment_variables import (
        MLFLOW_HTTP_REQUEST_MAX_RETRIES,
        MLFLOW_HTTP_REQUEST_TIMEOUT,
    )

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    assert (MLFLOW_HTTP_REQUEST_MAX_RETRIES.get(), MLFLOW_HTTP_REQUEST_TIMEOUT.get()) == (1, 5)
