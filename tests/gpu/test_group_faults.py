"""Lost and late ranks with NCCL: the others wait inside a collective's kernel on their GPUs."""

from collections.abc import Iterator, Mapping

import pytest
import torch

from lf_ray.protocol import Budget, KnobValue, OutcomeKind, TrialRecord
from lf_ray.testing.group_contract import incarnation, submitted, tell_seconds
from lf_ray.testing.native_groups import NativeGroup
from lf_ray.testing.sessions import Fault

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
    pytest.mark.timeout(1200),
]

EAGER: Mapping[str, KnobValue] = {"graph.scope": "off"}
CAPTURED: Mapping[str, KnobValue] = {"graph.scope": "step+optimizer"}
STEP = 30
"""After the warm-up and the capture, before the least number of steps is over."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeGroup]:
    folder = tmp_path_factory.mktemp("faults")

    def fault(name: str, kind: str, *, once: bool = True) -> Fault:
        mark = str(folder / name) if once else None
        return Fault(request=name, kind=kind, phase="step", ranks=(1,), step=STEP, once=mark)

    faults = (
        fault("killed", "sigkill"),
        fault("killed_captured", "sigkill"),
        fault("stopped", "sigstop", once=False),
        fault("raises_once", "exception"),
    )
    started = NativeGroup(
        folder,
        ["data=synthetic", f"cluster.workers={torch.cuda.device_count()}"],
        faults=faults,
        budget=Budget(min_steps=40, max_steps=80, target_frac=0.5),
        step_s=20.0,
    )
    yield started
    assert started.close() == []


def lost_for_s(record: TrialRecord) -> float:
    return record.clock_s["first_step"] - record.clock_s["lost"]


def check_same_losses(first: TrialRecord, second: TrialRecord) -> None:
    assert first.trace is not None
    assert second.trace is not None
    length = min(len(first.trace.loss), len(second.trace.loss))
    assert length >= STEP
    assert first.trace.loss[:length] == second.trace.loss[:length]


@pytest.mark.parametrize(
    ("name", "knobs"), [("killed", EAGER), ("killed_captured", CAPTURED)], ids=["eager", "captured"]
)
def test_a_killed_rank_is_replaced(
    group: NativeGroup, name: str, knobs: Mapping[str, KnobValue]
) -> None:
    """Warm, cold and after a replacement the losses have the same bits."""
    group.knobs = dict(knobs)
    cold = submitted(group, "before")
    warm = submitted(group, "before_too")
    record = submitted(group, name)
    assert record.outcome.kind is OutcomeKind.COMPLETED
    assert "failed: the process of rank 1 is gone" in record.outcome.reason
    assert incarnation(record) == incarnation(warm) + 1
    check_same_losses(cold, warm)
    check_same_losses(cold, record)
    tell_seconds(f"{name}, NCCL", lost_for_s(record), group.replaced_within_s)


def test_a_stopped_rank_is_named(group: NativeGroup) -> None:
    """Though it is the others that spin on their GPUs."""
    group.knobs = dict(CAPTURED)
    record = submitted(group, "stopped")
    assert record.outcome.kind is OutcomeKind.FAILED
    assert (record.outcome.error_kind, record.outcome.rank) == ("hang", 1), record.outcome
    assert "its process is stopped" in record.outcome.reason
    after = submitted(group, "after")
    assert after.outcome.kind is OutcomeKind.COMPLETED
    seconds = after.clock_s["first_step"] - record.clock_s["finished"]
    tell_seconds("stopped, NCCL", seconds, group.replaced_within_s)


def test_an_error_of_one_rank_leaves_nobody_in_a_collective(group: NativeGroup) -> None:
    group.knobs = dict(CAPTURED)
    before = submitted(group, "before")
    record = submitted(group, "raises_once")
    assert record.outcome.kind is OutcomeKind.COMPLETED
    assert "[attempt 1: failed: rank 1, steps" in record.outcome.reason
    assert incarnation(record) == incarnation(before) + 1
    check_same_losses(before, record)
