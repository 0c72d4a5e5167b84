"""Writes a sweep's journal from a seeded objective with a known knee, without running a sweep.

    python tests/data/make_journal.py /tmp/journal.jsonl
    python tests/data/make_journal.py /tmp/other.jsonl --seed 1 --case data_bound

Everything is simulated: the machine's name says so. The knee of the peaked case is a bucket of
2 MiB (best 1 MiB) at ratio 0.6 (best 0.8). Cases: peaked, flat, data_bound, no_baseline,
interrupted.
"""

import argparse
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lf_ray.clock import FakeClock
from lf_ray.measure.reading import read_visit
from lf_ray.protocol import (
    GateResult,
    KnobValue,
    OutcomeKind,
    Purpose,
    Trace,
    TrialOutcome,
    TrialRecord,
    TrialRequest,
)
from lf_ray.record.journal import Journal
from lf_ray.settings import SweepConfig, knobs_of, plain

BUCKETS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 25.0, 32.0)
RATIOS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
SPACE = {"overlap.bucket_size_mb": BUCKETS, "overlap.ratio": RATIOS}
BUCKET, RATIO = "overlap.bucket_size_mb", "overlap.ratio"
GRADIENT_MB = 40.0
RANKS, BATCH = 2, 4


class Objective:
    """A step time whose parts are known, and the noise of measuring it.

    A bucket costs 0.3 ms to launch; what is not sent during backward is exposed. Sending during
    backward slows it a little, so that neither knob is best at its end.
    """

    def __init__(self, case: str, seed: int) -> None:
        self.case = case
        self.rng = np.random.default_rng(seed)

    def phases_s(self, knobs: Mapping[str, KnobValue]) -> dict[str, float]:
        """Returns the noise-free seconds of each phase."""
        bucket, ratio = float(knobs[BUCKET]), float(knobs[RATIO])
        if self.case == "flat":
            bucket, ratio = 1.0, 0.8
        num_buckets = math.ceil(GRADIENT_MB / bucket)
        comm_s = 0.030 + 0.0003 * num_buckets
        granularity = math.exp(-bucket / 12.0)
        hidden_s = comm_s * ratio * granularity
        contention_s = 0.026 * ratio**5
        wait_s = 0.045 if self.case == "data_bound" else 0.002
        return {
            "data_wait": wait_s,
            "host_to_device": 0.0005,
            "prefix": 0.0205,
            "forward": 0.016,
            "backward": 0.033 + contention_s,
            "exposed_comm": comm_s - hidden_s,
            "clip": 0.002,
            "optimizer": 0.007,
            "gap": 0.003,
        }

    def steps_s(self, knobs: Mapping[str, KnobValue], num_steps: int, drift: float) -> list[float]:
        """Returns measured steps: three slow ones first, then settled ones."""
        mean_s = sum(self.phases_s(knobs).values()) * drift
        mean_s *= 1 + 0.002 * self.rng.standard_normal()
        noise = self.rng.standard_normal(num_steps + 1)
        smooth = (noise[1:] + 0.4 * noise[:-1]) / math.hypot(1, 0.4)
        steps = mean_s * (1 + 0.012 * smooth)
        steps[:3] *= (2.2, 1.3, 1.1)
        return [round(float(step), 6) for step in steps]


