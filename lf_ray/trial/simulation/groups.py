"""`cluster=sim_...`: requests answered by a model of the machine, in no time.

Everything above the owner is as in a real sweep: Tune, search, journal, report. Nothing is
measured; every record says `simulated`, and no worker is started.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from lf_ray.clock import FakeClock, SystemClock
from lf_ray.launch import Groups
from lf_ray.protocol import TrialRequest
from lf_ray.settings import SweepConfig
from lf_ray.testing.sim.cluster import SimulatedCluster
from lf_ray.trial.cluster import start_cluster, stop_cluster
from lf_ray.trial.runner import HEAD_ONLY, bound_to

_log = logging.getLogger(__name__)


def is_simulated(config: SweepConfig) -> bool:
    """Returns whether the sweep runs on a model of a machine."""
    return config.cluster.kind.startswith("sim_")


class SimulatedOwner:
    """Answers as the owner of a group would; its clock begins now and runs ahead."""

    def __init__(self, profile: str, seed: int) -> None:
        clock = FakeClock(epoch_s=SystemClock().wall_s())
        self._cluster = SimulatedCluster(profile, seed, clock)

    def submit_if_free(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the simulated record."""
        record = self._cluster.run(TrialRequest.from_json(request))
        return {"record": record.to_json(), "gave_up": ""}


@contextmanager
def simulated_groups(config: SweepConfig, folder: Path) -> Iterator[Groups]:
    """Starts Ray for Tune alone, and one simulated group."""
    cluster = start_cluster(config, folder / "ray")
    left_over: list[str] = []
    try:
        _log.info("simulated: %s answers from a model, nothing is measured", config.cluster.kind)
        actor = ray.remote(num_cpus=0)(SimulatedOwner)
        owner = actor.remote(config.cluster.kind, config.sweep.seed)
        yield Groups(trainable=bound_to([owner]), resources=HEAD_ONLY, left_over=left_over)
    finally:
        left_over += stop_cluster(cluster)
