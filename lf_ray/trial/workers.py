"""A worker group as one long Ray Train run: how it is started, watched and ended.

The run's function builds the process groups, then hands over to `ranks.serve`, which knows no Ray.
torch and `train_run` are imported where they are used: the driver imports this file and stays free
of torch and ray.train.
"""

import contextlib
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from lf_ray.clock import SystemClock
from lf_ray.errors import GroupError, four_parts
from lf_ray.loongforge.session import LoongForgeSession
from lf_ray.loongforge.start_check import Checkout
from lf_ray.protocol import Knobs, TrialOutcome
from lf_ray.settings import SweepConfig, with_knobs
from lf_ray.trial.environment import check_environment, worker_environment
from lf_ray.trial.faults.leftovers import Kin, process_state
from lf_ray.trial.faults.outcomes import PEER_LOST, error_kind, lost
from lf_ray.trial.group import Policy
from lf_ray.trial.owner import GroupOwner
from lf_ray.trial.ranks.contracts import WorkerSession
from lf_ray.trial.ranks.serve import Order, ServeSettings, serve

GROUP_MARK = "LF_RAY_GROUP"
OWNER_ANSWERS_S = 300.0
"""An owner that works answers within a second; without one a rank has nothing to stay for."""
CONTROL_TIMEOUT_S = 1800.0
"""Last resort only: every wait on the control line has a deadline at the owner."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a session finds itself.

    Attributes:
        config: with the knobs set that the group was started for.
        device: "cpu" or "cuda:N".
        work_group: process group that carries gradients; `control_group` carries everything else.
    """

    config: SweepConfig
    rank: int
    world_size: int
    device: str
    work_group: Any
    control_group: Any


def native_session(place: Place) -> WorkerSession:
    """Returns the session that trains the project's own model."""
    from lf_ray.runtime.session import Session

    session: WorkerSession = Session(
        place.config,
        place.rank,
        place.world_size,
        place.device,
        place.work_group,
        place.control_group,
    )
    return session


