"""The books of one visit: samples of every rank, seconds by class, and the record they make.

Pure: no torch, no Ray, no waiting. Built by `visit` as the steps come in.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lf_ray.measure import Reading, read_visit, tolerance
from lf_ray.measure.gradient_noise import MIN_STEPS, gradient_noise, noise_metrics
from lf_ray.protocol import (
    GateResult,
    GradientTensor,
    KnobValue,
    OutcomeKind,
    StepSample,
    Trace,
    TrialOutcome,
    TrialRecord,
    TrialRequest,
)

_SHARED_PHASES = ("comm", "reduce", "exposed", "wait_peer", "gap")
"""Phases in which a rank waits for others: they say nothing about its own speed."""
_MAX_NAMED_FRAMES = 20


@dataclass(slots=True)
class Ledger:
    """What a visit has seen so far.

    Attributes:
        ranks: every rank's samples, in step order.
        step_s: wall time of each step on its slowest rank.
    """

    request: TrialRequest
    effective: dict[str, KnobValue] = field(default_factory=dict)
    ranks: dict[int, list[StepSample]] = field(default_factory=dict)
    step_s: list[float] = field(default_factory=list)
    gate: GateResult | None = None
    costs_s: dict[str, float] = field(default_factory=dict)
    clock_s: dict[str, float] = field(default_factory=dict)
    memory_bytes: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    def add_block(self, block: Mapping[int, Sequence[StepSample]]) -> None:
        """Adds the same steps of every rank."""
        for rank, steps in block.items():
            self.ranks.setdefault(rank, []).extend(steps)
        self.step_s.extend(max(item.wall_s for item in row) for row in zip(*block.values()))

    def add_memory(self, levels: Sequence[Mapping[str, float]]) -> None:
        """Keeps the fullest rank's bytes."""
        for item in levels:
            for name, level in item.items():
                self.memory_bytes[name] = max(self.memory_bytes.get(name, 0.0), level)

    def add_noise(
        self,
        small_sq: Sequence[Sequence[float]],
        found: tuple[Sequence[float], Sequence[float], int, int],
    ) -> None:
        """Keeps the gradient noise: squared norms of every rank's small batch, and the large one's.

        What the batch is worth is told against the baseline's, whose samples a step the effective
        settings name.
        """
        _, big_sq, small, big = found
        if len(big_sq) < MIN_STEPS or small >= big:
            return
        mean_sq = [math.fsum(row) / len(row) for row in zip(*small_sq)]
        noise = gradient_noise(mean_sq, big_sq, small, big)
        batch = int(self.effective.get("global_batch", big))
        base = int(self.effective.get("base_global_batch", batch))
        self.metrics.update(noise_metrics(noise, batch, base))

    def charge(self, name: str, seconds: float) -> None:
        """Adds seconds to a class of costs."""
        self.costs_s[name] = self.costs_s.get(name, 0.0) + seconds

    def reading(self, samples_per_step: int) -> Reading:
        """Returns what the step times so far say."""
        return read_visit(self.step_s, samples_per_step, tolerance(self.request.budget))

    def record(
        self,
        outcome: TrialOutcome,
        *,
        samples_per_step: int,
        lr: Sequence[float] = (),
        gradients: tuple[GradientTensor, ...] = (),
    ) -> TrialRecord:
        """Returns what is kept of the visit, as far as it came."""
        reading = self.reading(samples_per_step)
        steady_from = reading.steady.first
        counts = outcome.kind is OutcomeKind.COMPLETED
        skipped, bad_frames = self._skipped()
        self.costs_s["warmup"] = math.fsum(self.step_s[:steady_from])
        self.costs_s["measured"] = math.fsum(self.step_s[steady_from:])
        return TrialRecord(
            request=self.request,
            outcome=TrialOutcome(
                kind=outcome.kind,
                reason=outcome.reason,
                rank=outcome.rank,
                error_kind=outcome.error_kind,
                stop_rule=outcome.stop_rule,
                effective=self.effective,
                costs_s=self.costs_s,
                group_lost=outcome.group_lost,
            ),
            samples_per_step=samples_per_step,
            trace=self._trace(lr) if self.step_s else None,
            steady_from=steady_from,
            throughput_samples_per_s=reading.throughput_samples_per_s if counts else None,
            step_s=reading.step_s if counts else None,
            gate=self.gate,
            phases_s=self._phases_s(steady_from),
            memory_bytes=self.memory_bytes,
            metrics={**self.metrics, **self._slowest(steady_from), **skipped},
            clock_s=self.clock_s,
            gradients=gradients,
            bad_frames=bad_frames[:_MAX_NAMED_FRAMES],
        )

    def _skipped(self) -> tuple[dict[str, float], tuple[str, ...]]:
        """Returns how much could not be had, over all ranks and steps, and which frames."""
        samples = [item for steps in self.ranks.values() for item in steps]
        num_skipped = sum(item.num_skipped for item in samples)
        if not num_skipped:
            return {}, ()
        frames = sorted({frame for item in samples for frame in item.bad_frames})
        counts = {"samples_skipped": float(num_skipped), "frames_bad": float(len(frames))}
        return counts, tuple(frames)

    def _trace(self, lr: Sequence[float]) -> Trace:
        rows = list(zip(*self.ranks.values()))
        return Trace(
            wall_s=tuple(self.step_s),
            loss=tuple(math.fsum(item.loss for item in row) / len(row) for row in rows),
            grad_norm=tuple(row[0].grad_norm for row in rows),
            wait_s=tuple(max(item.wait_s for item in row) for row in rows),
            lr=tuple(float(item) for item in lr)[: len(rows)],
        )

    def _phases_s(self, steady_from: int) -> dict[str, float]:
        """Returns the mean over ranks, so that the phases of a step add up to the step."""
        sums: dict[str, float] = {}
        for steps in self.ranks.values():
            steady = steps[steady_from:] or steps[-1:]
            for name in {name for item in steady for name in item.phases_s}:
                total_s = math.fsum(item.phases_s.get(name, 0.0) for item in steady)
                sums[name] = sums.get(name, 0.0) + total_s / len(steady)
        return {name: total_s / len(self.ranks) for name, total_s in sums.items()}

    def _slowest(self, steady_from: int) -> dict[str, float]:
        """Returns which rank the others wait for, and how much more it works than the median."""
        own_s = {
            rank: math.fsum(
                seconds
                for item in steps[steady_from:]
                for name, seconds in item.phases_s.items()
                if not any(part in name for part in _SHARED_PHASES)
            )
            for rank, steps in self.ranks.items()
        }
        if len(own_s) < 2 or min(own_s.values(), default=0.0) <= 0.0:
            return {}
        slowest = max(own_s, key=lambda rank: own_s[rank])
        others = sorted(seconds for rank, seconds in own_s.items() if rank != slowest)
        excess = own_s[slowest] / others[len(others) // 2] - 1.0
        return {"slowest_rank": float(slowest), "slowest_rank_excess_frac": excess}
