"""Ray itself: started for a sweep or joined by address, kept quiet, and gone without a trace.

The one place that sets environment variables, since Ray and its parts can be reached no other way.
"""

import gc
import logging
import os
import signal
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.util import placement_group_table
from ray.util.placement_group import PlacementGroup, remove_placement_group

from lf_ray.errors import MachineError, four_parts
from lf_ray.settings import SweepConfig
from lf_ray.trial.faults.keeper import Keeper, start_keeper
from lf_ray.trial.faults.leftovers import Kin, describe, leads_session, process_state

NAMESPACE = "lf_ray"
SWEEP_MARK = "LF_RAY_SWEEP"
_STOP_S = 15.0
_KNOCK_S = 10.0
_GLOO = "GLOO_SOCKET_IFNAME"
"""Else gloo listens on the address that the host's name stands for."""
_CORE = ("gcs_server", "raylet")
_START_TRIES = 3
_NODE_S = 120.0
"""How long a node of ours may take to start. Ray's own 30 s, for which it has no setting, are too
little on a busy machine."""

RAY_ENVIRONMENT: Mapping[str, str] = {
    # Workers' deaths are seen by the owner at once; this only paces how fast Train gives back
    # their resources (default 2 s).
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    # The owner's own deadline for a start is shorter, and says which rank is late.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
    # A rank's GPU goes by its place on the node, so all of the node's are visible to each.
    "TRAIN_ENABLE_SHARE_CUDA_VISIBLE_DEVICES": "1",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_SYNCER": "1",
}

LOCAL_ENVIRONMENT: Mapping[str, str] = {
    # The control process of a cluster of our own does not come back. A sweep sees that it is gone
    # and has this long to write its report, before Ray ends the driver.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "60",
    # Off, as on a desktop: Ray takes 127.0.0.1 for this machine's address, and nothing that it
    # starts listens to the outside.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # On a busy machine Ray's agents need more than their 30 s, and the raylet aborts without them.
    "RAY_agent_register_timeout_ms": "120000",
}


@dataclass(kw_only=True, slots=True)
class Cluster:
    """A running Ray that a sweep may use.

    Attributes:
        kin: this sweep's processes, by a mark that every one of them inherits.
        ours: it was started here and ends with the sweep.
        job: Ray's id of this driver, which ends the ids of all it makes.
        keeper: ends the processes of a Ray of our own should this driver be killed.
        core: pids of the processes without which a Ray of our own is none, by name.
        environment: what the variables were before.
    """

    kin: Kin
    ours: bool
    job: str
    keeper: Keeper | None = None
    core: Mapping[str, int] = field(default_factory=dict)
    environment: dict[str, str | None] = field(default_factory=dict)

    def gone(self) -> str:
        """Returns which processes of a Ray of our own have ended, "" while all run."""
        ended = [name for name, pid in self.core.items() if process_state(pid) == "gone"]
        return f"Ray's {' and '.join(ended)} ended" if ended else ""


def start_cluster(config: SweepConfig, folder: Path | None = None) -> Cluster:
    """Starts Ray on this machine, or joins the cluster at `cluster.address`.

    Args:
        config: sizes the cluster: at least one core for each worker.
        folder: where Ray's Python side logs; Ray's own logs stay in its session folder.

    Raises:
        MachineError: Ray does not start, or there is none at the address.
    """
    kin = Kin(SWEEP_MARK, uuid.uuid4().hex)
    address = config.cluster.address if config.cluster.kind == "ray" else None
    local = {} if address else {**LOCAL_ENVIRONMENT, _GLOO: os.environ.get(_GLOO, "lo")}
    environment = {**RAY_ENVIRONMENT, **local, kin.name: kin.value}
    before = set_environment(environment)
    quiet(folder)
    handlers = _signal_handlers()
    keeper = None if address else start_keeper(kin.name, kin.value, os.environ)
    try:
        _init(config, address, environment, kin)
    # Ray says that its parts are late with a plain Exception.
    except Exception as error:
        set_environment(before)
        if keeper:
            keeper.release(_STOP_S)
        raise MachineError(
            four_parts(
                f"joining Ray at {address}" if address else "starting Ray",
                "a sweep runs on a Ray cluster that answers",
                f"{type(error).__name__}: {error}",
                "Check cluster.address." if address else "See the newest folder in /tmp/ray.",
            )
        ) from error
    _give_back(handlers)
    kin.pids()
    if keeper:
        keeper.look()
    return Cluster(
        kin=kin,
        ours=address is None,
        job=ray.get_runtime_context().get_job_id(),
        keeper=keeper,
        core={} if address else core_processes(kin),
        environment=before,
    )


