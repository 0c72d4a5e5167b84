"""One worker's model, data and step: prepares a request, runs its steps, restores the state.

A session outlives its trials. It knows neither Ray nor search; what it is asked arrives as a
`TrialRequest`, what it answers are plain values. Nothing in `run` waits for another rank but the
gradients themselves.
"""

import gc
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from lf_ray.protocol import GateResult, GradientTensor, KnobValue, StepSample, TrialRequest
from lf_ray.runtime.numerics.watch import NumericsWatch
from lf_ray.runtime.parts import Parts
from lf_ray.runtime.readings.communication_cost import CommunicationCost
from lf_ray.runtime.readings.memory_levels import check_level, held_level, memory_bytes
from lf_ray.runtime.readings.settings_in_force import settings_in_force
from lf_ray.runtime.rig import Rig
from lf_ray.runtime.steps.feed import Feed, FeedKey
from lf_ray.runtime.steps.laps import HostLaps, Laps, NoLaps
from lf_ray.runtime.steps.order import PipelinedOrder, PlainOrder, StepOrder
from lf_ray.runtime.trial_plan import TrialPlan, feed_key, trial_plan
from lf_ray.settings import GraphScope, SweepConfig


class Session:
    """One worker of a group.

    The calls of a trial, in order: `prepare`, `rehearse`, `run`, `capture`, `run` ..., `gate`,
    `run` ..., `measure_overlap`, `reset`.

    Args:
        config: the group's settings; a request's knobs are laid over them.
        device: "cpu" or "cuda:n".
        work_group: process group that gradients go through; None for a single rank.
        control_group: process group for digests; None for a single rank.
        parts: model, loader and collective; None takes the real ones.
    """

    def __init__(
        self,
        config: SweepConfig,
        rank: int,
        world_size: int,
        device: torch.device | str,
        work_group: Any,
        control_group: Any,
        parts: Parts | None = None,
    ) -> None:
        assert config.num_workers == world_size
        self._config = config
        self._rank, self._num_ranks = rank, world_size
        self._device = torch.device(device)
        self._work_group, self._control_group = work_group, control_group
        self._parts = parts or Parts()
        self._model = self._parts.model(config, self._device)
        self._model.train()
        self._collective = self._parts.collective(work_group, self._device)
        self._costs = CommunicationCost(work_group, control_group, self._device)
        self._feed: Feed | None = None
        self._rig: Rig | None = None
        self._watch: NumericsWatch | None = None
        self._plan: TrialPlan | None = None
        self._order: StepOrder | None = None
        self._laps: Laps = HostLaps()
        self._level: dict[str, float] | None = None
        self._step = 0
        self._walls_s: list[float] = []
        self.lr: list[float] = []
        self.costs_s: dict[str, float] = {}

    @property
    def samples_per_step(self) -> int:
        """Returns the samples over all ranks that one step consumes."""
        return self._plan.global_batch if self._plan is not None else 0

    @property
    def gradients(self) -> tuple[GradientTensor, ...]:
        """Returns what is sent, in ready order; empty before the first backward."""
        return self._rig.gradients if self._rig is not None else ()

    @property
    def data_id(self) -> str:
        """Returns the content hash of what is trained on; empty before the first request."""
        return self._feed.loader.data_id if self._feed is not None else ""

    def prepare(self, request: TrialRequest) -> Mapping[str, KnobValue]:
        """Builds what a request asks for, without communication, and returns what is in force.

        Raises:
            torch.OutOfMemoryError: the model or its first backward does not fit.
            ConfigError: the knobs can't be used together.
        """
        self.costs_s = {}
        feed = self._feed_for(feed_key(self._config, request), request)
        rig = self._rig_on(feed)
        frozen = rig.is_prefix_frozen
        plan = trial_plan(self._config, request, rig.gradients, frozen_prefix=frozen)
        rig.reducer.use(plan.buckets, plan.num_leading, self._collective)
        self._plan = plan
        order = PipelinedOrder if plan.pipelined else PlainOrder
        self._order = order(rig.train_step, feed, rig.dropout)
        self._start_over()
        effective = plan.effective()
        effective["graph"] = "off" if plan.scope is GraphScope.off else "emulated"
        effective.update(settings_in_force(plan.config, self._device))
        return effective

    def rehearse(self) -> None:
        """Runs forward and backward on a batch, without communication.

        Raises:
            torch.OutOfMemoryError: the batch does not fit.
        """
        rig, feed, plan = self._prepared()
        inputs, _ = feed.next(0, NoLaps())
        rig.rehearse(inputs)
        del inputs
        rig.reducer.use(plan.buckets, plan.num_leading, self._collective)
        self._start_over()
        if self._level is None:
            self._level = self._held()

    def capture(self) -> Mapping[str, float]:
        """Captures the step where the request asks for it; returns its metrics."""
        return {}

    def run(self, num_steps: int) -> list[StepSample]:
        """Runs and times steps on this rank.

        The first step of a new batch shape takes the reference before it.
        """
        _, _, plan = self._prepared()
        watch = self._numerics()
        if not watch.knows(plan.reference_key):
            self._charge("reference", partial(self._take_reference, plan))
        return [self._one_step() for _ in range(num_steps)]

    def gate(self) -> GateResult:
        """Compares the first steps with the reference's, over all ranks."""
        return self._numerics().result()

    def measure_overlap(self) -> Mapping[str, float]:
        """Returns overlap_hidden and what it follows from; every rank must call it.

        Steps without communication leave ranks with different weights, so `reset` must follow.
        """
        rig, _, plan = self._prepared()
        if self._num_ranks == 1:
            return {}
        settled_s = self._walls_s[self._config.measure.gate_steps :]
        metrics: Mapping[str, float] = self._charge(
            "communication_cost",
            lambda: self._costs.measure(plan, rig, self._collective, settled_s, self._bare_step),
        )
        return metrics

    def memory(self) -> Mapping[str, float]:
        """Returns bytes by name: allocated, reserved, peak ..."""
        return memory_bytes(self._device)

    def reset(self) -> Mapping[str, float]:
        """Restores the state before any trial and returns the memory levels that prove it.

        Raises:
            GroupError: memory did not come back to its level.
        """
        self._order = None
        if self._rig is not None:
            self._rig.reducer.release()
            self._rig.restore()
        if self._feed is not None:
            self._feed.rewind()
        gc.collect()
        if self._level is None:
            return {}
        now = self._held()
        check_level(self._level, now, self._device)
        return {**now, **{f"level_{name}": value for name, value in self._level.items()}}

    def weights_checksum(self) -> int:
        """Returns a checksum over the bits of all fp32 masters."""
        rig, _, _ = self._prepared()
        return rig.weights_checksum()

    def close(self) -> None:
        """Releases everything; safe to call twice."""
        self._order = None
        if self._rig is not None:
            self._rig.close()
        if self._feed is not None:
            self._feed.close()
        self._rig = self._feed = self._watch = None

    def _feed_for(self, key: FeedKey, request: TrialRequest) -> Feed:
        workers, prefetch = request.knobs["data.workers"], request.knobs["data.prefetch"]
        if self._feed is not None and self._feed.key != key:
            self._feed.close()
            self._feed = None
        if self._feed is None:
            loader = self._parts.loader(
                self._config, self._rank, key.seed, key.batch_size, self._device
            )
            self._feed = Feed(
                key,
                loader,
                self._parts,
                self._model,
                place=(self._rank, self._num_ranks),
                device=self._device,
                num_held=self._config.measure.gate_steps,
            )
        self._feed.loader.set(workers=int(workers), prefetch=int(prefetch))
        self._feed.loader.fill()
        return self._feed

    def _rig_on(self, feed: Feed) -> Rig:
        if self._rig is None:
            inputs, _ = feed.next(0, NoLaps())
            self._rig = Rig(self._model, inputs, self._config.train, num_ranks=self._num_ranks)
            self._watch = NumericsWatch(
                self._rig,
                num_steps=self._config.measure.gate_steps,
                rank=self._rank,
                num_ranks=self._num_ranks,
                control_group=self._control_group,
            )
        return self._rig

    def _prepared(self) -> tuple[Rig, Feed, TrialPlan]:
        assert self._rig is not None, "prepare comes first"
        assert self._feed is not None
        assert self._plan is not None
        return self._rig, self._feed, self._plan

    def _numerics(self) -> NumericsWatch:
        assert self._watch is not None, "prepare comes first"
        return self._watch

    def _start_over(self) -> None:
        rig, feed, plan = self._prepared()
        rig.restore()
        feed.rewind()
        self._step = 0
        self._walls_s, self.lr = [], []
        self._numerics().begin(plan.reference_key, plan.buckets)

    def _one_step(self) -> StepSample:
        rig, _, plan = self._prepared()
        assert self._order is not None
        watch, step = self._numerics(), self._step
        began_s, spent_s = time.perf_counter(), watch.spent_s
        lr = plan.schedule.lr(step)
        rig.optimizer.set_inputs(lr, step + 1)
        self._laps.start()
        wait_s = self._order.run(step, self._laps, partial(watch.look, step))
        reading = self._laps.stop()
        device_s, phases_s = reading.read()
        wall_s = time.perf_counter() - began_s - (watch.spent_s - spent_s)
        self._step += 1
        self._walls_s.append(wall_s)
        self.lr.append(lr)
        return StepSample(
            step=step,
            rank=self._rank,
            wall_s=wall_s,
            device_s=wall_s if self._device.type == "cpu" else device_s,
            loss=float(rig.train_step.loss),
            grad_norm=float(rig.optimizer.grad_norm),
            wait_s=wait_s,
            phases_s=phases_s,
        )

    def _take_reference(self, plan: TrialPlan) -> None:
        rig, feed, _ = self._prepared()
        watch = self._numerics()
        rig.reducer.use(rig.whole_buffer, 0, self._collective)

        def run_steps(before: Callable[[int], None], after: Callable[[int], None]) -> None:
            rig.restore()
            feed.rewind()
            for step in range(watch.num_steps):
                rig.optimizer.set_inputs(plan.schedule.lr(step), step + 1)
                rig.dropout.manual_seed(feed.dropout_seed(step))
                inputs, _ = feed.next(step, NoLaps())
                features = rig.train_step.prefix(inputs.batches, NoLaps())
                rig.train_step.forward_backward(features, inputs, NoLaps())
                before(step)
                rig.train_step.reduce(NoLaps())
                probe = partial(after, step)
                rig.train_step.update(inputs.num_micro_batches, NoLaps(), probe)

        watch.take_reference(plan.reference_key, run_steps, self._work_group)
        rig.reducer.use(plan.buckets, plan.num_leading, self._collective)
        self._start_over()

    def _bare_step(self) -> None:
        """Runs the coming step without looking at it."""
        rig, _, plan = self._prepared()
        assert self._order is not None
        rig.optimizer.set_inputs(plan.schedule.lr(self._step), self._step + 1)
        self._order.run(self._step, NoLaps(), None)
        self._step += 1

    def _held(self) -> dict[str, float]:
        assert self._feed is not None
        known = self._feed.held_bytes + self._numerics().held_bytes
        return held_level(self._device, known)

    def _charge(self, name: str, action: Callable[[], Any]) -> Any:
        began_s = time.perf_counter()
        result = action()
        self.costs_s[name] = self.costs_s.get(name, 0.0) + time.perf_counter() - began_s
        return result
