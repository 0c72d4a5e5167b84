"""What we leave out of Ray Train without a setting for it. A failure says what to look at again."""

import inspect
import subprocess
import sys
import warnings
from dataclasses import fields
from pathlib import Path

from ray.train.v2._internal.callbacks.placement_group_callback import (
    PlacementGroupCleanerCallback,
)
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy, ScalingPolicy
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from lf_ray.trial.train_run import (
    UNUSED_CALLBACKS,
    GroupTrainer,
    Run,
    group_trainer,
    used_callbacks,
)


def _trainer(folder: Path) -> GroupTrainer:
    run = Run(
        name="run",
        folder=folder,
        num_workers=2,
        use_gpu=False,
        environment={"OMP_NUM_THREADS": "1"},
    )
    return group_trainer(run, lambda settings: None, {}, lambda placement: None)


def test_callbacks_that_start_helpers_are_left_out(tmp_path: Path) -> None:
    """A name that Train changed would bring its helper back, and four CPU seconds a start."""
    trainer = _trainer(tmp_path)
    with warnings.catch_warnings(action="ignore"):  # Ray Data complains of itself
        given = trainer._create_default_callbacks()
    names = [type(item).__name__ for item in given]
    assert set(UNUSED_CALLBACKS) < set(names)
    left = [type(item).__name__ for item in used_callbacks(given)]
    assert left == [name for name in names if name not in UNUSED_CALLBACKS]


def test_train_tells_of_its_placement_group_as_its_own_cleaner_hears_of_it() -> None:
    """Else one whose controller was killed keeps its GPUs from the group that replaces it."""
    source = inspect.getsource(PlacementGroupCleanerCallback.after_worker_group_start)
    assert "worker_group.get_worker_group_state()" in source
    assert "placement_group_handle.placement_group" in source


def test_the_controller_is_handed_the_parts_that_we_replace() -> None:
    source = inspect.getsource(DataParallelTrainer.fit)
    assert "self._initialize_and_run_controller(" in source
    for part in ("scaling_policy=", "callbacks="):
        assert part in source


def test_workers_stand_without_data_sets() -> None:
    parameters = inspect.signature(RayTrainWorker.init_train_context).parameters
    assert parameters["dataset_shard_provider"].default is None


def test_the_fixed_policy_asks_for_nodes_where_we_ask_nobody() -> None:
    for name in ("after_controller_start", "_maybe_send_resource_request"):
        assert "send_resource_request" in inspect.getsource(getattr(ScalingPolicy, name))
    # Ending the run must not ask either: without a client it does not.
    assert "_coordinator_client is None" in inspect.getsource(
        ScalingPolicy._cancel_resource_request
    )
    source = inspect.getsource(FixedScalingPolicy)
    assert "_coordinator_client" not in source
    assert "_autoscaling_coordinator" not in source


def test_owner_and_controller_need_no_torch() -> None:
    """It costs each of them three seconds of a core before the first worker can start."""
    module = (
        "import sys, lf_ray.trial.workers, lf_ray.trial.train_run;"
        "import ray.train.v2._internal.execution.controller;"
        "print(sorted(set(sys.modules) & {'torch'}))"
    )
    answer = subprocess.run([sys.executable, "-c", module], capture_output=True, text=True)
    assert answer.stdout.strip() == "[]", answer.stderr


def test_the_trainer_is_told_what_a_group_needs(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    assert trainer.scaling_config.num_workers == 2
    assert trainer.run_config.worker_runtime_env == {"env_vars": {"OMP_NUM_THREADS": "1"}}
    assert trainer.run_config.failure_config.max_failures == 0
    assert "worker_runtime_env" in {item.name for item in fields(trainer.run_config)}