@dataclass(frozen=True, kw_only=True, slots=True)
class LoongForgeFactory:
    """Makes sessions whose steps are LoongForge's; picklable.

    Attributes:
        folder: where its runs are kept, seen by all ranks.
        base_global_batch: samples a step of the baseline.
    """

    checkout: Checkout
    folder: Path
    base_global_batch: int

    def __call__(self, place: Place) -> WorkerSession:
        """Returns the session of the rank at this place."""
        from lf_ray.trial.ranks.control import GlooControl

        return LoongForgeSession(
            config=place.config,
            checkout=self.checkout,
            rank=place.rank,
            world_size=place.world_size,
            line=GlooControl(place.control_group),
            folder=self.folder,
            base_global_batch=self.base_global_batch,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupPlan:
    """Everything that a group is started from.

    Attributes:
        folder: where Ray Train keeps its files.
        make_session: picklable; called once on each rank.
        environment: variables for workers that were set by hand on the driver.
        node: the Ray node that all ranks run on; empty leaves it to Ray.
        gpu_in_child: the GPUs are for processes that the workers start; they touch none themselves.
    """

    config: SweepConfig
    folder: Path
    make_session: Callable[[Place], WorkerSession] = native_session
    serve: ServeSettings = field(default_factory=ServeSettings)
    policy: Policy = field(default_factory=Policy)
    environment: Mapping[str, str] = field(default_factory=dict)
    node: str = ""
    gpu_in_child: bool = False

    @property
    def has_gpu(self) -> bool:
        """Returns whether there is a GPU for each rank."""
        return self.config.cluster.device == "cuda"

    @property
    def on_gpu(self) -> bool:
        """Returns whether each worker itself uses a GPU."""
        return self.has_gpu and not self.gpu_in_child


class RankLink:
    """A rank's line to the owner actor."""

    def __init__(self, owner: Any, incarnation: int, rank: int) -> None:
        self._owner = owner
        self._incarnation = incarnation
        self._rank = rank

    def next_order(self, after: int) -> Order:
        """Asks the owner for work; blocks up to a second."""
        order = self._owner.next_order.remote(self._incarnation, after)
        return Order(**ray.get(order, timeout=OWNER_ANSWERS_S))

    def store_port(self) -> int:
        """Returns the port of the first rank's store, once it listens.

        Raises:
            GroupError: the group is being ended.
        """
        port = 0
        while not port:  # the owner's deadline for a start ends it
            asked = self._owner.store_port.remote(self._incarnation)
            port = ray.get(asked, timeout=OWNER_ANSWERS_S)
        if port < 0:
            raise GroupError(
                four_parts(
                    f"starting rank {self._rank} of group {self._incarnation}",
                    "ranks meet at the first one's store",
                    "the group is being ended",
                    "Nothing: its owner says why.",
                )
            )
        return int(port)

    def tell(self, what: str, value: Mapping[str, Any]) -> None:
        """Tells the owner of an event and does not wait for it to be heard."""
        self._owner.tell.remote(self._incarnation, self._rank, what, dict(value))


def serve_rank(loop_config: dict[str, Any]) -> None:
    """Runs on each worker of the Train run, until the owner says leave."""
    import gc
    import os

    from lf_ray.trial.train_run import seat

    plan: GroupPlan = loop_config["plan"]
    here = seat()
    link = RankLink(loop_config["owner"], loop_config["incarnation"], here.rank)
    runtime = ray.get_runtime_context()
    me = {"pid": os.getpid(), "node": runtime.get_node_id(), "actor": runtime.current_actor}
    link.tell("hello", me)

    import torch
    import torch.distributed as dist

    from lf_ray.trial.ranks.control import (
        GlooControl,
        control_group,
        join_store,
        open_store,
        work_group,
    )
    from lf_ray.trial.ranks.probe import probe_group

    # A rank that is late for the meeting is still in the phase before it.
    link.tell("phase", {"phase": "meeting", "limit_s": plan.serve.start_s})
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // here.local_size))
    if plan.on_gpu:
        torch.cuda.set_device(here.local_rank)
    if here.rank == 0:
        store, port = open_store(CONTROL_TIMEOUT_S)
        link.tell("store", {"port": port})
    else:
        store = join_store(link.store_port(), CONTROL_TIMEOUT_S)
    backend = "nccl" if plan.on_gpu else "gloo"
    work = work_group(backend, store, here.rank, here.world_size, CONTROL_TIMEOUT_S)
    control = control_group(CONTROL_TIMEOUT_S)
    place = Place(
        config=with_knobs(plan.config, loop_config["knobs"]),
        rank=here.rank,
        world_size=here.world_size,
        device=f"cuda:{here.local_rank}" if plan.on_gpu else "cpu",
        work_group=work,
        control_group=control,
    )

    clock = SystemClock()

    def make_session() -> WorkerSession:
        check_environment(loop_config["environment"], os.environ)
        session = plan.make_session(place)
        # Imports leave some 300 000 objects that never die. Left to the collector they cost
        # 0.15 s of core time in each reset, and a pause in the middle of a timed step.
        gc.collect()
        gc.freeze()
        return session

    serve(
        link,
        GlooControl(control),
        make_session,
        clock=clock,
        settings=plan.serve,
        probe=lambda: probe_group(place.work_group, place.device, clock),
    )
    dist.destroy_process_group()


class RayLauncher:
    """Starts and ends the ranks of a group as workers of a Train run."""

    def __init__(self, plan: GroupPlan) -> None:
        self.plan = plan
        self.owner: Any = None
        self.node = ray.get_runtime_context().get_node_id()
        self._mark = uuid.uuid4().hex
        self._ended: dict[int, TrialOutcome] = {}
        self._placements: dict[int, PlacementGroup] = {}

    @property
    def num_ranks(self) -> int:
        """Returns the number of ranks of a group."""
        return self.plan.config.num_workers

    def start(self, incarnation: int, knobs: Knobs) -> None:
        """Begins a Train run in a thread of its own."""
        threading.Thread(
            target=self._fit, args=(incarnation, dict(knobs)), name="train-fit", daemon=True
        ).start()

    def _fit(self, incarnation: int, knobs: dict[str, Any]) -> None:
        try:
            self._trainer(incarnation, knobs).fit()
            outcome = lost("worker_lost", "the workers have left")
        except Exception as error:
            outcome = _outcome_of(error)
        self._ended[incarnation] = outcome
        self._give_back(incarnation)

    def placed(self, incarnation: int, placement: PlacementGroup) -> None:
        """Takes note of where a run's workers are."""
        self._placements[incarnation] = placement

    def _give_back(self, incarnation: int) -> None:
        """Frees what a run holds: it would outlive a controller that was killed.

        Not waited for, since Ray itself may be gone.
        """
        placement = self._placements.pop(incarnation, None)
        if placement is not None:
            threading.Thread(
                target=remove_placement_group, args=(placement,), name="give-back", daemon=True
            ).start()

    def _trainer(self, incarnation: int, knobs: dict[str, Any]) -> Any:
        from lf_ray.trial.train_run import Run, group_trainer

        owner = self.owner or ray.get_runtime_context().current_actor
        config = with_knobs(self.plan.config, knobs)
        environment = {
            **worker_environment(config, self.plan.environment),
            GROUP_MARK: self._mark_of(incarnation),
        }
        if self.plan.has_gpu and not self.plan.on_gpu:
            # Held by this actor, since Train would open a context on a GPU that a worker holds.
            held = ray.get_runtime_context().get_accelerator_ids()["GPU"]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(held)
        run = Run(
            name=f"group-{self._mark[:8]}-{incarnation}",
            folder=self.plan.folder,
            num_workers=self.num_ranks,
            use_gpu=self.plan.on_gpu,
            environment=environment,
            node=self.plan.node,
        )
        loop_config = {
            "plan": self.plan,
            "owner": owner,
            "incarnation": incarnation,
            "knobs": knobs,
            "environment": environment,
        }
        tell_placement = partial(_tell_placement, owner, incarnation)
        return group_trainer(run, serve_rank, loop_config, tell_placement)

    def _mark_of(self, incarnation: int) -> str:
        return f"{self._mark}-{incarnation}"

    def ended(self, incarnation: int) -> TrialOutcome | None:
        """Returns why the Train run is over, None while it is not."""
        return self._ended.get(incarnation)

    def process(self, member: Mapping[str, Any]) -> str:
        """Returns what is known of a rank's process on this node; others are unknown."""
        return process_state(member["pid"]) if member["node"] == self.node else "unknown"

    def kill(self, incarnation: int, members: Mapping[int, Mapping[str, Any]]) -> None:
        """Ends all workers of the run and their children."""
        Kin(GROUP_MARK, self._mark_of(incarnation)).end()
        for member in members.values():
            if member["node"] != self.node:
                ray.kill(member["actor"])
        self._give_back(incarnation)


def _tell_placement(owner: Any, incarnation: int, placement: PlacementGroup) -> None:
    owner.placed.remote(incarnation, placement)


def _outcome_of(error: Exception) -> TrialOutcome:
    """Returns what Train's error says: which rank, and whether the host's memory was the reason."""
    failures: Mapping[int, Exception] = getattr(error, "worker_failures", None) or {}
    causes = [(rank, item) for rank, item in failures.items() if error_kind(item) != PEER_LOST]
    rank, cause = min(causes, default=(None, error), key=lambda item: item[0])
    # What is none of Ray's is an error of the worker's own code, outside of any trial.
    is_rays = type(cause).__module__.startswith("ray.") or error_kind(cause) == PEER_LOST
    # Train's own words are long; what Ray said of the process is in the error that it wraps.
    cause = getattr(cause, "health_check_failure", cause)
    text = f"{type(cause).__name__}: {cause}"
    if "low on memory" in text or "OutOfMemory" in type(cause).__name__:
        return lost("host_memory", text, rank)
    return lost("worker_lost" if is_rays or rank is None else "exception", text, rank)


class GroupActor(GroupOwner):
    """The owner as a Ray actor."""

    def __init__(self, plan: GroupPlan) -> None:
        launcher = RayLauncher(plan)
        super().__init__(launcher, SystemClock(), policy=plan.policy, start_s=plan.serve.start_s)
        launcher.owner = ray.get_runtime_context().current_actor
        self._ray_launcher = launcher

    async def placed(self, incarnation: int, placement: PlacementGroup) -> None:
        """Hears from a run's controller where its workers are."""
        self._ray_launcher.placed(incarnation, placement)


def start_owner(plan: GroupPlan) -> Any:
    """Returns the handle of a new owner, which lives as long as the driver or until it is closed.

    Not detached: a detached owner would keep its workers, and every core, past a killed driver.
    """
    absolute = replace(plan, folder=plan.folder.resolve())
    actor = ray.remote(num_cpus=0, max_restarts=0)(GroupActor)
    if plan.node:
        # On the node of its workers: it watches their processes, and goes when they go.
        beside = NodeAffinitySchedulingStrategy(plan.node, soft=False)
        actor = actor.options(scheduling_strategy=beside)
    if plan.has_gpu and not plan.on_gpu:
        actor = actor.options(num_gpus=plan.config.num_workers)
    return actor.remote(absolute)


def close_owner(owner: Any, within_s: float = 30.0) -> None:
    """Closes the group and ends its owner; both may be gone, and Ray with them."""
    with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
        ray.get(owner.close.remote(), timeout=within_s)
    with contextlib.suppress(ray.exceptions.RayError, RuntimeError):
        ray.kill(owner)
