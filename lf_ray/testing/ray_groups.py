"""A worker group of Ray with fake sessions: the real processes, no model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray

from lf_ray.settings import SweepConfig
from lf_ray.testing.group_contract import planned_faults
from lf_ray.testing.sessions import FakeFactory, Fault
from lf_ray.trial.cluster import Cluster, start_cluster, stop_cluster
from lf_ray.trial.workers import GroupPlan, close_owner, start_owner


def cpu_workers(num_workers: int = 2) -> SweepConfig:
    """Returns settings for CPU workers."""
    config = SweepConfig()
    config.cluster.workers = num_workers
    return config


class OwnedGroup:
    """Ray and an owner that were started for a test."""

    cluster: Cluster
    owner: Any

    def state(self) -> dict[str, Any]:
        """Returns the owner's state."""
        state: dict[str, Any] = ray.get(self.owner.state.remote(), timeout=20)
        return state

    def close(self) -> list[str]:
        """Ends everything and returns what had to be ended by force."""
        close_owner(self.owner)
        return stop_cluster(self.cluster)


class RayGroup(OwnedGroup):
    """Ray, an owner and its workers, for as long as a test module needs them."""

    step_s = 2.0
    kept_within_s = 30.0
    replaced_within_s = 180.0

    def __init__(
        self, folder: Path, faults: tuple[Fault, ...] | None = None, num_workers: int = 2
    ) -> None:
        config = cpu_workers(num_workers)
        self.cluster = start_cluster(config, folder / "ray")
        marks = folder / "marks"
        marks.mkdir(parents=True, exist_ok=True)
        planned = planned_faults(marks, self.step_s) if faults is None else faults
        self.owner = start_owner(
            GroupPlan(
                config=config, folder=folder / "train", make_session=FakeFactory(faults=planned)
            )
        )

    def submit(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Runs a request and returns its record."""
        record: dict[str, Any] = ray.get(self.owner.submit.remote(dict(request)), timeout=400)
        return record
