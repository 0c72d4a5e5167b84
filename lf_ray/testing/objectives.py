"""Seeded objectives with a known knee: they answer a request as a group would, in microseconds.

For tests, replay and examples of search. A step is compute plus what of the communication shows:
small buckets cost launches, large ones can't start before backward is nearly over. What a visit
reads depends on the seed and the request's id alone, never on what was asked before.
"""

import hashlib
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lf_ray.clock import FakeClock
from lf_ray.protocol import (
    GateResult,
    GradientTensor,
    Interval,
    Knobs,
    KnobValue,
    OutcomeKind,
    Trace,
    TrialOutcome,
    TrialRecord,
    TrialRequest,
    change_cost,
)
from lf_ray.runtime.bucket_plan import bucket_plan, issued_during_backward

BASELINE_KNOBS: Mapping[str, KnobValue] = {
    "overlap.bucket_size_mb": 25.0,
    "overlap.ratio": 1.0,
    "overlap.comm_dtype": "fp32",
    "pipeline.prefix": "off",
    "update.sharded": "off",
    "graph.scope": "off",
    "batch.per_gpu": 4,
    "batch.accumulation": 1,
    "batch.lr_rule": "none",
    "memory.backend": "caching",
    "memory.block_sizes": "none",
    "nccl.algo": "default",
    "nccl.max_ctas": 0,
    "data.workers": 0,
    "data.prefetch": 2,
    "data.cache": True,
    "data.decode_threads": 1,
}
_COST_S = {"hot": 0.0, "recapture": 2.0, "restart": 12.0}


def layer_gradients(
    num_layers: int = 64, num_elements: int = 147_456
) -> tuple[GradientTensor, ...]:
    """Returns gradients in ready order: two tensors a layer, 64 layers of 1.1 MiB by default."""
    return tuple(
        GradientTensor(
            name=f"layer{layer:02d}.{part}", num_elements=num_elements, layer=f"layer{layer:02d}"
        )
        for layer in range(num_layers)
        for part in ("up", "down")
    )


