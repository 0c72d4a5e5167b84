"""The project's own session on Ray's workers: warm trials equal cold ones, bit for bit."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from lf_ray.machine import detect
from lf_ray.protocol import Budget, Deadlines, OutcomeKind, Purpose, TrialRecord, TrialRequest
from lf_ray.settings import SweepConfig, knobs_of
from lf_ray.trial.cluster import start_cluster, stop_cluster
from lf_ray.trial.launch import prepare_data
from lf_ray.trial.ranks.serve import ServeSettings
from lf_ray.trial.workers import GroupPlan, close_owner, start_owner

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

NUM_STEPS = 12


class NativeGroup:
    def __init__(self, folder: Path) -> None:
        from lf_ray.compose import compose

        self.config: SweepConfig = compose("overlap", ["model=nano", "cluster=cpu"], detect())
        prepare_data(self.config)
        self.cluster = start_cluster(self.config, folder)
        serve = ServeSettings(gate_steps=self.config.measure.gate_steps)
        self.owner = start_owner(GroupPlan(config=self.config, folder=folder, serve=serve))

    def run(self, name: str, **knobs: float) -> TrialRecord:
        request = TrialRequest(
            id=name,
            knobs={**knobs_of(self.config), **{k.replace("__", "."): v for k, v in knobs.items()}},
            seed=0,
            purpose=Purpose.SEARCH,
            budget=Budget(min_steps=NUM_STEPS, max_steps=NUM_STEPS, target_frac=1e-9),
            deadlines=Deadlines(first_batch_s=300, step_s=120),
        )
        answer = ray.get(self.owner.submit.remote(request.to_json()), timeout=600)
        return TrialRecord.from_json(answer)

    def close(self) -> list[str]:
        close_owner(self.owner)
        return stop_cluster(self.cluster)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeGroup]:
    group = NativeGroup(tmp_path_factory.mktemp("native"))
    yield group
    assert group.close() == []


def losses(record: TrialRecord) -> tuple[float, ...]:
    # Twelve steps on a busy machine need not settle; what was computed is what counts here.
    kept = record.outcome.kind is OutcomeKind.COMPLETED or record.outcome.error_kind == "unsteady"
    assert kept, record.outcome
    assert record.trace is not None
    assert record.gate is not None
    assert record.gate.bit_equal
    return record.trace.loss


def test_warm_equals_cold_bit_for_bit(native: NativeGroup) -> None:
    cold = native.run("t0")
    other = native.run("t1", overlap__bucket_size_mb=1.0, overlap__ratio=0.5)
    warm = native.run("t2")
    assert losses(cold) == losses(other) == losses(warm)
    assert cold.gradients
    assert not warm.gradients
    assert other.outcome.effective["num_buckets"] != warm.outcome.effective["num_buckets"]

    state = ray.get(native.owner.state.remote())
    os.kill(state["members"][1]["pid"], signal.SIGKILL)
    again = native.run("t3")
    assert again.metrics["incarnation"] == cold.metrics["incarnation"] + 1
    assert losses(again) == losses(cold)
    assert again.gradients == cold.gradients
