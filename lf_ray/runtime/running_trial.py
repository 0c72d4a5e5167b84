"""One trial on one rank: its steps from the first one on, eager or captured, timed and watched.

Made by the session for each request and dropped with it; what outlives it is the rig, the feed,
the stored references and the lane.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lf_ray.protocol import StepSample
from lf_ray.runtime.numerics.determinism import deterministic_algorithms
from lf_ray.runtime.numerics.watch import NumericsWatch
from lf_ray.runtime.readings.gradient_noise import SquaredNorms, squared_norms
from lf_ray.runtime.rig import Rig
from lf_ray.runtime.steps.feed import Feed
from lf_ray.runtime.steps.lane import CudaLane, HostLane
from lf_ray.runtime.steps.laps import NoLaps, Reading
from lf_ray.runtime.steps.order import EagerOrder, StaticOrder, StepOrder
from lf_ray.runtime.steps.step_graph import StepGraph
from lf_ray.runtime.trial_plan import TrialPlan
from lf_ray.runtime.update.collectives import Collective, NoCollective
from lf_ray.settings import GraphScope


@dataclass(frozen=True, slots=True)
class Equipment:
    """What a rank's trials share."""

    rank: int
    rig: Rig
    feed: Feed
    watch: NumericsWatch
    collective: Collective
    lane: HostLane | CudaLane

    @property
    def device(self) -> torch.device:
        """Returns where the model is."""
        return self.rig.flat.grad_N.device


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step that was started; `inside_s` of it went into the gate's digest."""

    step: int
    begin: Any
    end: Any
    inside_s: float
    place: int
    reading: Reading
    wait_s: float


