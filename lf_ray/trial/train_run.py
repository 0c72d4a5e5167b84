"""One long Ray Train run: its trainer without the parts that a group has no use for.

The only file with ray.train, imported where a run is begun and in its workers: the driver stays
free of it. Nothing here needs torch, so neither a group's owner nor Train's controller imports it.

As it comes, Train starts four helper actors beside the workers: for data sets that are not given,
to ask an autoscaler for nodes that must be there already, to give back placement groups that
outlive their controller, and for checkpoints. The first three are left out, and who begins a run
is told of its placement group instead: a fifth less of a core's time a start (docs/log.md), and a
lost group is back sooner. There is no setting for them; tests/canaries/test_train_seams.py guards
the names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.util.placement_group import PlacementGroup

UNUSED_CALLBACKS = ("DatasetsCallback", "PlacementGroupCleanerCallback")


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """A worker's place in its run.

    Attributes:
        local_rank: among the workers of its node, of which there are `local_size`.
    """

    rank: int
    world_size: int
    local_rank: int
    local_size: int


def seat() -> Seat:
    """Returns the calling worker's."""
    context = ray.train.get_context()
    return Seat(
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        local_rank=context.get_local_rank(),
        local_size=context.get_local_world_size(),
    )


class _NodesAreThere(FixedScalingPolicy):  # type: ignore[misc]
    """A fixed number of workers, for which no autoscaler is asked."""

    def after_controller_start(self, train_run_context: Any) -> None:
        """Asks nobody: a group is started where its node has been seen to hold it."""

    def _maybe_send_resource_request(self) -> None:
        """Asks nobody again."""


class _TellsPlacement(WorkerGroupCallback):  # type: ignore[misc]
    """Tells of the placement group that the workers were started in."""

    def __init__(self, tell: Callable[[PlacementGroup], None]) -> None:
        self._tell = tell

    def after_worker_group_start(self, worker_group: Any) -> None:
        """Tells, in the controller."""
        self._tell(worker_group.get_worker_group_state().placement_group_handle.placement_group)


class GroupTrainer(DataParallelTrainer):  # type: ignore[misc]
    """A trainer whose controller starts the workers and little else.

    Args:
        tell_placement: picklable; called in the controller.
        parts: as for any trainer of Ray Train.
    """

    def __init__(
        self, *parts: Any, tell_placement: Callable[[PlacementGroup], None], **named: Any
    ) -> None:
        super().__init__(*parts, **named)
        self._tells = _TellsPlacement(tell_placement)

    def _initialize_and_run_controller(self, **parts: Any) -> Any:
        used = [*used_callbacks(parts["callbacks"]), self._tells]
        policy = _NodesAreThere(self.scaling_config)
        parts |= {"callbacks": used, "scaling_policy": policy}
        return super()._initialize_and_run_controller(**parts)


def used_callbacks(given: Sequence[Any]) -> list[Any]:
    """Returns a controller's callbacks without those that a group has no use for."""
    return [item for item in given if type(item).__name__ not in UNUSED_CALLBACKS]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What Train is told of a run.

    Attributes:
        folder: where Train keeps its files, under the run's name.
        use_gpu: each worker gets a GPU beside its core.
        environment: variables that the workers start with.
        node: the Ray node that all workers run on; empty leaves it to Ray.
    """

    name: str
    folder: Path
    num_workers: int
    use_gpu: bool
    environment: Mapping[str, str]
    node: str = ""


def group_trainer(
    run: Run,
    serve_rank: Callable[[dict[str, Any]], None],
    loop_config: dict[str, Any],
    tell_placement: Callable[[PlacementGroup], None],
) -> GroupTrainer:
    """Returns a trainer that calls `serve_rank` with `loop_config` once on each worker.

    `tell_placement` is told of the placement group, which outlives a controller that is killed.
    """
    gpu = {"GPU": 1} if run.use_gpu else {}
    on_node = {"label_selector": {"ray.io/node-id": run.node}} if run.node else {}
    return GroupTrainer(
        serve_rank,
        train_loop_config=loop_config,
        tell_placement=tell_placement,
        scaling_config=ScalingConfig(
            num_workers=run.num_workers,
            use_gpu=run.use_gpu,
            resources_per_worker={"CPU": 1, **gpu},
            placement_strategy="STRICT_PACK",
            **on_node,
        ),
        run_config=RunConfig(
            name=run.name,
            storage_path=str(run.folder.resolve()),
            # Retries are the owner's, who knows which request was lost.
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
            worker_runtime_env={"env_vars": dict(run.environment)},
        ),
    )
