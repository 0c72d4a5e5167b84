"""The real parts of a sweep: data from disk, Ray on this machine, one warm group of workers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
from ray import tune

from lf_ray.data.batches.training_set import open_training_set
from lf_ray.data.check import check_dataset, raise_problems
from lf_ray.launch import Groups, Launch
from lf_ray.settings import SweepConfig
from lf_ray.trial.cluster import start_cluster, stop_cluster
from lf_ray.trial.ranks.serve import ServeSettings
from lf_ray.trial.runner import HEAD_ONLY, TrialRunner
from lf_ray.trial.workers import GroupPlan, close_owner, start_owner


def prepare_data(config: SweepConfig) -> str:
    """Checks what is trained on, renders the sample set if that is asked for, returns its id.

    Raises:
        DataError: it can't be trained on; every reason in one message.
    """
    raise_problems(check_dataset(config.data, config.model))
    if config.data.source == "synthetic":
        return "synthetic"
    return open_training_set(config.data, config.model).data_id


@contextmanager
def open_groups(config: SweepConfig, folder: Path) -> Iterator[Groups]:
    """Starts Ray and one warm group, and leaves neither behind.

    Raises:
        MachineError: Ray does not start.
    """
    left_over: list[str] = []
    cluster = start_cluster(config, folder)
    try:
        plan = GroupPlan(
            config=config,
            folder=folder / "train",
            serve=ServeSettings(gate_steps=config.measure.gate_steps),
        )
        owner = start_owner(plan)
        try:
            yield Groups(
                trainable=tune.with_parameters(TrialRunner, owners=[owner]),
                num_groups=1,
                resources=HEAD_ONLY,
                left_over=left_over,
            )
        finally:
            if ray.is_initialized():
                close_owner(owner)
    finally:
        left_over += stop_cluster(cluster)


LAUNCH = Launch(prepare_data=prepare_data, open_groups=open_groups)