class RunningTrial:
    """Runs a plan's steps.

    Attributes:
        step: the coming one, from 0.
        lr: of each step so far.
        walls_s: of each step so far.
    """

    def __init__(self, plan: TrialPlan, equipment: Equipment) -> None:
        self.plan = plan
        self.lr: list[float] = []
        self.walls_s: list[float] = []
        self._equipment = equipment
        self._order: StepOrder = self._eager_order()
        self._begin: Any = None
        self.step = 0
        self.start_over()

    def start_over(self) -> None:
        """Goes back to the state before the first step."""
        tools = self._equipment
        self._use(tools.collective)
        tools.rig.restore()
        tools.feed.rewind()
        tools.watch.begin(self.plan.reference_key, self.plan.buckets, sharded=self.plan.sharded)
        self.step = 0
        self.lr.clear()
        self.walls_s.clear()

    def rehearse(self) -> None:
        """Runs forward and backward on a batch, without communication."""
        inputs, _ = self._equipment.feed.next(0, NoLaps())
        self._equipment.rig.rehearse(inputs)
        self.start_over()

    def take_reference(self, work_group: Any) -> None:
        """Runs the reference of this batch shape: whole fp32 buffer, after backward, eager.

        Where it differs from itself, a small fault could hide below that spread: then, once for a
        group, reference and this plan are run again under deterministic algorithms.
        """
        watch = self._equipment.watch
        self._run_reference(self.plan.reference_key, work_group)
        if watch.wants_deterministic_gate(self.plan.reference_key):
            with deterministic_algorithms():
                self._gate_deterministically(work_group)
        self.start_over()

    def _run_reference(self, key: Hashable, work_group: Any) -> None:
        rig, feed, watch = self._equipment.rig, self._equipment.feed, self._equipment.watch
        rig.use(rig.whole_buffer, 0, self._equipment.collective)

        def run_steps(before: Callable[[int], None], after: Callable[[int], None]) -> None:
            rig.restore()
            feed.rewind()
            for step in range(watch.num_steps):
                rig.optimizer.set_inputs(self.plan.schedule.lr(step), step + 1)
                rig.dropout.manual_seed(feed.dropout_seed(step))
                inputs, _ = feed.next(step, NoLaps())
                features = rig.train_step.prefix(inputs.batches, NoLaps())
                rig.train_step.forward_backward(features, inputs, NoLaps())
                before(step)
                rig.train_step.reduce(NoLaps())
                rig.train_step.update(inputs.num_micro_batches, NoLaps(), partial(after, step))
                if not rig.optimizer.overwrites_gradient:
                    after(step)

        watch.take_reference(key, run_steps, work_group)

    def _gate_deterministically(self, work_group: Any) -> None:
        rig, watch = self._equipment.rig, self._equipment.watch
        key = ("deterministic", self.plan.reference_key)
        self._run_reference(key, work_group)
        self.start_over()
        watch.begin(key, self.plan.buckets, sharded=self.plan.sharded)
        order = self._eager_order()
        for step in range(watch.num_steps):
            rig.optimizer.set_inputs(self.plan.schedule.lr(step), step + 1)
            order.run(step, NoLaps(), partial(watch.look, step))
            watch.look(step)
        watch.keep_deterministic_gate(key)

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Goes on where `state` was taken; data and draws follow from its steps."""
        self._equipment.rig.load_state(state)
        self.step = int(state["steps_done"])

    def capture(self) -> dict[str, float]:
        """Captures the step; steps that have run are run again, so that all are captured ones."""
        num_done = self.step
        self.release()
        self._order, metrics = self._captured_order()
        self.start_over()
        for _ in range(num_done):
            self._launch()
        return metrics

    def run(self, num_steps: int) -> list[StepSample]:
        """Runs and times steps."""
        self._begin = self._equipment.lane.mark()
        samples: list[StepSample] = []
        launched: _Launched | None = None
        for _ in range(num_steps):
            # One step late: reading a result must not keep the next step waiting.
            previous, launched = launched, self._launch()
            samples += [self._sample(previous)] if previous else []
        samples += [self._sample(launched)] if launched else []
        self.walls_s += [sample.wall_s for sample in samples]
        # A graph's own events are recorded anew by each replay, so a block knows its last step's.
        inside_s = self._order.phases_s()
        if not inside_s:
            return samples
        return [replace(item, phases_s={**item.phases_s, **inside_s}) for item in samples]

    def send_all(self) -> None:
        """Sends the plan's messages with nothing beside them."""
        reduced_N = self._equipment.rig.reducer.reduced_N
        collective = self._equipment.collective
        slices = [reduced_N[bucket.first : bucket.last] for bucket in self.plan.buckets.buckets]
        for values_N in slices:
            if self.plan.sharded:
                collective.start_scatter(values_N)
            else:
                collective.start(values_N)
        self._equipment.rig.share_weights()
        collective.wait()

    @contextmanager
    def without_communication(self) -> Iterator[Callable[[], None]]:
        """Yields what runs one more step of this trial in which nothing is sent."""
        self._use(NoCollective())
        if self.plan.scope is not GraphScope.off and self._equipment.device.type == "cuda":
            self.release()
            self._order, _ = self._captured_order()
        try:
            yield self._bare_step
        finally:
            self._use(self._equipment.collective)

    def squared_norms(self, num_steps: int) -> SquaredNorms:
        """Returns squared gradient norms of a small and a large batch over coming batches.

        Eager, every message after backward, and without an update; a captured step's graph goes
        first, so that there is room.
        """
        tools = self._equipment
        self.release()
        tools.rig.use(self.plan.buckets, 0, tools.collective)
        found = squared_norms(
            tools.rig, tools.feed, self.step, num_steps, num_ranks=self.plan.num_ranks
        )
        self._use(tools.collective)
        return found

    def release(self) -> None:
        """Frees the graph; must happen before the process group goes."""
        self._order.release()
        self._order = self._eager_order()

    def _use(self, collective: Collective) -> None:
        plan = self.plan
        self._equipment.rig.use(plan.buckets, plan.num_leading, collective, sharded=plan.sharded)

    def _eager_order(self) -> EagerOrder:
        rig = self._equipment.rig
        return EagerOrder(rig.train_step, self._equipment.feed, rig.dropout)

    def _captured_order(self) -> tuple[StaticOrder, dict[str, float]]:
        rig, feed = self._equipment.rig, self._equipment.feed
        inputs, _ = feed.next(0, NoLaps())
        graph = StepGraph(
            rig.train_step,
            inputs,
            with_update=self.plan.scope is GraphScope.step_optimizer,
            pipelined=self.plan.pipelined,
        )
        num_warmup = self.plan.config.graph.warmup_steps
        metrics = graph.capture(rig.dropout, num_warmup)
        return StaticOrder(graph, rig.train_step, feed, rig.dropout), metrics

    def _bare_step(self) -> None:
        rig = self._equipment.rig
        rig.optimizer.set_inputs(self.plan.schedule.lr(self.step), self.step + 1)
        self._order.run(self.step, NoLaps(), None)
        self.step += 1

    def _launch(self) -> _Launched:
        """Starts the coming step; on a GPU it is not waited for, but for the gate's digests."""
        rig, watch, lane = self._equipment.rig, self._equipment.watch, self._equipment.lane
        step, begin, spent_s = self.step, self._begin, watch.spent_s
        lr = self.plan.schedule.lr(step)
        rig.optimizer.set_inputs(lr, step + 1)
        laps = lane.laps()
        laps.start()
        wait_s = self._order.run(step, laps, partial(watch.look, step))
        reading = laps.stop()
        place = lane.send(rig.train_step.loss, rig.optimizer.grad_norm)
        end = self._begin = lane.mark()
        inside_s = watch.spent_s - spent_s
        if watch.wants(step):
            watch.look(step)
            self._begin = lane.mark()
        self.step += 1
        self.lr.append(lr)
        return _Launched(step, begin, end, inside_s, place, reading, wait_s)

    def _sample(self, launched: _Launched) -> StepSample:
        lane = self._equipment.lane
        wall_s = lane.between_s(launched.begin, launched.end) - launched.inside_s
        loss, grad_norm = lane.read(launched.place)
        device_s, phases_s = launched.reading.read()
        skipped = self._equipment.feed.skipped(launched.step)
        return StepSample(
            step=launched.step,
            rank=self._equipment.rank,
            wall_s=wall_s,
            device_s=wall_s if self._equipment.device.type == "cpu" else device_s,
            loss=loss,
            grad_norm=grad_norm,
            wait_s=launched.wait_s,
            phases_s=phases_s,
            num_skipped=skipped.num_samples,
            bad_frames=tuple(sorted(skipped.frames)),
        )