@dataclass
class KneeObjective:
    """Two ranks that exchange 64 layers' gradients over a slow link.

    Attributes:
        noise_frac: standard deviation between visits of one point.
        spread_frac: half-width that each visit reports of itself.
        clock: moved on by what a visit takes (`visit_s` and what the change costs), where given.
        fate: what becomes of a request instead of a measurement; None lets it complete.
        true_rate: samples/s of a point without noise; None takes the overlap model's.
    """

    seed: int = 0
    noise_frac: float = 0.003
    spread_frac: float = 0.004
    clock: FakeClock | None = None
    visit_s: float = 3.0
    fate: Callable[[TrialRequest], TrialOutcome | None] = lambda _: None
    true_rate: Callable[[Knobs], float] | None = None
    compute_s: float = 0.060
    backward_frac: float = 0.6
    launch_s: float = 0.0004
    link_bytes_per_s: float = 2e9
    gradients: tuple[GradientTensor, ...] = field(default_factory=layer_gradients)
    requests: list[TrialRequest] = field(default_factory=list)

    def __call__(self, request: TrialRequest) -> TrialRecord:
        """Returns the record of one visit."""
        previous = self.requests[-1].knobs if self.requests else None
        self.requests.append(request)
        started_s = self.clock.wall_s() if self.clock else 0.0
        outcome = self.fate(request)
        if outcome is not None:
            self._pass(1.0)
            return TrialRecord(request=request, outcome=outcome, gradients=self._told(request))
        record = self._measured(request, started_s)
        self._pass(self.visit_s + _COST_S[change_cost(previous, request.knobs)])
        return record

    def rate(self, knobs: Knobs) -> float:
        """Returns the true samples/s of a point."""
        if self.true_rate is not None:
            return self.true_rate(knobs)
        return self.samples_per_step(knobs) / self.step_s(knobs)

    def step_s(self, knobs: Knobs) -> float:
        """Returns the true step time of the overlap model."""
        batch = float(knobs["batch.per_gpu"]) * float(knobs["batch.accumulation"])
        compute_s = self.compute_s * (0.3 + 0.7 * batch / 4)
        plan = bucket_plan(
            self.gradients, float(knobs["overlap.bucket_size_mb"]), str(knobs["overlap.comm_dtype"])
        )
        leading = issued_during_backward(plan, float(knobs["overlap.ratio"]))
        begin_s = compute_s * (1 - self.backward_frac)
        done_elements, free_s = 0, 0.0
        for index, bucket in enumerate(plan.buckets):
            done_elements += bucket.last - bucket.first
            share = done_elements / plan.num_elements
            ready_s = begin_s + compute_s * self.backward_frac * share
            start_s = ready_s if index < leading else compute_s
            send_s = self.launch_s + bucket.num_bytes / self.link_bytes_per_s
            free_s = max(free_s, start_s) + send_s
        return max(compute_s, free_s)

    def samples_per_step(self, knobs: Knobs) -> int:
        """Returns the samples over both ranks that one step takes."""
        return 2 * int(knobs["batch.per_gpu"]) * int(knobs["batch.accumulation"])

    def _measured(self, request: TrialRequest, started_s: float) -> TrialRecord:
        rng = random.Random(f"{self.seed}/{request.id}")
        rate = self.rate(request.knobs) * (1 + self.noise_frac * rng.gauss(0, 1))
        samples = self.samples_per_step(request.knobs)
        step_s = samples / rate if rate > 0 and math.isfinite(rate) else math.nan
        num_steps = request.budget.min_steps
        jitter = self.spread_frac * math.sqrt(num_steps) / 1.96
        steps = [step_s * (1 + jitter * rng.gauss(0, 1)) for _ in range(num_steps)]
        scale = num_steps * step_s / sum(steps) if step_s == step_s else 1.0
        steps = [step * scale for step in steps]
        return TrialRecord(
            request=request,
            outcome=TrialOutcome(kind=OutcomeKind.COMPLETED, stop_rule="settled"),
            samples_per_step=samples,
            trace=Trace(
                wall_s=tuple(steps),
                loss=tuple(1.0 for _ in steps),
                grad_norm=tuple(1.0 for _ in steps),
                wait_s=tuple(0.0 for _ in steps),
            ),
            throughput_samples_per_s=self._interval(rate, num_steps),
            step_s=self._interval(step_s, num_steps),
            gate=GateResult(passed=True, bit_equal=True, worst_frac=0.0, reason="", num_steps=3),
            clock_s={"requested": started_s, "first_step": started_s + 0.1},
            gradients=self._told(request),
        )

    def _interval(self, value: float, num_steps: int) -> Interval:
        half = abs(value) * self.spread_frac
        return Interval(
            value=value, lo=value - half, hi=value + half, num_steps=num_steps, num_visits=1
        )

    def _told(self, request: TrialRequest) -> tuple[GradientTensor, ...]:
        return self.gradients if len(self.requests) == 1 or request.id == "t000" else ()

    def _pass(self, seconds: float) -> None:
        if self.clock:
            self.clock.sleep(seconds)


def hashed_rate(base: float, spread_frac: float, *names: str) -> Callable[[Knobs], float]:
    """Returns true rates without any structure: each point's own, fixed, within `spread_frac`."""

    def rate(knobs: Knobs) -> float:
        text = "/".join(f"{name}={knobs[name]}" for name in names)
        place = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32
        return base * (1 - spread_frac * place)

    return rate


def out_of_memory(reason: str = "CUDA out of memory in backward") -> TrialOutcome:
    """Returns the outcome of a point that does not fit."""
    return TrialOutcome(
        kind=OutcomeKind.INFEASIBLE, reason=reason, rank=0, error_kind="oom", stop_rule="error"
    )


def worker_lost(reason: str = "rank 1 was lost (SIGKILL)") -> TrialOutcome:
    """Returns the outcome of a visit whose group died."""
    return TrialOutcome(
        kind=OutcomeKind.FAILED,
        reason=reason,
        rank=1,
        error_kind="worker_lost",
        stop_rule="error",
        group_lost=True,
    )