class Book:
    """Keeps the journal while a simulated sweep goes on."""

    def __init__(self, path: Path, case: str, seed: int) -> None:
        self.clock = FakeClock(epoch_s=1_795_910_400.0 + 86_400 * seed)
        self.journal = Journal(path, self.clock)
        self.objective = Objective(case, seed)
        self.case = case
        self.seed = seed
        self.started = 0
        self.baseline = {**knobs_of(SweepConfig()), "batch.per_gpu": BATCH}

    def header(self) -> None:
        """Writes the sweep event."""
        config = SweepConfig()
        config.cluster.workers = RANKS
        config.sweep.seed = self.seed
        self.journal.append(
            "sweep",
            id=f"simulated-{self.case}-{self.seed}",
            name="overlap",
            config=plain(config),
            space=SPACE,
            space_hash="5ca1ab1e0000",
            baseline_knobs=self.baseline,
            machine={"label": "simulated: 2 ranks, no machine behind it", "device": "cpu"},
            versions={"lf_ray": "0.1.0", "torch": "none", "commit": "simulated"},
            data_id="simulated",
            seed=self.seed,
        )
        self.clock.sleep(9.4)  # Ray comes up

    def visit(
        self,
        name: str,
        purpose: Purpose,
        changes: Mapping[str, KnobValue],
        replicate_of: str | None = None,
        ending: OutcomeKind = OutcomeKind.COMPLETED,
    ) -> None:
        """Runs one simulated visit and writes both its events."""
        knobs = {**self.baseline, **changes}
        request = TrialRequest(
            id=name, knobs=knobs, seed=self.seed, purpose=purpose, replicate_of=replicate_of
        )
        kind = "started" if replicate_of is None and not name.startswith("s") else "replicate"
        self.clock.sleep(0.01)
        self.journal.append(kind, request=request)
        requested_s = self.clock.wall_s()
        restart_s = 7.9 if self.started == 0 else 0.0
        self.started += 1
        self.clock.sleep(restart_s + 0.08)
        record = (
            self._measured(request, requested_s, restart_s)
            if ending is OutcomeKind.COMPLETED
            else self._lost(request, ending)
        )
        self.clock.sleep(0.05)
        self.journal.append("finished", record=record)

    def _lost(self, request: TrialRequest, ending: OutcomeKind) -> TrialRecord:
        reasons = {
            OutcomeKind.INFEASIBLE: ("out of memory while building: 3.1 GiB asked", "oom"),
            OutcomeKind.FAILED: ("rank 1 died (signal 9) in the first step", "worker_lost"),
            OutcomeKind.INVALID: ("numerics gate: bucket 3 differs from the reference", "gate"),
        }
        reason, error_kind = reasons[ending]
        self.clock.sleep(1.5)
        return TrialRecord(
            request=request,
            outcome=TrialOutcome(
                kind=ending,
                reason=reason,
                rank=1,
                error_kind=error_kind,
                stop_rule="error",
                costs_s={"prepare": 1.5},
            ),
        )

    def _measured(self, request: TrialRequest, requested_s: float, restart_s: float) -> TrialRecord:
        first_s = self.clock.wall_s()
        drift = 1 + 0.04 * min(1.0, self.started / 60)
        steps = self.objective.steps_s(request.knobs, 32, drift)
        self.clock.sleep(sum(steps))
        samples = RANKS * BATCH
        reading = read_visit(steps, samples, 0.02)
        phases = self.objective.phases_s(request.knobs)
        first = reading.steady.first
        seen = np.arange(1, len(steps) + 1) * samples
        loss = 0.9 * np.exp(-seen / 160.0) + 0.31 + 0.004 * self.objective.rng.standard_normal(32)
        num_buckets = math.ceil(GRADIENT_MB / float(request.knobs[BUCKET]))
        gap_bytes = 2.0e7 + 1.5e6 * float(request.knobs[BUCKET])
        return TrialRecord(
            request=request,
            outcome=TrialOutcome(
                kind=OutcomeKind.COMPLETED,
                stop_rule="settled",
                effective={
                    "num_buckets": num_buckets,
                    "share_during_backward": round(
                        round(float(request.knobs[RATIO]) * num_buckets) / num_buckets, 3
                    ),
                },
                costs_s={
                    "restart": restart_s,
                    "prepare": 0.06,
                    "reset": 0.02,
                    "warmup": round(sum(steps[:first]), 6),
                    "measured": round(sum(steps[first:]), 6),
                },
            ),
            samples_per_step=samples,
            trace=Trace(
                wall_s=tuple(steps),
                loss=tuple(round(float(value), 4) for value in loss),
                grad_norm=tuple(round(float(2 * value), 4) for value in loss),
                wait_s=tuple(round(phases["data_wait"], 6) for _ in steps),
            ),
            steady_from=first,
            throughput_samples_per_s=reading.throughput_samples_per_s,
            step_s=reading.step_s,
            gate=GateResult(
                passed=True, bit_equal=True, worst_frac=0.0, reason="bit-equal", num_steps=3
            ),
            phases_s=phases,
            memory_bytes={
                "allocated": 6.1e8,
                "reserved": 6.1e8 + gap_bytes,
                "peak": 7.4e8 + gap_bytes / 2,
            },
            metrics={
                "overlap_hidden": 1 - phases["exposed_comm"] / (0.030 + 0.0003 * num_buckets),
                "t_comm_s": 0.030 + 0.0003 * num_buckets,
                "t_no_comm_s": 0.084,
            },
            clock_s={
                "requested": requested_s,
                "first_step": first_s,
                "last_step": self.clock.wall_s(),
                "finished": self.clock.wall_s(),
            },
        )


