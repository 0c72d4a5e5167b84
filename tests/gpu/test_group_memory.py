"""Out of memory for real on GPUs: at each gate and late, on all ranks and on one only."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from lf_ray.machine import detect
from lf_ray.protocol import Budget, Deadlines, TrialRequest
from lf_ray.settings import knobs_of
from lf_ray.testing.group_contract import (
    GATES_OF_MEMORY,
    check_out_of_memory,
    out_of_memory_faults,
)
from lf_ray.testing.tight_memory import TightFactory
from lf_ray.trial.cluster import start_cluster, stop_cluster
from lf_ray.trial.workers import GroupPlan, close_owner, native_session, start_owner

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
    pytest.mark.timeout(1200),
]


class TightGroup:
    """The project's own session of nano on two GPUs, with memory that runs out as planned."""

    step_s = 60.0
    kept_within_s = 10.0
    replaced_within_s = 90.0

    def __init__(self, folder: Path) -> None:
        from lf_ray.compose import compose

        words = ["model=nano", "data=synthetic", "cluster.workers=2"]
        self.config = compose("overlap", words, detect())
        self.cluster = start_cluster(self.config, folder)
        factory = TightFactory(make_session=native_session, faults=out_of_memory_faults())
        self.owner = start_owner(GroupPlan(config=self.config, folder=folder, make_session=factory))

    def submit(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the contract's request with this session's knobs, and deadlines of a real start."""
        asked = TrialRequest.from_json(request)
        own = TrialRequest(
            id=asked.id,
            knobs=knobs_of(self.config),
            seed=asked.seed,
            purpose=asked.purpose,
            budget=Budget(min_steps=40, max_steps=80, target_frac=0.5),
            deadlines=Deadlines(start_s=300, first_batch_s=300, capture_s=300, step_s=60),
        )
        record: dict[str, Any] = ray.get(self.owner.submit.remote(own.to_json()), timeout=600)
        return record

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = ray.get(self.owner.state.remote(), timeout=20)
        return state

    def close(self) -> list[str]:
        close_owner(self.owner)
        return stop_cluster(self.cluster)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TightGroup]:
    started = TightGroup(tmp_path_factory.mktemp("tight"))
    yield started
    assert started.close() == []


@pytest.mark.parametrize("gate", GATES_OF_MEMORY)
def test_out_of_memory_is_an_answer_and_the_next_trial_runs(group: TightGroup, gate: str) -> None:
    check_out_of_memory(group, gate, is_replaced=gate not in ("build", "rehearsal"))
