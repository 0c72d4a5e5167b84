"""Mirrors a sweep to MLflow, off the hot path. The only file with mlflow.

MLflow is a view: the journal is the truth, nothing here can stop or slow a trial. Importing this
file does not import MLflow, which takes seconds; the thread that sends does.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lf_ray.clock import Clock, SystemClock
from lf_ray.errors import ConfigError, four_parts
from lf_ray.protocol import TrialRecord, TrialRequest
from lf_ray.record.courier import Courier, RefusedError, first_line, to_stderr
from lf_ray.record.events import JournalEvent
from lf_ray.record.mirror.replay import JOURNAL_NAME, result_updates, updates_of
from lf_ray.record.mirror.runs import Mirror
from lf_ray.record.mirror.updates import SWEEP, RunUpdate
from lf_ray.record.spool import Spool
from lf_ray.record.tracking import check_uri, database_path, server_error

__all__ = ["MlflowRuns", "MlflowSink", "check_uri", "fetch_journals", "replay"]

CLOSE_S = 30.0
SPOOL_NAME = "mlflow_spool.jsonl"
_TRIAL_KEY, _SWEEP_ID, _PARENT = "lf_ray.trial_key", "lf_ray.sweep_id", "mlflow.parentRunId"
_MAX_BATCH = 900
# The client's own patience (7 retries, 120 s each) would hold the thread for minutes.
_CLIENT_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}

# Opens MLflow's pages on training runs instead of language-model traces.
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}

_log = logging.getLogger(__name__)


class MlflowRuns:
    """Runs of one sweep in MLflow, found again by a tag, so that sending twice makes no second.

    Args:
        uri: checked tracking URI.
        experiment: name; made where there is none.
        sweep_id: whose runs these are.

    Raises:
        OSError: nothing answers there, or the database can't be made.
    """

    def __init__(self, uri: str, experiment: str, sweep_id: str) -> None:
        database = database_path(uri)
        if database is not None:
            database.parent.mkdir(parents=True, exist_ok=True)
        self._client = _client(uri)
        from mlflow import entities, exceptions

        self._entities = entities
        self._error = exceptions.MlflowException
        self._sweep_id = sweep_id
        try:
            self.experiment_id = self._experiment(uri, experiment)
            self._run_ids = self._known_runs()
        except self._error as error:
            raise OSError(first_line(error)) from error

    def run_id(self, key: str) -> str | None:
        """Returns MLflow's id of a run, None before it was made."""
        return self._run_ids.get(key)

    def apply(self, update: RunUpdate) -> None:
        """Sends one update; making it again changes nothing.

        Raises:
            RefusedError: the server says that the update is wrong.
            OSError: the server or its database is away.
        """
        try:
            run_id = self._run_ids.get(update.key) or self._make(update)
            self._log(run_id, update)
            for name, text in update.texts.items():
                self._client.log_text(run_id, text, name)
            for path in update.files:
                folder = "figures" if Path(path).suffix == ".svg" else None
                self._client.log_artifact(run_id, path, folder)
            if update.end_ms:
                self._client.set_terminated(run_id, update.status, update.end_ms)
            elif update.status:
                self._client.update_run(run_id, status=update.status)
        except self._error as error:
            if error.error_code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"):
                raise RefusedError(f"{update.key}: {first_line(error)}") from error
            raise OSError(first_line(error)) from error

    def _experiment(self, uri: str, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            if found.lifecycle_stage == "deleted":
                self._client.restore_experiment(found.experiment_id)
            return str(found.experiment_id)
        database = database_path(uri)
        place = str(database.parent / "mlartifacts" / name) if database else None
        try:
            return str(
                self._client.create_experiment(
                    name, artifact_location=place, tags=dict(_EXPERIMENT_TAGS)
                )
            )
        except self._error as error:
            # Two sweeps that start together both find none.
            found = self._client.get_experiment_by_name(name)
            if found is None or error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            return str(found.experiment_id)

    def _known_runs(self) -> dict[str, str]:
        runs: dict[str, str] = {}
        token: str | None = ""
        while token is not None:
            page = self._client.search_runs(
                [self.experiment_id],
                f"tags.`{_SWEEP_ID}` = '{self._sweep_id}'",
                page_token=token or None,
            )
            for run in page:
                runs[run.data.tags[_TRIAL_KEY].removeprefix(f"{self._sweep_id}/")] = run.info.run_id
            token = page.token or None
        return runs

    def _make(self, update: RunUpdate) -> str:
        tags = {_TRIAL_KEY: f"{self._sweep_id}/{update.key}", _SWEEP_ID: self._sweep_id}
        if update.parent and update.parent in self._run_ids:
            tags[_PARENT] = self._run_ids[update.parent]
        run = self._client.create_run(
            self.experiment_id, start_time=update.start_ms or None, tags=tags, run_name=update.name
        )
        self._run_ids[update.key] = str(run.info.run_id)
        return str(run.info.run_id)

    def _log(self, run_id: str, update: RunUpdate) -> None:
        entities = self._entities
        params, changed = self._new_params(run_id, update.params)
        tags = [entities.RunTag(k, v) for k, v in {**update.tags, **changed}.items()]
        metrics = [entities.Metric(p.name, p.value, p.at_ms, p.step) for p in update.metrics]
        self._client.log_batch(
            run_id,
            metrics[:_MAX_BATCH],
            [entities.Param(name, value) for name, value in params.items()][:100],
            tags[:100],
        )
        for start in range(_MAX_BATCH, len(metrics), _MAX_BATCH):
            self._client.log_batch(run_id, metrics[start : start + _MAX_BATCH])

    def _new_params(
        self, run_id: str, params: Mapping[str, str]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Returns the parameters to write, and as tags those that now have another value.

        A parameter can be written once; a retried trial may run with other effective values.
        """
        if not params:
            return {}, {}
        there = self._client.get_run(run_id).data.params
        new = {name: value for name, value in params.items() if name not in there}
        changed = {
            f"retry.{name}": value
            for name, value in params.items()
            if name in there and there[name] != value
        }
        return new, changed


def _client(uri: str) -> Any:
    """Returns MLflow's client, made patient and quiet as we need it.

    Raises:
        OSError: nothing answers there.
    """
    missing = server_error(uri)
    if missing:
        raise OSError(missing)
    for name, value in _CLIENT_SETTINGS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic", "urllib3"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return MlflowClient(tracking_uri=uri)


def fetch_journals(uri: str, folder: Path) -> list[Path]:
    """Copies the journals of all finished sweeps from MLflow, and returns where they are.

    Args:
        uri: checked tracking URI.
        folder: gets a folder for each sweep.

    Raises:
        ConfigError: there is no such database.
        OSError: the server is away.
    """
    database = database_path(uri)
    if database is not None and not database.is_file():
        raise ConfigError(
            four_parts(
                "reading sweeps from MLflow",
                "the database must be there; only a sweep makes one",
                f"{uri}, where there is no file",
                "Give the URI that the sweep was run with (tracking.uri=, by default "
                "sqlite:///mlflow.db in the folder it was run from).",
            )
        )
    client = _client(uri)
    journals = []
    for run in _sweep_runs(client):
        names = {item.path for item in client.list_artifacts(run.info.run_id)}
        if JOURNAL_NAME not in names:
            _log.info("%s has no journal yet: it runs, or was killed", run.info.run_name)
            continue
        place = folder / run.info.run_id
        place.mkdir(parents=True, exist_ok=True)
        journals.append(Path(client.download_artifacts(run.info.run_id, JOURNAL_NAME, str(place))))
    return journals


def _sweep_runs(client: Any) -> Iterator[Any]:
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    token: str | None = None
    while True:
        page = client.search_runs(
            experiments, "tags.`lf_ray.purpose` = 'sweep'", max_results=1000, page_token=token
        )
        yield from page
        token = page.token
        if not token:
            return


class MlflowSink:
    """Observes a sweep and mirrors it: nothing that the sweep tells it waits for MLflow.

    Args:
        uri: checked tracking URI.
        folder: of the sweep; holds what could not be delivered yet.
        clock: dates starts.
        notify: is told once when the server is away, and once when it is back.
    """

    def __init__(
        self,
        uri: str,
        folder: Path,
        clock: Clock | None = None,
        notify: Callable[[str], object] = to_stderr,
    ) -> None:
        self._uri = uri
        self._clock = clock or SystemClock()
        self._mirror = Mirror()
        self._experiment = ""
        self._runs: MlflowRuns | None = None
        self._journal = folder / JOURNAL_NAME
        self._courier = Courier(
            self._deliver, Spool(folder / SPOOL_NAME), self._clock, f"MLflow at {uri}", notify
        )

    def on_sweep(self, header: Mapping[str, Any], events: Sequence[JournalEvent]) -> None:
        """The sweep begins, or is resumed: then everything before is sent again, for good measure.

        What of it arrived is known to MLflow and stays as it is.
        """
        self._experiment = str(header["name"])
        updates = list(updates_of(self._mirror, events)) if events else []
        self._courier.start()
        self._courier.send(updates or [self._mirror.begin(header, self._clock.wall_s())])

    def on_started(self, request: TrialRequest, reason: str, standing: object) -> None:
        """A request goes to a group."""
        self._courier.send([self._mirror.started(request, self._clock.wall_s())])

    def on_finished(self, record: TrialRecord, standing: object) -> None:
        """A record came back."""
        self._courier.send(self._mirror.finished(record, self._clock.wall_s()))

    def on_note(self, text: str) -> None:
        """Notes stay in the journal."""

    def on_ended(self, reason: str, exit_code: int, standing: object) -> None:
        """The sweep is over: no run is left running."""
        self._courier.send(self._mirror.ended(reason, exit_code, self._clock.wall_s()))

    def add_result(self, answer: object, folder: Path) -> None:
        """Adds the answer as its files in `folder` say it, and the files."""
        updates = result_updates(self._mirror, folder, self._clock.wall_s())
        if updates:
            self._courier.send(updates)

    def names(self, wait_s: float = 15.0) -> dict[str, str | None]:
        """Returns experiment and MLflow's id of the sweep's run, None where it is not known yet."""
        self._courier.wait_for_first(wait_s)
        run_id = self._runs.run_id(SWEEP) if self._runs else None
        return {"experiment": self._experiment, "parent_run": run_id}

    def warnings(self) -> list[str]:
        """Returns what a person should know: what could not be delivered, and how to send it."""
        return list(self._courier.warnings)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Delivers what waits, or leaves it in the spool and says so; waits no longer than told."""
        waiting = self._courier.close(timeout_s)
        if waiting:
            self._courier.warn(
                f"{waiting} updates were not delivered to {self._uri}; they wait in "
                f"{self._journal.with_name(SPOOL_NAME)}. Send them with: "
                f"python -m lf_ray.record rebuild {self._journal}"
            )

    def _deliver(self, update: RunUpdate) -> None:
        if self._runs is None:
            self._runs = MlflowRuns(self._uri, self._experiment, self._mirror.sweep_id)
        self._runs.apply(update)


def replay(events: Sequence[JournalEvent], uri: str, folder: Path) -> int:
    """Makes MLflow's copy of a sweep again, or completes it; returns how many updates were sent.

    Args:
        events: of a whole journal.
        uri: checked tracking URI.
        folder: of the sweep, for the answer's files.

    Raises:
        OSError: the server is away.
        RefusedError: the server does not take an update.
    """
    mirror = Mirror()
    updates = list(updates_of(mirror, events))
    last = events[-1]
    if last.kind != "ended":
        updates += mirror.ended("the sweep was killed or still runs", 130, last.wall_s)
    updates += result_updates(mirror, folder, last.wall_s)
    runs = MlflowRuns(uri, str(events[0].data["name"]), mirror.sweep_id)
    for update in updates:
        runs.apply(update)
    Spool(folder / SPOOL_NAME).keep([])
    return len(updates)
