"""Out of memory for real on GPUs: at each gate and late, on all ranks and on one only."""

from collections.abc import Iterator

import pytest
import torch

from lf_ray.protocol import Budget
from lf_ray.testing.group_contract import (
    GATES_OF_MEMORY,
    check_out_of_memory,
    out_of_memory_faults,
)
from lf_ray.testing.native_groups import NativeGroup

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
    pytest.mark.timeout(1200),
]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeGroup]:
    started = NativeGroup(
        tmp_path_factory.mktemp("tight"),
        ["data=synthetic", f"cluster.workers={torch.cuda.device_count()}"],
        faults=out_of_memory_faults(torch.cuda.device_count()),
        budget=Budget(min_steps=40, max_steps=80, target_frac=0.5),
        step_s=60.0,
    )
    yield started
    assert started.close() == []


@pytest.mark.parametrize("gate", GATES_OF_MEMORY)
def test_out_of_memory_is_an_answer_and_the_next_trial_runs(group: NativeGroup, gate: str) -> None:
    check_out_of_memory(group, gate, is_replaced=gate not in ("build", "rehearsal"))
