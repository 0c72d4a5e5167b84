"""What a sweep script hands to search: how its data is checked and its groups are opened.

The driver's side only: no torch here, and nothing that imports it.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from lf_ray.data.batches.filling import fill_cache
from lf_ray.data.batches.opening import open_training_set
from lf_ray.data.check import check_dataset, raise_problems
from lf_ray.launch import Groups, Launch
from lf_ray.loongforge.start_check import identity, ready_checkout
from lf_ray.settings import SweepConfig, Trainer, knobs_of
from lf_ray.trial.cluster import group_nodes, start_cluster, stop_cluster
from lf_ray.trial.environment import forwarded
from lf_ray.trial.ranks.contracts import WorkerSession
from lf_ray.trial.ranks.outside import visit_outside
from lf_ray.trial.ranks.serve import ServeSettings
from lf_ray.trial.runner import HEAD_ONLY, bound_to
from lf_ray.trial.visit import run_visit
from lf_ray.trial.workers import (
    GroupPlan,
    LoongForgeFactory,
    Place,
    close_owner,
    native_session,
    start_owner,
)

OWNERS_UP_S = 600.0
"""For the groups' owners to begin: they import Ray Train, all at once where there are many."""


def prepare_data(config: SweepConfig) -> str:
    """Checks what is trained on, rendering the sample set where that is the source; returns its id.

    Frames are decoded into the cache here, so that no trial has to wait for it.

    Raises:
        DataError: the data can't be trained on.
        ConfigError: the trainer is LoongForge, and something that it needs is missing.
    """
    if config.trainer is Trainer.loongforge:
        return identity(ready_checkout(config), config)
    raise_problems(check_dataset(config.data, config.model))
    if config.data.source == "synthetic":
        return "synthetic"
    training_set = open_training_set(config.data, config.model)
    try:
        if config.data.cache:
            fill_cache(training_set, lambda line: sys.stdout.write(f"{line}\n"))
        return training_set.data_id
    finally:
        training_set.close()


def session_maker(config: SweepConfig, folder: Path) -> Callable[[Place], WorkerSession]:
    """Returns what each rank makes its session with.

    Args:
        config: its knobs are the baseline's.
        folder: of the sweep.
    """
    if config.trainer is not Trainer.loongforge:
        return native_session
    return LoongForgeFactory(
        checkout=ready_checkout(config),
        folder=(folder / "loongforge").resolve(),
        base_global_batch=config.batch.per_gpu * config.batch.accumulation * config.num_workers,
    )


@contextmanager
def open_groups(
    config: SweepConfig,
    folder: Path,
    make_session: Callable[[Place], WorkerSession] | None = None,
) -> Iterator[Groups]:
    """Starts Ray and the groups, which come up while search prepares; ends them on the way out.

    Args:
        config: workers and device filled in; its knobs are the baseline's.
        folder: of the sweep; Ray's talk goes to <folder>/ray.
        make_session: what each rank trains with; None goes by the settings' trainer.
    """
    outside = config.trainer is Trainer.loongforge
    make_session = make_session or session_maker(config, folder)
    cluster = start_cluster(config, folder / "ray")
    left_over: list[str] = []
    owners: list[Any] = []
    try:
        for node in group_nodes(config):
            plan = GroupPlan(
                config=config,
                folder=folder / "ray",
                make_session=make_session,
                serve=ServeSettings(
                    gate_steps=config.measure.gate_steps,
                    visit=visit_outside if outside else run_visit,
                ),
                gpu_in_child=outside,
                environment=forwarded(os.environ),
                node=node,
            )
            owners.append(start_owner(plan))
        begun = [owner.prepare.remote(knobs_of(config)) for owner in owners]
        ray.get(begun, timeout=OWNERS_UP_S)
        yield Groups(
            trainable=bound_to(owners),
            num_groups=len(owners),
            resources=HEAD_ONLY,
            left_over=left_over,
            gone=cluster.gone,
        )
    finally:
        for owner in owners:
            if not cluster.gone():
                close_owner(owner)
        left_over += stop_cluster(cluster)


LAUNCH = Launch(prepare_data=prepare_data, open_groups=open_groups)