def _signal_handlers() -> dict[int, Any]:
    """Returns what handles Ctrl-C and SIGTERM; Ray takes SIGTERM and aborts the driver on it."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}


def _give_back(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        if handler is not None:
            signal.signal(number, handler)


def _init(
    config: SweepConfig, address: str | None, environment: Mapping[str, str], kin: Kin
) -> None:
    common: dict[str, Any] = {
        "namespace": NAMESPACE,
        "log_to_driver": False,
        # With False, Ray would drop the handlers that `quiet` set.
        "configure_logging": True,
        "logging_level": logging.WARNING,
    }
    if address:
        _knock(address)
        # Its processes were started before us, so they know nothing of our environment.
        ray.init(address=address, runtime_env={"env_vars": dict(environment)}, **common)
        return
    for tries_left in reversed(range(_START_TRIES)):
        try:
            # "local", or Ray would join whatever cluster somebody has started on this machine.
            with _by_itself(kin):
                ray.init("local", include_dashboard=False, **cluster_size(config), **common)
        except Exception as error:
            ray.shutdown()
            kin.end()
            if not tries_left or "timed out" not in str(error):
                raise
            # Its handles of the processes that were just ended would complain of them later.
            error.__traceback__ = None
            with warnings.catch_warnings(action="ignore", category=ResourceWarning):
                gc.collect()
        else:
            return


@contextmanager
def _by_itself(kin: Kin) -> Iterator[None]:
    """Gives the processes that Ray starts meanwhile a session of their own, on 127.0.0.1, and time.

    What a terminal or a job manager sends to the driver's process group is then the driver's to
    act on: with Ray gone at the same moment it could not end its trials in order. There is no
    setting for it, and the one for the address is read when Ray is imported.
    tests/canaries/test_ray_seams.py guards the names.
    """
    services, constants = ray._private.services, ray._private.ray_constants
    before = services.ConsolePopen, services.get_node, constants.ENABLE_RAY_CLUSTER
    services.ConsolePopen = partial(services.ConsolePopen, start_new_session=True)
    services.get_node = partial(_node_once_there, services.get_node, partial(_is_lost, kin))
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        services.ConsolePopen, services.get_node, constants.ENABLE_RAY_CLUSTER = before


def _node_once_there(get_node: Callable[..., Any], is_lost: Callable[[], bool], *names: Any) -> Any:
    """Returns what Ray knows of a node, asking until it knows or `_NODE_S` are over.

    Raises:
        TimeoutError: the node `is_lost`. Ray would go on to ask on a RuntimeError.
    """
    ends_s = time.monotonic() + _NODE_S
    while True:
        try:
            return get_node(*names)
        except RuntimeError as error:
            if is_lost():
                raise TimeoutError("the node timed out: its raylet has ended") from error
            if time.monotonic() > ends_s:
                raise
            time.sleep(0.1)


def _is_lost(kin: Kin) -> bool:
    """Returns whether a node's raylet has ended.

    It does where its agents' ports are not known in time, which no setting prolongs.
    """
    return "raylet" not in core_processes(kin)


def _knock(address: str) -> None:
    """Raises OSError where nobody listens; Ray itself would try again for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S).close()


def core_processes(kin: Kin) -> dict[str, int]:
    """Returns the pids of the control process and the node's agent of a marked Ray, by name.

    Both lead a session; a child of theirs that has not become its own program yet does not.
    """
    programs = {pid: describe(pid).split()[1] for pid in kin.pids() if leads_session(pid)}
    named = {Path(program).name: pid for pid, program in programs.items()}
    return {name: named[name] for name in _CORE if name in named}


def cluster_size(config: SweepConfig) -> dict[str, int]:
    """Returns what a Ray of our own is told to have: two gloo workers may share a core."""
    cores, workers = len(os.sched_getaffinity(0)), config.cluster.workers or 1
    on_gpu = config.cluster.device == "cuda"
    return {"num_cpus": max(cores, workers), "num_gpus": workers if on_gpu else 0}


