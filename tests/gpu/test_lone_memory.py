"""Out of memory for real on one GPU: a rank that nobody waits for keeps its process."""

from pathlib import Path

import pytest
import torch

from lf_ray.protocol import Budget, OutcomeKind
from lf_ray.testing.group_contract import (
    incarnation,
    out_of_memory_faults,
    submitted,
    tell_seconds,
)
from lf_ray.testing.native_groups import NativeGroup

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]


def test_a_lone_rank_keeps_its_process(tmp_path: Path) -> None:
    """Nobody waits for it in a collective, so a late out of memory costs no start."""
    group = NativeGroup(
        tmp_path,
        ["data=synthetic", "cluster=one_gpu"],
        faults=out_of_memory_faults(),
        budget=Budget(min_steps=40, max_steps=80, target_frac=0.5),
        step_s=60.0,
    )
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
