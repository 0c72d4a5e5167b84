"""Mirrors a sweep to MLflow, off the hot path. The only file with mlflow.

MLflow is a view: the journal is the truth, nothing here can stop or slow a trial. A thread of low
priority works out what to send and sends it; while the server is away updates wait in a file of
the result folder.
"""

import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lf_ray.clock import Clock, SystemClock
from lf_ray.protocol import TrialRecord, TrialRequest
from lf_ray.record.events import JournalEvent
from lf_ray.record.mirror.replay import result_update, updates_of
from lf_ray.record.mirror.runs import Mirror
from lf_ray.record.mirror.updates import SWEEP, RunUpdate
from lf_ray.record.spool import Spool
from lf_ray.record.tracking import check_uri, database_path, server_error

__all__ = ["MlflowRuns", "MlflowSink", "check_uri", "replay"]

RETRY_S = 5.0
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

_log = logging.getLogger(__name__)


class RefusedError(Exception):
    """The server answered that an update is wrong: sending it again would not help."""


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
        missing = server_error(uri)
        if missing:
            raise OSError(missing)
        database = database_path(uri)
        if database is not None:
            database.parent.mkdir(parents=True, exist_ok=True)
        for name, value in _CLIENT_SETTINGS.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient, entities, exceptions

        for name in ("mlflow", "alembic", "urllib3"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self._entities = entities
        self._error = exceptions.MlflowException
        self._sweep_id = sweep_id
        self._client = MlflowClient(tracking_uri=uri)
        try:
            self.experiment_id = self._experiment(uri, experiment)
            self._run_ids = self._known_runs()
        except self._error as error:
            raise OSError(_first_line(error)) from error

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
                raise RefusedError(f"{update.key}: {_first_line(error)}") from error
            raise OSError(_first_line(error)) from error

    def _experiment(self, uri: str, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            if found.lifecycle_stage == "deleted":
                self._client.restore_experiment(found.experiment_id)
            return str(found.experiment_id)
        database = database_path(uri)
        place = str(database.parent / "mlartifacts" / name) if database else None
        try:
            return str(self._client.create_experiment(name, artifact_location=place))
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


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"warning: {text}\n")
    sys.stderr.flush()


class MlflowSink:
    """Observes a sweep and mirrors it.

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
        notify: Callable[[str], object] = _to_stderr,
    ) -> None:
        self._uri = uri
        self._clock = clock or SystemClock()
        self._notify = notify
        self._mirror = Mirror()
        self._spool = Spool(folder / SPOOL_NAME)
        self._inbox: queue.SimpleQueue[RunUpdate | None] = queue.SimpleQueue()
        self._warnings: list[str] = []
        self._experiment = ""
        self._runs: MlflowRuns | None = None
        self._connected = threading.Event()
        self._away = False
        self._retry_at_s = 0.0
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)

    # What the sweep tells: nothing here waits.

    def on_sweep(self, header: Mapping[str, Any], events: Sequence[JournalEvent]) -> None:
        """The sweep begins, or is resumed: then everything before is sent again, for good measure.

        What of it arrived is known to MLflow and stays as it is.
        """
        self._experiment = str(header["name"])
        updates = list(updates_of(self._mirror, events)) if events else []
        if not updates:
            updates = [self._mirror.begin(header, self._clock.wall_s())]
        self._spool.keep([])
        self._send(updates)
        self._thread.start()

    def on_started(self, request: TrialRequest, reason: str, standing: object) -> None:
        """A request goes to a group."""
        self._send([self._mirror.started(request, self._clock.wall_s())])

    def on_finished(self, record: TrialRecord, standing: object) -> None:
        """A record came back."""
        self._send(self._mirror.finished(record, self._clock.wall_s()))

    def on_note(self, text: str) -> None:
        """Notes stay in the journal."""

    def on_ended(self, reason: str, exit_code: int, standing: object) -> None:
        """The sweep is over: no run is left running."""
        self._send(self._mirror.ended(reason, exit_code, self._clock.wall_s()))

    def add_result(self, answer: object, folder: Path) -> None:
        """Adds the answer as its files in `folder` say it, and the files."""
        update = result_update(self._mirror, folder, self._clock.wall_s())
        if update is not None:
            self._send([update])

    def names(self, wait_s: float = 15.0) -> dict[str, str | None]:
        """Returns experiment and MLflow's id of the sweep's run, None where it is not known yet."""
        if self._thread.is_alive() and not self._away:
            self._connected.wait(wait_s)
        run_id = self._runs.run_id(SWEEP) if self._runs else None
        return {"experiment": self._experiment, "parent_run": run_id}

    def warnings(self) -> list[str]:
        """Returns what a person should know: what could not be delivered, and how to send it."""
        return list(self._warnings)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Delivers what waits, or leaves it in the spool and says so; waits no longer than told."""
        self._inbox.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        with suppress(queue.Empty):
            while True:  # a thread that is stuck in a call leaves what it did not get to
                update = self._inbox.get_nowait()
                if update is not None:
                    self._spool.add(update)
        waiting = len(self._spool.read())
        if waiting:
            journal = self._spool.path.with_name("journal.jsonl")
            self._warn(
                f"{waiting} updates were not delivered to {self._uri}; they wait in "
                f"{self._spool.path}. Send them with: python -m lf_ray.record rebuild {journal}"
            )

    def _send(self, updates: Iterable[RunUpdate]) -> None:
        for update in updates:
            self._inbox.put(update)

    # The thread.

    def _work(self) -> None:
        with suppress(OSError):
            # The trials' cores are not ours.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)
        while True:
            try:
                update = self._inbox.get(timeout=RETRY_S if self._away else None)
            except queue.Empty:
                self._flush()
                continue
            if update is None:
                self._flush(last=True)
                return
            if self._away and not self._due():
                self._spool.add(update)
                continue
            if not (self._flush() and self._deliver(update)):
                self._spool.add(update)

    def _due(self) -> bool:
        return self._clock.monotonic_s() >= self._retry_at_s

    def _flush(self, *, last: bool = False) -> bool:
        """Sends what waits in the spool; returns whether it is empty now."""
        if not self._away:
            return True
        if not (last or self._due()):
            return False
        waiting = self._spool.read()
        for index, update in enumerate(waiting):
            if not self._deliver(update):
                self._spool.keep(waiting[index:])
                return False
        self._spool.keep([])
        if self._away:
            self._away = False
            self._notify(f"MLflow at {self._uri} is back; what waited was sent.")
        return True

    def _deliver(self, update: RunUpdate) -> bool:
        """Sends one update; returns whether it is off our hands."""
        try:
            if self._runs is None:
                self._runs = MlflowRuns(self._uri, self._experiment, self._mirror.sweep_id)
            self._runs.apply(update)
        except OSError as error:
            self._leave(error)
            return False
        except Exception as error:
            # Refused, or a defect of ours: it would be so again, and the others may still go.
            self._warn(f"MLflow did not take an update: {type(error).__name__}: {error}")
        else:
            self._connected.set()
        return True

    def _leave(self, error: OSError) -> None:
        self._retry_at_s = self._clock.monotonic_s() + RETRY_S
        self._connected.set()
        if not self._away:
            self._away = True
            text = (
                f"MLflow at {self._uri} is away ({_first_line(error)}). The sweep goes on; its "
                f"updates wait in {self._spool.path.name} and are sent when it is back."
            )
            _log.warning(text)
            self._notify(text)

    def _warn(self, text: str) -> None:
        if text not in self._warnings:
            _log.warning(text)
            self._warnings.append(text)
            self._notify(text)


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
    result = result_update(mirror, folder, last.wall_s)
    updates += [result] if result is not None else []
    runs = MlflowRuns(uri, str(events[0].data["name"]), mirror.sweep_id)
    for update in updates:
        runs.apply(update)
    Spool(folder / SPOOL_NAME).keep([])
    return len(updates)