def group_nodes(config: SweepConfig) -> list[str]:
    """Returns the node of each group: one group a node that holds all its workers.

    One only, though more might fit: two groups on a node would measure each other. A cluster of
    our own has one node, which needs no name.

    Raises:
        MachineError: no node of the cluster holds a group.
    """
    if config.cluster.kind != "ray" or not config.cluster.address:
        return [""]
    need = {"CPU": config.num_workers}
    if config.cluster.device == "cuda":
        need["GPU"] = config.num_workers
    nodes = [item for item in ray.nodes() if item["Alive"]]
    fit = [
        str(item["NodeID"])
        for item in nodes
        if all(item["Resources"].get(name, 0) >= count for name, count in need.items())
    ]
    if not fit:
        there = "; ".join(
            ", ".join(f"{name} {item['Resources'].get(name, 0):g}" for name in need)
            for item in nodes
        )
        raise MachineError(
            four_parts(
                f"placing groups of {config.num_workers} workers",
                f"a node must offer {', '.join(f'{k} {v}' for k, v in need.items())}",
                f"nodes with {there or 'nothing'}",
                "Give a smaller cluster.workers, or larger nodes.",
            )
        )
    return sorted(fit)


def quiet(folder: Path | None) -> None:
    """Sends what Ray says on the driver to a file of the sweep, or nowhere without a folder."""
    # The raylet's own messages (a worker has died) are printed past all logging. There is no
    # setting for them; tests/canaries/test_ray_seams.py guards this name.
    ray._private.worker.print_to_stdstream = _log_raylet_message
    logger = logging.getLogger("ray")
    logger.propagate = False
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    if folder is None:
        logger.addHandler(logging.NullHandler())
        return
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / "ray.log", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logger.addHandler(handler)


def _log_raylet_message(data: Mapping[str, Any], ignore_prefix: bool) -> None:
    for line in data["lines"]:
        logging.getLogger("ray").warning("%s: %s", data["pid"], line)


def set_environment(values: Mapping[str, str | None]) -> dict[str, str | None]:
    """Sets (or removes, where None) variables of this process and returns what they were."""
    before = {name: os.environ.get(name) for name in values}
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return before


def placement_groups(cluster: Cluster) -> list[str]:
    """Returns the placement groups that this driver's sweep still holds."""
    table: dict[str, dict[str, Any]] = placement_group_table()
    return sorted(
        name
        for name, item in table.items()
        if item.get("state") != "REMOVED" and name.endswith(cluster.job)
    )


def stop_cluster(cluster: Cluster) -> list[str]:
    """Leaves Ray, ends it if it is ours; returns what was still there and had to be ended."""
    groups: list[str] = []
    gone = cluster.gone()
    if ray.is_initialized() and not gone:  # it would wait for those that can't answer
        # In a Ray of our own they end with it; in a joined one those of a lost node's owner may
        # still be there, and wait for a node that holds them.
        groups = [] if cluster.ours else _placement_groups_after(cluster, _STOP_S)
        ray.shutdown()
    quiet(None)
    set_environment(cluster.environment)
    left = leftovers(cluster, within_s=0.0 if gone else _STOP_S)
    if left:
        cluster.kin.end()
    if cluster.keeper:
        cluster.keeper.release(_STOP_S)
    return [*left, *(f"placement group {name}" for name in groups)]


def _placement_groups_after(cluster: Cluster, within_s: float) -> list[str]:
    """Removes what the sweep still holds; returns what is there all the same after `within_s`."""
    for name in placement_groups(cluster):
        remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(name))))
    ends_s = time.monotonic() + within_s
    while (groups := placement_groups(cluster)) and time.monotonic() < ends_s:
        time.sleep(0.1)
    return groups


def leftovers(cluster: Cluster, within_s: float = 0.0) -> list[str]:
    """Returns the sweep's processes on this machine that are still alive after `within_s`.

    The driver itself is none of them: it was started before its mark.
    """
    ends_s = time.monotonic() + within_s
    while True:
        pids = [pid for pid in cluster.kin.pids() if pid != os.getpid()]
        if not pids or time.monotonic() >= ends_s:
            return list(map(describe, pids))
        time.sleep(0.1)