SUGGESTED: tuple[tuple[float, float, OutcomeKind], ...] = (
    (32.0, 0.8, OutcomeKind.COMPLETED),
    (8.0, 0.4, OutcomeKind.COMPLETED),
    (2.0, 0.8, OutcomeKind.COMPLETED),
    (1.0, 0.8, OutcomeKind.COMPLETED),
    (0.5, 0.6, OutcomeKind.FAILED),
    (4.0, 0.6, OutcomeKind.COMPLETED),
    (16.0, 0.2, OutcomeKind.COMPLETED),
    (4.0, 1.0, OutcomeKind.COMPLETED),
    (0.5, 1.0, OutcomeKind.INVALID),
    (8.0, 0.8, OutcomeKind.COMPLETED),
    (16.0, 1.0, OutcomeKind.INFEASIBLE),
)


def write_sweep(path: Path, case: str = "peaked", seed: int = 0) -> None:
    """Writes a whole simulated sweep."""
    book = Book(path, case, seed)
    book.header()
    ending = OutcomeKind.FAILED if case == "no_baseline" else OutcomeKind.COMPLETED
    book.visit("t000", Purpose.BASELINE, {}, ending=ending)
    if case != "no_baseline":
        _search(book)
    if case in ("peaked", "flat", "data_bound"):
        _slices(book)
    reasons = {
        "no_baseline": ("the baseline failed", 1),
        "interrupted": ("interrupted by Ctrl-C", 130),
    }
    reason, code = reasons.get(case, ("the slices are resolved", 0))
    book.journal.append("ended", reason=reason, exit_code=code)
    book.journal.close()


def _search(book: Book) -> None:
    tried = [{BUCKET: bucket, RATIO: ratio} for bucket, ratio, _ in SUGGESTED]
    book.journal.append("round", index=0, suggestions=tried[:6], sampler_seed=book.seed)
    for index, (bucket, ratio, ending) in enumerate(SUGGESTED, start=1):
        if index == 7:
            book.journal.append("round", index=1, suggestions=tried[6:], sampler_seed=book.seed + 1)
            book.visit("t000r1", Purpose.REPLICATE, {}, "t000")
        book.visit(f"t{index:03d}", Purpose.SEARCH, {BUCKET: bucket, RATIO: ratio}, ending=ending)


def _slices(book: Book) -> None:
    """Visits both ladders through the best point twice, there and back."""
    ids: dict[tuple[float, float], str] = {}
    for index, (bucket, ratio, ending) in enumerate(SUGGESTED, start=1):
        if ending is OutcomeKind.COMPLETED:
            ids.setdefault((bucket, ratio), f"t{index:03d}")
    book.journal.append("stage", phase="slices", best="t004", reason="rounds ended")
    ladder = [(bucket, 0.8) for bucket in BUCKETS] + [(1.0, r) for r in RATIOS if r != 0.8]
    count = 0
    for turn in (ladder, ladder[::-1], ladder):
        for bucket, ratio in turn:
            changes = {BUCKET: bucket, RATIO: ratio}
            name = f"s{count:03d}"
            point = ids.get((bucket, ratio))
            book.visit(name, Purpose.SLICE, changes, point)
            ids.setdefault((bucket, ratio), name)
            count += 1
        book.visit(f"t000r{2 + count}", Purpose.REPLICATE, {}, "t000")
    knee: dict[str, KnobValue] = {BUCKET: 2.0, RATIO: 0.6}
    book.visit(f"s{count:03d}", Purpose.SLICE, knee)
    book.visit(f"s{count + 1:03d}", Purpose.SLICE, knee, f"s{count:03d}")
    book.journal.append(
        "stage", phase="done", best="t004", ladders=SPACE, reason="the slices are done"
    )


def main() -> None:
    """Writes the journal that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--case", default="peaked")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.path.unlink(missing_ok=True)
    write_sweep(arguments.path, arguments.case, arguments.seed)


if __name__ == "__main__":
    main()
