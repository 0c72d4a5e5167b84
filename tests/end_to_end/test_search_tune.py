"""The sweep on a real Ray Tune, with a trainable that needs no workers."""

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from lf_ray.clock import SystemClock
from lf_ray.protocol import TrialRecord, TrialRequest
from lf_ray.record.events import JournalEvent
from lf_ray.record.journal import Journal, read_journal
from lf_ray.search.conductor import Conductor, Observer, Standing
from lf_ray.search.ladder import bucket_ladder
from lf_ray.search.plan.decisions import Rules
from lf_ray.search.planner import Planner
from lf_ray.search.samplers.plain import RandomProposer
from lf_ray.search.space import Literal, space_from_literal
from lf_ray.search.sweep import run_on_tune
from lf_ray.settings import SweepConfig
from lf_ray.testing.objectives import BASELINE_KNOBS, KneeObjective
from lf_ray.trial.cluster import start_cluster, stop_cluster

HEADER: Mapping[str, Any] = {
    "id": "x",
    "name": "overlap",
    "config": {},
    "space": {"overlap.ratio": [0.0, 0.5, 1.0]},
    "space_hash": "",
    "baseline_knobs": dict(BASELINE_KNOBS),
    "machine": {},
    "versions": {},
    "data_id": "",
    "seed": 0,
}


class OneProcessRunner(tune.Trainable):  # type: ignore[misc]
    """Answers requests from an objective; a ratio of 0 brings no record, its bucket 25 raises."""

    def setup(self, config: dict[str, Any]) -> None:
        self.objective = KneeObjective()

    def step(self) -> dict[str, Any]:
        request = TrialRequest.from_json(json.loads(self.config["request"]))
        if request.knobs["overlap.ratio"] == 0.0:
            if request.knobs["overlap.bucket_size_mb"] == 25.0:
                raise RuntimeError("no such point here")
            return {"done": True}
        record = self.objective(request)
        return {"record": json.dumps(record.to_json()), "done": True}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        return True


class TermAfterThree:
    """An observer that ends the sweep the way a scheduler would."""

    def __init__(self) -> None:
        self.finished = 0

    def on_sweep(self, header: Mapping[str, Any], events: Sequence[JournalEvent]) -> None: ...

    def on_started(self, request: TrialRequest, reason: str, standing: Standing) -> None: ...

    def on_note(self, text: str) -> None: ...

    def on_ended(self, reason: str, exit_code: int, standing: Standing) -> None: ...

    def on_finished(self, record: TrialRecord, standing: Standing) -> None:
        self.finished += 1
        if self.finished == 3:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def small_ray() -> Iterator[None]:
    config = SweepConfig()
    config.cluster.workers = 1
    cluster = start_cluster(config)
    yield
    assert stop_cluster(cluster) == []


def conductor_on(path: Path, trials: int, *observers: Observer) -> Conductor:
    literal: Literal = {"overlap.bucket_size_mb": bucket_ladder(), "overlap.ratio": [0.0, 0.5, 1.0]}
    space = space_from_literal(literal, BASELINE_KNOBS)
    rules = Rules(trials=trials, enqueued=({"overlap.ratio": 0.0},))
    planner = Planner(space, rules, RandomProposer())
    conductor = Conductor(planner, Journal(path, SystemClock()), observers, SystemClock())
    conductor.begin(HEADER)
    return conductor


def test_tune_runs_the_sweep_and_reuses_its_actor(
    small_ray: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    conductor = conductor_on(tmp_path / "journal.jsonl", 5)
    stop = run_on_tune(conductor, OneProcessRunner, tmp_path, resources={"CPU": 1})
    history = read_journal(tmp_path / "journal.jsonl")
    assert stop.exit_code == 0, stop
    assert history.num_trials == 5
    assert not history.unfinished
    assert history.ended is not None
    by_id = {record.request.id: record for record in history.records}
    assert by_id["t002"].outcome.reason.startswith("the trainable raised")
    assert "t002r1" in by_id
    assert "t002r2" not in by_id
    times = [event.wall_s for event in history.events if event.kind in ("started", "finished")]
    gaps = sorted(later - sooner for sooner, later in pairwise(times))
    assert gaps[len(gaps) // 2] < 0.5, gaps
    said = capfd.readouterr()
    assert "Trial" not in said.out + said.err


def test_sigterm_ends_in_order_and_keeps_the_record(small_ray: None, tmp_path: Path) -> None:
    conductor = conductor_on(tmp_path / "journal.jsonl", 500, TermAfterThree())
    before = signal.getsignal(signal.SIGTERM)
    stop = run_on_tune(conductor, OneProcessRunner, tmp_path, resources={"CPU": 1})
    history = read_journal(tmp_path / "journal.jsonl")
    assert (stop.exit_code, stop.reason) == (130, "ended by SIGTERM")
    assert history.ended is not None
    assert history.ended.exit_code == 130
    assert 3 <= len(history.records) <= 4
    assert signal.getsignal(signal.SIGTERM) == before
