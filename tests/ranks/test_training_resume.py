"""A training that was stopped goes on with the bits of one that was not."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lf_ray.clock import SystemClock
from lf_ray.protocol import KnobValue, StepSample, TrialRequest
from lf_ray.runtime.session import Session
from lf_ray.settings import with_knobs
from lf_ray.testing.ranks import RankPlace, RankPool
from lf_ray.testing.toy import ToyParts, toy_config, toy_request
from lf_ray.training.books import read_books, steps_of
from lf_ray.training.checkpoint.folder import complete_checkpoints
from lf_ray.training.plan import TrainingPlan
from lf_ray.training.rank import TrainingVisit
from lf_ray.trial.faults.outcomes import ErrorReport
from lf_ray.trial.ranks.control import GlooControl
from lf_ray.trial.visit import Bench, VisitSettings

Ranks = Callable[[int], RankPool]
KNOBS: list[dict[str, KnobValue]] = [
    {"overlap.bucket_size_mb": 1 / 64, "overlap.ratio": 0.5},
    {"batch.accumulation": 2, "graph.scope": "step+optimizer", "pipeline.prefix": "on"},
    {"overlap.bucket_size_mb": 1 / 64, "graph.scope": "step+optimizer", "update.sharded": "on"},
]


class _NoWatch:
    def enter(self, phase: str, limit_s: float | None) -> None:
        pass

    def fault(self, report: ErrorReport) -> None:
        pass


class _Session(Session):
    """Fails before a step, as a session would whose process is killed there."""

    fails_at = -1

    def run(self, num_steps: int) -> list[StepSample]:
        if self._running().step <= self.fails_at < self._running().step + num_steps:
            raise RuntimeError("killed")
        return super().run(num_steps)


def _request(place: RankPlace, knobs: Mapping[str, KnobValue]) -> TrialRequest:
    return toy_request(toy_config(place.world_size), knobs, seed=3)


def _train(
    place: RankPlace, folder: str, knobs: dict[str, KnobValue], fails_at: int
) -> dict[str, Any]:
    config = toy_config(place.world_size)
    config.measure.gate_steps = 0
    config.train.max_steps = 12
    config.train.warmup_ratio = 0.25
    plan = TrainingPlan(
        folder=Path(folder),
        config=with_knobs(config, knobs),
        data_id="toy",
        num_steps=12,
        save_every=4,
        identity={"seed": 3},
        block_s=0.0,
    )
    session = _Session(
        config,
        place.rank,
        place.world_size,
        "cpu",
        place.work_group,
        place.control_group,
        ToyParts(),
    )
    session.fails_at = fails_at
    bench = Bench(control=GlooControl(place.control_group), clock=SystemClock(), watch=_NoWatch())
    record = TrainingVisit(plan=plan)(session, bench, _request(place, knobs), VisitSettings())
    result = {
        "kind": record.outcome.kind.value,
        "rule": record.outcome.stop_rule,
        "reason": record.outcome.reason,
        "weights": session.weights_checksum(),
        "lr": list(session.lr),
    }
    session.close()
    return result


@pytest.mark.parametrize("knobs", KNOBS, ids=["eager", "captured, pipelined", "sharded"])
def test_resumed_steps_have_the_bits_of_uninterrupted_ones(
    ranks: Ranks, tmp_path: Path, knobs: dict[str, KnobValue]
) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    expected = ranks(2).run(_train, str(straight), knobs, -1)
    first = ranks(2).run(_train, str(broken), knobs, 6)
    second = ranks(2).run(_train, str(broken), knobs, -1)
    assert [item["kind"] for item in first] == ["failed", "failed"]
    assert "killed" in first[0]["reason"]
    assert [item["rule"] for item in second] == ["done", "done"]
    assert len(second[0]["lr"]) == 8
    assert [item["weights"] for item in second] == [item["weights"] for item in expected]
    names = ("step", "loss", "grad_norm", "lr")
    lines = [read_books(folder / "train.jsonl") for folder in (straight, broken)]
    rows = [[[step[name] for name in names] for step in steps_of(item)] for item in lines]
    assert rows[0] == rows[1]
    assert [row[0] for row in rows[0]] == list(range(12))
    assert rows[0][0][3] < rows[0][2][3] > rows[0][11][3]
    starts = [line["step"] for line in lines[1] if line["event"] == "started"]
    assert starts == [0, 4]


def test_only_the_last_checkpoints_stay_and_a_request_to_stop_saves_first(
    ranks: Ranks, tmp_path: Path
) -> None:
    ranks(2).run(_train, str(tmp_path), KNOBS[0], -1)
    kept = [path.name for path in complete_checkpoints(tmp_path / "checkpoints")]
    assert kept == ["step-00000008", "step-00000012"]
    other = tmp_path / "stopped"
    other.mkdir()
    (other / "stop").touch()
    results = ranks(2).run(_train, str(other), KNOBS[0], -1)
    assert [item["rule"] for item in results] == ["stopped", "stopped"]
    assert [path.name for path in complete_checkpoints(other / "checkpoints")] == ["step-00000000"]
