"""What we lean on in Ray without a promise. A failure says what to look at again."""

import inspect
import subprocess
from pathlib import Path

import ray
import ray._private.node
import ray._private.ray_constants
import ray._private.services
import ray._private.worker
import ray.train
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
from ray.train.v2._internal.execution.failure_handling import create_failure_policy
from ray.train.v2.api.exceptions import WorkerGroupError

from lf_ray.trial.cluster import LOCAL_ENVIRONMENT, RAY_ENVIRONMENT


def test_the_raylet_s_messages_are_printed_by_the_function_that_we_divert() -> None:
    """Else they reach the user's screen again: see cluster._quiet."""
    source = inspect.getsource(ray._private.worker.listen_error_messages)
    assert "print_to_stdstream(" in source
    parameters = inspect.signature(ray._private.worker.print_to_stdstream).parameters
    assert list(parameters) == ["data", "ignore_prefix"]


def test_ray_starts_its_processes_by_the_class_that_we_replace() -> None:
    """Else a signal to the driver's process group ends Ray too: see cluster._by_itself."""
    services = ray._private.services
    assert issubclass(services.ConsolePopen, subprocess.Popen)
    source = inspect.getsource(services.start_ray_process)
    assert "process = ConsolePopen(" in source
    assert "start_new_session" not in source
    for start in (services.start_raylet, services.start_gcs_server):
        assert "start_ray_process(" in inspect.getsource(start)


def test_ray_keeps_to_itself_where_clusters_are_off() -> None:
    """Else all that Ray starts listens to the outside: see cluster._by_itself."""
    constants = ray._private.ray_constants
    assert constants.ENABLE_RAY_CLUSTERS_ENV_VAR in LOCAL_ENVIRONMENT
    source = inspect.getsource(ray._private.services.get_node_ip_address)
    assert "if not ray_constants.ENABLE_RAY_CLUSTER:" in source
    assert "return get_localhost_ip()" in source


def test_ray_asks_for_its_node_by_the_function_that_we_make_patient() -> None:
    """Else a busy machine gives it 30 s only: see cluster._node_once_there."""
    source = inspect.getsource(ray._private.node.Node.__init__)
    assert "node_info = ray._private.services.get_node(" in source
    assert "except RuntimeError as e:" in source


def test_configured_logging_keeps_our_handlers() -> None:
    """With configure_logging=False Ray clears them: see cluster._init."""
    source = inspect.getsource(ray.init)
    assert 'logging.getLogger("ray").handlers.clear()' in source
    assert "if configure_logging:" in source


def test_train_reads_the_environment_that_we_set() -> None:
    """A renamed variable would silently do nothing."""
    from ray.train import constants
    from ray.train.v2._internal import constants as train_constants

    names = {
        value
        for module in (train_constants, constants)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    assert {name for name in RAY_ENVIRONMENT if "TRAIN" in name or "CHDIR" in name} <= names


def test_a_lost_worker_s_error_says_which_rank() -> None:
    """workers._outcome_of reads worker_failures."""
    error = WorkerGroupError("lost", {1: RuntimeError("gone")})
    assert list(error.worker_failures) == [1]


def test_a_kill_by_the_memory_monitor_is_told_in_these_words() -> None:
    """workers._outcome_of makes host_memory of it, which counts as no failure."""
    raylet = Path(ray.__file__).parent / "core/src/ray/raylet/raylet"
    assert b"low on memory" in raylet.read_bytes()
    lost = WorkerHealthCheckFailedError("health check", ray.exceptions.OutOfMemoryError("x"))
    assert isinstance(lost.health_check_failure, ray.exceptions.OutOfMemoryError)


def test_train_can_be_told_not_to_retry() -> None:
    """Retries are the owner's; endless controller retries would hang a group that can't start."""
    config = ray.train.FailureConfig(max_failures=0, controller_failure_limit=0)
    assert create_failure_policy(config) is not None


def test_train_runs_outside_the_main_thread() -> None:
    """The owner runs fit in a thread; Train then leaves the signals alone."""
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    source = inspect.getsource(DataParallelTrainer._initialize_and_run_controller)
    assert "threading.main_thread()" in source
