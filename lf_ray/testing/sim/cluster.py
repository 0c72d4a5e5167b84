"""A warm group that does not exist: answers requests as workers would, on a clock that it turns.

What it returns says `simulated` among the effective values.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from lf_ray.clock import FakeClock
from lf_ray.measure import decide, read_visit, tolerance
from lf_ray.protocol import (
    Budget,
    ChangeCost,
    GateResult,
    Knobs,
    KnobValue,
    OutcomeKind,
    Trace,
    TrialOutcome,
    TrialRecord,
    TrialRequest,
    change_cost,
)
from lf_ray.settings import SweepConfig, knobs_of
from lf_ray.testing.sim.learning import simulated_loss, simulated_noise
from lf_ray.testing.sim.memory import memory_need, out_of_memory
from lf_ray.testing.sim.noise import Factors, StepNoise
from lf_ray.testing.sim.profiles import Profile, profile_of
from lf_ray.testing.sim.step import StepTime, step_time

GATE_STEPS = 3
BLOCK_S = 0.75
FIRST_STEP_FACTOR = 3.0
_REFERENCE_KNOBS = (
    "batch.per_gpu",
    "batch.accumulation",
    "graph.scope",
    "pipeline.prefix",
    "update.sharded",
)


class Truth:
    """What holds of a profile's points without noise; shared by all groups that simulate it."""

    def __init__(self, profile: str | Profile) -> None:
        self.profile = profile_of(profile) if isinstance(profile, str) else profile
        self._steps: dict[str, StepTime] = {}

    def baseline(self) -> dict[str, KnobValue]:
        """Returns every knob as a plain run on this machine has it."""
        return {**knobs_of(SweepConfig()), **self.profile.baseline}

    def step(self, knobs: Knobs) -> StepTime:
        """Returns the step of a point."""
        key = knobs_key(knobs)
        if key not in self._steps:
            self._steps[key] = step_time(self.profile, knobs)
        return self._steps[key]

    def noise(self, knobs: Knobs) -> StepNoise:
        """Returns how the point's step times scatter."""
        captured = knobs["graph.scope"] != "off"
        return self.profile.captured_noise if captured else self.profile.eager_noise

    def samples_per_step(self, knobs: Knobs) -> int:
        """Returns the samples over all ranks that one step takes."""
        per_rank = int(knobs["batch.per_gpu"]) * int(knobs["batch.accumulation"])
        return self.profile.num_ranks * per_rank

    def samples_per_s(self, knobs: Knobs) -> float:
        """Returns the long-run throughput of a point over all ranks, 0 where it does not fit."""
        if out_of_memory(self.profile, knobs) is not None:
            return 0.0
        step_s = self.step(knobs).step_s * self.noise(knobs).long_run_factor
        return self.samples_per_step(knobs) / step_s

    def optimum(self, points: Iterable[Knobs]) -> tuple[Knobs, float]:
        """Returns the truly fastest of the points and its samples a second."""
        rated = [(self.samples_per_s(knobs), knobs) for knobs in points]
        rate, knobs = max(rated, key=lambda item: item[0])
        return knobs, rate

    def trace(
        self, knobs: Knobs, seed: int, visit: str, num_steps: int, *, settled: bool = False
    ) -> Factors:
        """Returns the step times of a visit; the first one is slow.

        Args:
            knobs: of the point.
            seed: of what visits scatter by.
            visit: id of the request.
            num_steps: how many steps at most.
            settled: the group has run eager steps before, so that they do not fall any more.
        """
        text = f"{seed}/{visit}/{knobs_key(knobs)}"
        digest = hashlib.sha256(text.encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
        noise = self.noise(knobs)
        if settled:
            noise = dataclasses.replace(noise, settle_frac=0.0)
        steps_s = self.step(knobs).step_s * noise.factors(rng, 1, num_steps)[0]
        steps_s[0] *= FIRST_STEP_FACTOR
        return np.asarray(steps_s)


@dataclass(slots=True)
class _Group:
    """What a group keeps from one visit to the next."""

    knobs: Knobs | None = None
    told_gradients: bool = False
    eager_before: bool = False
    batches: set[KnobValue] = field(default_factory=set)
    references: set[str] = field(default_factory=set)


class SimulatedCluster:
    """One warm group of a profile's ranks.

    Args:
        profile: by name, as a value, or as a truth shared with other groups.
        seed: of the noise. What a visit reads depends on seed, request id and knobs, and on
            whether the group has run eager steps before, not on anything else.
        clock: moved on by everything that takes time; a fresh one by default.
        with_references: measure a step without communication for each new kind of step, as our
            own visits do.
        compiled: batches that the machine's compiler cache has; the group's are added. Groups that
            follow one another on a machine share it.
    """

    def __init__(
        self,
        profile: str | Profile | Truth,
        seed: int = 0,
        clock: FakeClock | None = None,
        *,
        with_references: bool = True,
        compiled: set[KnobValue] | None = None,
    ) -> None:
        self.truth = profile if isinstance(profile, Truth) else Truth(profile)
        self.clock = clock or FakeClock()
        self._seed = seed
        self._with_references = with_references
        self._compiled = set() if compiled is None else compiled
        self._group = _Group()

    @property
    def gpu_seconds(self) -> float:
        """Returns the seconds of this clock times the GPUs that were held."""
        return self.clock.monotonic_s() * self.truth.profile.num_ranks

    def true_samples_per_s(self, knobs: Knobs) -> float:
        """Returns the long-run throughput of a point, 0 where it does not fit."""
        return self.truth.samples_per_s(knobs)

    def optimum(self, points: Iterable[Knobs]) -> tuple[Knobs, float]:
        """Returns the truly fastest of the points and its samples a second."""
        return self.truth.optimum(points)

    def run(self, request: TrialRequest) -> TrialRecord:
        """Returns the record of one visit and moves the clock by what it took."""
        clock_s = {"requested": self.clock.wall_s()}
        lost = out_of_memory(self.truth.profile, request.knobs)
        costs_s = self._change_to(request.knobs, lost)
        if lost is not None:
            return self._infeasible(request, lost, costs_s, clock_s)
        clock_s["first_step"] = self.clock.wall_s()
        steps_s = self.truth.trace(
            request.knobs,
            self._seed,
            request.id,
            request.budget.max_steps,
            settled=self._group.eager_before,
        )
        self._group.eager_before |= request.knobs["graph.scope"] == "off"
        samples = self.truth.samples_per_step(request.knobs)
        steps_s, rule = measured_steps(steps_s, request.budget, samples)
        self.clock.sleep(float(steps_s.sum()))
        clock_s["last_step"] = self.clock.wall_s()
        costs_s["reference"] = self._refer(request.knobs)
        clock_s["finished"] = self.clock.wall_s()
        return self._completed(request, steps_s, rule, costs_s, clock_s)

    def _change_to(self, knobs: Knobs, lost: TrialOutcome | None) -> dict[str, float]:
        """Pays for making the group ready for these knobs; returns the seconds by class.

        Memory runs out in the rehearsal, before anything is captured, unless it is a near thing.
        """
        costs, group = self.truth.profile.costs, self._group
        change = change_cost(group.knobs, knobs)
        if change is ChangeCost.RESTART:
            self._group = group = _Group()
        captured = knobs["graph.scope"] != "off"
        reached = lost is None or lost.group_lost
        costs_s = {
            "restart": costs.cold_s if change is ChangeCost.RESTART else 0.0,
            "reset": 0.0 if change is ChangeCost.RESTART else costs.reset_s,
            "prepare": costs.prepare_s,
            "compile": self._compile_s(knobs["batch.per_gpu"]),
            "capture": costs.capture_s * (captured and reached and change is not ChangeCost.HOT),
        }
        group.knobs = dict(knobs)
        self.clock.sleep(sum(costs_s.values()))
        return costs_s

    def _compile_s(self, batch: KnobValue) -> float:
        """Returns what the kernels of a batch cost, once a group and more once a machine."""
        if batch in self._group.batches:
            return 0.0
        costs = self.truth.profile.costs
        seconds = costs.cached_compile_s if batch in self._compiled else costs.compile_s
        self._group.batches.add(batch)
        self._compiled.add(batch)
        return seconds

    def _refer(self, knobs: Knobs) -> float:
        """Pays for the step without communication, once for equal settings in a group."""
        key = knobs_key({name: knobs[name] for name in _REFERENCE_KNOBS})
        if key in self._group.references or not self._with_references:
            return 0.0
        self._group.references.add(key)
        seconds = self.truth.step(knobs).no_comm_s * self.truth.profile.costs.reference_steps
        self.clock.sleep(seconds)
        return seconds

    def _infeasible(
        self,
        request: TrialRequest,
        lost: TrialOutcome,
        costs_s: dict[str, float],
        clock_s: dict[str, float],
    ) -> TrialRecord:
        seconds = self.truth.profile.costs.failure_s
        self.clock.sleep(seconds)
        costs_s["prepare"] += seconds
        if lost.group_lost:
            self._group = _Group()
        outcome = TrialOutcome(
            kind=lost.kind,
            reason=lost.reason,
            rank=lost.rank,
            error_kind=lost.error_kind,
            stop_rule=lost.stop_rule,
            effective={"simulated": True},
            costs_s=costs_s,
            group_lost=lost.group_lost,
        )
        clock_s["finished"] = self.clock.wall_s()
        return TrialRecord(request=request, outcome=outcome, clock_s=clock_s)

    def _completed(
        self,
        request: TrialRequest,
        steps_s: Factors,
        rule: str,
        costs_s: dict[str, float],
        clock_s: Mapping[str, float],
    ) -> TrialRecord:
        samples = self.truth.samples_per_step(request.knobs)
        reading = read_visit(steps_s, samples, tolerance(request.budget))
        first = reading.steady.first
        costs_s["warmup"] = float(steps_s[:first].sum())
        costs_s["measured"] = float(steps_s[first:].sum())
        kind = OutcomeKind.INVALID if reading.error else OutcomeKind.COMPLETED
        outcome = TrialOutcome(
            kind=kind,
            reason=f"no throughput ({rule}): {reading.error}" if reading.error else "",
            error_kind="unsteady" if reading.error else "",
            stop_rule="error" if reading.error else rule,
            effective=self._effective(request.knobs),
            costs_s=costs_s,
        )
        told, self._group.told_gradients = self._group.told_gradients, True
        profile, true = self.truth.profile, self.truth.step(request.knobs)
        need = memory_need(profile, request.knobs)
        base = self.truth.samples_per_step(self.truth.baseline())
        return TrialRecord(
            request=request,
            outcome=outcome,
            samples_per_step=samples,
            trace=_trace(steps_s, true.wait_s, request, samples, base),
            steady_from=first,
            throughput_samples_per_s=reading.throughput_samples_per_s,
            step_s=reading.step_s,
            gate=GateResult(passed=True, bit_equal=True, worst_frac=0.0, reason="", num_steps=3),
            phases_s=dict(true.phases_s),
            memory_bytes={
                "allocated": need.allocated,
                "reserved": need.reserved,
                "peak": need.allocated,
                "peak_reserved": need.reserved,
                "gap": need.gap,
                "device_total": profile.memory.capacity,
            },
            metrics={
                "overlap_hidden": true.overlap_hidden,
                "t_comm_s": true.comm_s,
                "t_no_comm_s": true.no_comm_s,
                **simulated_noise(request, samples, base, profile.num_ranks),
            },
            clock_s=clock_s,
            gradients=() if told else profile.workload.gradients,
        )

    def _effective(self, knobs: Knobs) -> dict[str, KnobValue]:
        true = self.truth.step(knobs)
        return {
            "simulated": True,
            "num_buckets": true.num_buckets,
            "share_during_backward": true.issued_frac,
            "global_batch": self.truth.samples_per_step(knobs),
            "world_size": self.truth.profile.num_ranks,
        }


def measured_steps(steps_s: Factors, budget: Budget, samples_per_step: int) -> tuple[Factors, str]:
    """Returns the steps that a visit runs before it stops, as the trial loop looks at them."""
    taken = min(GATE_STEPS, steps_s.size)
    if budget.min_steps >= budget.max_steps:
        return steps_s, "cap"  # asked for a number of steps, whatever they say
    while True:
        decision = decide(steps_s[:taken], budget, samples_per_step)
        if decision.stop or taken >= steps_s.size:
            return steps_s[:taken], decision.rule or "cap"
        typical_s = float(np.median(steps_s[:taken][-20:]))
        block = max(1, int(BLOCK_S / typical_s))
        taken = min(taken + block, budget.max_steps, steps_s.size)


def knobs_key(knobs: Knobs) -> str:
    """Returns text that is equal for equal knobs."""
    return repr(
        sorted((k, float(v) if isinstance(v, int | float) else v) for k, v in knobs.items())
    )


def _trace(
    steps_s: Factors, wait_s: float, request: TrialRequest, batch: int, base_batch: int
) -> Trace:
    return Trace(
        wall_s=tuple(float(item) for item in steps_s),
        loss=simulated_loss(request, batch, base_batch, steps_s.size),
        grad_norm=(1.0,) * steps_s.size,
        wait_s=(wait_s,) * steps_s.size,
    )
