"""One worker's model, data and step: prepares a request, runs its steps, restores the state.

A session outlives its trials. It knows neither Ray nor search; what it is asked arrives as a
`TrialRequest`, what it answers are plain values. Nothing in `run` waits for another rank but the
gradients themselves.
"""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch

from lf_ray.protocol import GateResult, GradientTensor, KnobValue, StepSample, TrialRequest
from lf_ray.runtime.host_copy import HostCopy
from lf_ray.runtime.kernels import compile_s
from lf_ray.runtime.numerics.reference import shard_room
from lf_ray.runtime.numerics.watch import NumericsWatch
from lf_ray.runtime.parts import Loader, Parts
from lf_ray.runtime.readings.communication_cost import CommunicationCost
from lf_ray.runtime.readings.device_memory import DeviceMemory
from lf_ray.runtime.readings.gradient_noise import small_and_big
from lf_ray.runtime.readings.memory_levels import (
    check_level,
    held_level,
    memory_bytes,
    settle_level,
)
from lf_ray.runtime.readings.settings_in_force import settings_in_force
from lf_ray.runtime.rig import Rig, most_elements
from lf_ray.runtime.running_trial import Equipment, RunningTrial
from lf_ray.runtime.steps.feed import Feed, FeedKey, cache_lag
from lf_ray.runtime.steps.lane import lane_on
from lf_ray.runtime.steps.laps import NoLaps
from lf_ray.runtime.trial_plan import TrialPlan, feed_key, trial_plan
from lf_ray.settings import GraphScope, SweepConfig, with_knobs


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
        self._memory = DeviceMemory(config.memory, self._device)
        self._lane = lane_on(self._device)
        self._model = self._parts.model(config, self._device)
        self._model.train()
        self._collective = self._parts.collective(work_group, self._device)
        self._comm_cost = CommunicationCost(work_group, control_group, self._device)
        self._feed: Feed | None = None
        self._room: tuple[HostCopy, list[HostCopy]] | None = None
        self._rig: Rig | None = None
        self._watch: NumericsWatch | None = None
        self._trial: RunningTrial | None = None
        self._level: dict[str, float] | None = None
        self._costs_s: dict[str, float] = {}
        self._compiled_before_s = 0.0

    @property
    def costs_s(self) -> Mapping[str, float]:
        """Returns what the current trial has spent apart from its steps, by name."""
        compiled_s = compile_s() - self._compiled_before_s
        return {**self._costs_s, **({"compile": compiled_s} if compiled_s > 0 else {})}

    @property
    def samples_per_step(self) -> int:
        """Returns the samples over all ranks that one step consumes."""
        return self._trial.plan.global_batch if self._trial is not None else 0

    @property
    def lr(self) -> Sequence[float]:
        """Returns the learning rate of each step since `prepare`."""
        return self._trial.lr if self._trial is not None else ()

    @property
    def model(self) -> Any:
        """Returns the module that is trained, for exports and evaluation between steps."""
        return self._model

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
        self._costs_s = {}
        self._compiled_before_s = compile_s()
        self._drop_trial()
        with self._lane.active():
            feed = self._feed_for(feed_key(self._config, request), request)
            lag = self._cache_lag(feed.loader, request.deadlines.first_batch_s)
            tools = self._equipment_on(feed)
            rig = tools.rig
            plan = trial_plan(
                self._config, request, rig.gradients, frozen_prefix=rig.is_prefix_frozen
            )
            self._trial = RunningTrial(plan, tools)
            self._memory.fit(self._trial.rehearse)
        effective = plan.effective()
        effective["graph"] = self._graph_word(plan)
        effective["kernels"] = self._parts.kernels
        effective["ladder"] = self._memory.ladder
        effective.update(settings_in_force(plan.config, self._device, self._memory.pool))
        effective.update(feed.loader.in_force())
        if lag:
            effective["settings_mismatch"] = lag
        return effective

    def rehearse(self) -> None:
        """Runs forward and backward on a batch, without communication.

        Raises:
            torch.OutOfMemoryError: the batch does not fit.
        """
        with self._lane.active():
            self._running().rehearse()
        if self._level is None:
            settle_level()
            self._level = self._held()

    def capture(self) -> Mapping[str, float]:
        """Captures the step where the request asks for it; returns its metrics.

        Raises:
            CaptureError: the step can't be captured; on a GPU the process must then be replaced.
            torch.OutOfMemoryError: the graph does not fit.
        """
        trial = self._running()
        if trial.plan.scope is GraphScope.off:
            return {}
        with self._lane.active():
            metrics: Mapping[str, float] = self._charge("capture", trial.capture)
        return metrics

    def run(self, num_steps: int) -> list[StepSample]:
        """Runs and times steps on this rank.

        The first step of a new batch shape takes the reference before it.
        """
        trial = self._running()
        with self._lane.active():
            if self._needs_reference(trial):
                self._charge("reference", partial(trial.take_reference, self._work_group))
            return trial.run(num_steps)

    def gate(self) -> GateResult:
        """Compares the first steps with the reference's, over all ranks."""
        return self._numerics().result()

    def measure_overlap(self) -> Mapping[str, float]:
        """Returns overlap_hidden and what it follows from; every rank must call it.

        Steps without communication leave ranks with different weights, so `reset` must follow.
        """
        trial = self._running()
        if self._num_ranks == 1:
            return {}
        measure = partial(
            self._comm_cost.measure,
            trial.plan,
            trial.walls_s[self._config.measure.gate_steps :],
            trial.send_all,
            trial.without_communication,
        )
        with self._lane.active():
            metrics: Mapping[str, float] = self._charge("communication_cost", measure)
        return metrics

    def measure_noise(self, num_steps: int) -> tuple[Sequence[float], Sequence[float], int, int]:
        """Takes squared gradient norms over further batches; every rank must call it.

        Returns this rank's of a small batch, those of a large one, and both batches in samples.
        """
        trial = self._running()
        with self._lane.active():
            small_sq, big_sq = trial.squared_norms(num_steps)
        feed = trial.plan.feed
        return small_sq, big_sq, *small_and_big(feed.batch_size, feed.accumulation, self._num_ranks)

    def collect(self) -> None:
        """Brings together what ranks have updated apart; every rank must call it before `state`."""
        assert self._rig is not None, "prepare comes first"
        with self._lane.active():
            self._rig.collect()

    def state(self) -> dict[str, torch.Tensor]:
        """Returns what a checkpoint holds: masters and moments by name, and the step count."""
        assert self._rig is not None, "prepare comes first"
        with self._lane.active():
            return self._rig.state() | {"steps_done": torch.tensor(self._running().step)}

    def resume(self, state: Mapping[str, torch.Tensor]) -> None:
        """Goes on where `state` was taken; after `prepare`, before or after `capture`.

        Raises:
            CheckpointError: the state is of another model.
        """
        with self._lane.active():
            self._running().resume(state)

    def memory(self) -> Mapping[str, float]:
        """Returns bytes by name: allocated, reserved, peak ..."""
        return {**memory_bytes(self._device), **self._memory.bytes()}

    def news(self) -> list[str]:
        """Returns in words what the data went through since it was asked last, and got over."""
        return self._feed.loader.news() if self._feed is not None else []

    def reset(self) -> Mapping[str, float]:
        """Restores the state before any trial and returns the memory levels that prove it.

        Raises:
            GroupError: memory did not come back to its level.
        """
        self._drop_trial()
        if self._rig is not None:
            self._rig.release()
            self._rig.restore()
        if self._feed is not None:
            self._feed.rewind()
        gc.collect()
        self._memory.give_back()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        if self._level is None:
            return {}
        now = self._held()
        check_level(self._level, now, self._device)
        return {**now, **{f"level_{name}": value for name, value in self._level.items()}}

    def weights_checksum(self) -> int:
        """Returns a checksum over the bits of all fp32 masters; every rank must call it."""
        self.collect()
        assert self._rig is not None
        with self._lane.active():
            return self._rig.weights_checksum()

    def close(self) -> None:
        """Releases graphs, then everything else; safe to call twice."""
        self._drop_trial()
        if self._rig is not None:
            self._rig.close()
        if self._feed is not None:
            self._feed.close()
        self._rig = self._feed = self._watch = None
        self._memory.close()

    def _feed_for(self, key: FeedKey, request: TrialRequest) -> Feed:
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
        asked = with_knobs(self._config, dict(request.knobs)).data
        self._feed.loader.set(
            asked.workers, asked.prefetch, cache=asked.cache, decode_threads=asked.decode_threads
        )
        return self._feed

    def _cache_lag(self, loader: Loader, limit_s: float) -> str:
        """Waits for the frame cache; returns in words that a timed step would compete with it."""
        return cache_lag(loader, limit_s)

    def _equipment_on(self, feed: Feed) -> Equipment:
        if self._rig is None:
            inputs, _ = feed.next(0, NoLaps())
            snapshot, room = self._room = self._room or self._new_room()
            self._rig = Rig(
                self._model,
                inputs,
                self._config.train,
                rank=self._rank,
                num_ranks=self._num_ranks,
                device=self._device,
                snapshot=snapshot,
            )
            self._room = None
            self._watch = NumericsWatch(
                self._rig,
                num_steps=self._config.measure.gate_steps,
                rank=self._rank,
                num_ranks=self._num_ranks,
                control_group=self._control_group,
                room=room,
            )
        return Equipment(
            self._rank, self._rig, feed, self._numerics(), self._collective, self._lane
        )

    def _new_room(self) -> tuple[HostCopy, list[HostCopy]]:
        """Returns room for the snapshot and the first reference, made while the rig compiles.

        Kept until there is a rig: a batch that does not fit is followed by a smaller one.
        """
        num_elements = most_elements(self._model)
        snapshot = HostCopy(num_elements, self._device)
        if not self._config.measure.gate_steps:
            return snapshot, []
        return snapshot, shard_room(num_elements, self._num_ranks, self._device)

    def _running(self) -> RunningTrial:
        assert self._trial is not None, "prepare comes first"
        return self._trial

    def _numerics(self) -> NumericsWatch:
        assert self._watch is not None, "prepare comes first"
        return self._watch

    def _needs_reference(self, trial: RunningTrial) -> bool:
        watched = self._config.measure.gate_steps > 0 and trial.step == 0
        return watched and not self._numerics().knows(trial.plan.reference_key)

    def _drop_trial(self) -> None:
        if self._trial is not None:
            self._trial.release()
        self._trial = None

    def _graph_word(self, plan: TrialPlan) -> str:
        if plan.scope is GraphScope.off:
            return "off"
        return plan.scope.value if self._device.type == "cuda" else "emulated"

    def _held(self) -> dict[str, float]:
        assert self._feed is not None
        known = chain(self._feed.held_tensors, self._numerics().held_tensors())
        return held_level(self._device, known)

    def _charge(self, name: str, action: Callable[[], Any]) -> Any:
        began_s = time.perf_counter()
        result = action()
        self._costs_s[name] = self._costs_s.get(name, 0.0) + time.perf_counter() - began_s
        return result
