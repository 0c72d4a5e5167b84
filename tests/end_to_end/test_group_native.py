"""The project's own session on Ray's workers: warm trials equal cold ones, bit for bit."""

import os
import signal
from collections.abc import Iterator, Mapping

import pytest
import ray

from lf_ray.protocol import Budget, KnobValue, OutcomeKind, TrialRecord
from lf_ray.testing.group_contract import submitted
from lf_ray.testing.native_groups import NativeGroup

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

NUM_STEPS = 12


def run(group: NativeGroup, name: str, knobs: Mapping[str, KnobValue] | None = None) -> TrialRecord:
    group.knobs = dict(knobs or {})
    return submitted(group, name)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeGroup]:
    budget = Budget(min_steps=NUM_STEPS, max_steps=NUM_STEPS, target_frac=1e-9)
    folder = tmp_path_factory.mktemp("native")
    group = NativeGroup(folder, ["cluster=cpu"], budget=budget, step_s=120.0)
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
    cold = run(native, "t0")
    other = run(native, "t1", {"overlap.bucket_size_mb": 1.0, "overlap.ratio": 0.5})
    warm = run(native, "t2")
    assert losses(cold) == losses(other) == losses(warm)
    assert cold.gradients
    assert not warm.gradients
    assert other.outcome.effective["num_buckets"] != warm.outcome.effective["num_buckets"]

    state = ray.get(native.owner.state.remote())
    os.kill(state["members"][1]["pid"], signal.SIGKILL)
    again = run(native, "t3")
    assert again.metrics["incarnation"] == cold.metrics["incarnation"] + 1
    assert losses(again) == losses(cold)
    assert again.gradients == cold.gradients
