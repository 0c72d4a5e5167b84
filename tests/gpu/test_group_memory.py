"""Out of memory for real on GPUs: at each gate and late, on all ranks and on one only."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lf_ray.protocol import Budget, OutcomeKind
from lf_ray.testing.group_contract import (
    GATES_OF_MEMORY,
    check_out_of_memory,
    incarnation,
    out_of_memory_faults,
    submitted,
    tell_seconds,
)
from lf_ray.testing.native_groups import NativeGroup

pytestmark = pytest.mark.timeout(1200)

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
one_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def start(folder: Path, *words: str) -> NativeGroup:
    return NativeGroup(
        folder,
        ["data=synthetic", *words],
        faults=out_of_memory_faults(),
        budget=Budget(min_steps=40, max_steps=80, target_frac=0.5),
        step_s=60.0,
    )


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeGroup]:
    started = start(tmp_path_factory.mktemp("tight"), "cluster.workers=2")
    yield started
    assert started.close() == []


@two_gpus
@pytest.mark.parametrize("gate", GATES_OF_MEMORY)
def test_out_of_memory_is_an_answer_and_the_next_trial_runs(group: NativeGroup, gate: str) -> None:
    check_out_of_memory(group, gate, is_replaced=gate not in ("build", "rehearsal"))


@one_gpu
def test_a_lone_rank_keeps_its_process(tmp_path: Path) -> None:
    """Nobody waits for it in a collective, so a late out of memory costs no start."""
    group = start(tmp_path, "cluster=one_gpu")
    try:
        before = submitted(group, "before")
        record = submitted(group, "oom_late_all")
        assert (record.outcome.kind, record.outcome.error_kind) == (OutcomeKind.INFEASIBLE, "oom")
        assert not record.outcome.group_lost
        after = submitted(group, "after")
        assert after.outcome.kind is OutcomeKind.COMPLETED
        assert incarnation(after) == incarnation(before)
        seconds = after.clock_s["first_step"] - record.clock_s["finished"]
        tell_seconds("out of memory, late, a lone rank", seconds, group.kept_within_s)
    finally:
        assert group.close() == []
