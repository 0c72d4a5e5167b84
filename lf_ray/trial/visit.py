"""One visit on one rank: prepare, pass the gates, time blocks of steps, agree on when to stop.

Every rank runs the same function and builds the same record; rank 0 decides, and whatever one rank
meets is known to all at the next gate. It knows neither torch nor Ray: the session, the control
line and the clock are arguments.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lf_ray.clock import Clock
from lf_ray.measure import decide
from lf_ray.protocol import (
    KnobValue,
    OutcomeKind,
    StepSample,
    TrialOutcome,
    TrialRecord,
    TrialRequest,
)
from lf_ray.trial.faults.outcomes import (
    ErrorReport,
    divergence,
    error_report,
    outcome_of_errors,
)
from lf_ray.trial.ranks.contracts import Control, Watch, WorkerSession
from lf_ray.trial.ranks.ledger import Ledger

BLOCK_S = 0.75
"""Ranks talk once a block: rarely enough to cost nothing, often enough to stop in time."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class VisitSettings:
    """What a visit is told beside its request.

    Attributes:
        gate_steps: steps that the numerics gate compares.
        first_of_group: put the gradients' ready order into the record.
        reset_s: what the reset before this visit took.
    """

    gate_steps: int = 3
    block_s: float = BLOCK_S
    first_of_group: bool = False
    reset_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """What a rank measures with: the same for all visits of a group."""

    control: Control
    clock: Clock
    watch: Watch


class _Ended(Exception):  # noqa: N818 - no error: the way out of a visit that ends early
    def __init__(self, outcome: TrialOutcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


def run_visit(
    session: WorkerSession, bench: Bench, request: TrialRequest, settings: VisitSettings
) -> TrialRecord:
    """Runs one request on this rank and returns its record, the same on every rank.

    A trial's failure is the record's outcome. Only the loss of the control line itself raises.
    """
    visit = _Visit(session, bench, request, settings, Ledger(request))
    visit.ledger.charge("reset", settings.reset_s)
    try:
        visit.prepare()
        visit.first_step()
        visit.capture()
        visit.check_numerics()
        rule = visit.measure()
        visit.read_memory_and_news()
        visit.measure_noise()
        visit.reference()
        return visit.completed(rule)
    except _Ended as ended:
        return visit.record(ended.outcome)


def agree(
    bench: Bench, phase: str, limit_s: float, action: Callable[[], T], *, communicated: bool
) -> T | TrialOutcome:
    """Runs a phase here and closes its gate: every rank gets its value, or all get the outcome.

    Where ranks talk to each other in the phase (`communicated`), an error is told at once to
    whoever watches: another rank may be inside a collective that this one will never join. One
    rank alone talks to nobody, but a capture that failed spoils its process all the same.
    """
    communicated = communicated and (bench.control.size > 1 or phase == "capture")
    bench.watch.enter(phase, limit_s)
    values: list[T] = []
    report = None
    try:
        values.append(action())
    except Exception as error:
        report = error_report(
            error, rank=bench.control.rank, phase=phase, wall_s=bench.clock.wall_s()
        )
    if report is not None and communicated and not report.contained:
        bench.watch.fault(report)
    raw = bench.control.gather(None if report is None else report.to_json())
    reports = [ErrorReport.from_json(item) for item in raw if item is not None]
    if reports:
        return outcome_of_errors(reports, num_ranks=bench.control.size, communicated=communicated)
    return values[0]


@dataclass(slots=True)
class _Visit:
    session: WorkerSession
    bench: Bench
    request: TrialRequest
    settings: VisitSettings
    ledger: Ledger
    news: str = ""

    def _gate(
        self, phase: str, limit_s: float, action: Callable[[], T], *, communicated: bool = True
    ) -> T:
        result = agree(self.bench, phase, limit_s, action, communicated=communicated)
        if isinstance(result, TrialOutcome):
            raise _Ended(result)
        return result

    def prepare(self) -> None:
        """Builds what is asked for and tries the longest batch; nothing is sent yet."""
        started_s = self.bench.clock.monotonic_s()
        limit_s = self.request.deadlines.first_batch_s
        effective = self._gate(
            "build", limit_s, lambda: self.session.prepare(self.request), communicated=False
        )
        self.ledger.effective = dict(effective)
        self._same_everywhere(effective)
        self._gate("rehearsal", limit_s, self.session.rehearse, communicated=False)
        self.ledger.charge("prepare", self.bench.clock.monotonic_s() - started_s)

    def _same_everywhere(self, effective: Mapping[str, KnobValue]) -> None:
        first, *others = everywhere = self.bench.control.gather(dict(effective))
        for rank, found in enumerate(everywhere):
            if found.get("settings_mismatch"):
                reason = f"rank {rank} does not run as asked: {found['settings_mismatch']}"
                raise _Ended(_invalid("settings", reason, rank=rank))
        for rank, other in enumerate(others, start=1):
            differ = sorted(
                name
                for name in {*other, *first}
                if json.dumps(other.get(name)) != json.dumps(first.get(name))
            )
            if differ:
                shown = ", ".join(f"{n} {other.get(n)} != {first.get(n)}" for n in differ)
                reason = f"rank {rank} runs with other settings than rank 0: {shown}"
                raise _Ended(_invalid("settings", reason, rank=rank))

    def first_step(self) -> None:
        """Runs the first step that sends gradients."""
        self.ledger.clock_s["first_step"] = self.bench.clock.wall_s()
        self._block(1, "first step", self.request.deadlines.first_batch_s)

    def capture(self) -> None:
        """Captures the step where the request asks for it."""
        started_s = self.bench.clock.monotonic_s()
        limit_s = self.request.deadlines.capture_s
        self.ledger.metrics.update(self._gate("capture", limit_s, self.session.capture))
        self.ledger.charge("capture", self.bench.clock.monotonic_s() - started_s)

    def check_numerics(self) -> None:
        """Completes the gate's steps and compares them with the reference."""
        missing = self.settings.gate_steps - len(self.ledger.step_s)
        if missing > 0:
            self._block(missing, "gate steps", self._limit_s(missing))
        started_s = self.bench.clock.monotonic_s()
        gate = self._gate("gate", self.request.deadlines.first_batch_s, self.session.gate)
        self.ledger.gate = gate
        self.ledger.charge("reference", self.bench.clock.monotonic_s() - started_s)
        if not gate.passed:
            raise _Ended(_invalid("gate", f"numerics gate: {gate.reason}"))

    def measure(self) -> str:
        """Runs blocks until rank 0 has measured enough; returns the rule that ended them."""
        while True:
            rule = self._stop_rule()
            if rule:
                return rule
            num_steps = self._block_steps()
            self._block(num_steps, "steps", self._limit_s(num_steps))

    def _stop_rule(self) -> str:
        rule = ""
        if self.bench.control.rank == 0:
            samples = self.session.samples_per_step
            rule = decide(self.ledger.step_s, self.request.budget, samples).rule
        return str(self.bench.control.broadcast(rule))

    def _block_steps(self) -> int:
        expected_s = statistics.median(self.ledger.step_s[-20:])
        fitting = int(self.settings.block_s / max(expected_s, 1e-6))
        return max(1, min(fitting, self.request.budget.max_steps - len(self.ledger.step_s)))

    def _limit_s(self, num_steps: int) -> float:
        # Only one step may be late by the deadline; the others are expected as the slowest so far.
        return self.request.deadlines.step_s + num_steps * max(self.ledger.step_s[-20:])

    def _block(self, num_steps: int, phase: str, limit_s: float) -> None:
        samples = self._gate(phase, limit_s, lambda: self.session.run(num_steps))
        self.ledger.clock_s["last_step"] = self.bench.clock.wall_s()
        gathered = self.bench.control.gather([item.to_json() for item in samples])
        block = {
            rank: [StepSample.from_json(item) for item in items]
            for rank, items in enumerate(gathered)
        }
        _refuse_missing(block, num_steps)
        self.ledger.add_block(block)
        outcome = divergence(block)
        if outcome is not None:
            raise _Ended(outcome)

    def read_memory_and_news(self) -> None:
        """Collects every rank's memory, and what it got over, while the trial still stands."""
        told = {"memory": dict(self.session.memory()), "news": list(self.session.news())}
        everywhere = self.bench.control.gather(told)
        self.ledger.add_memory([item["memory"] for item in everywhere])
        self.news = "; ".join(
            f"rank {rank}: {text}" for rank, item in enumerate(everywhere) for text in item["news"]
        )

    def measure_noise(self) -> None:
        """Takes the gradient noise where the request asks for it; no timed step is left to run."""
        num_steps = self.request.noise_steps
        if not num_steps:
            return
        started_s = self.bench.clock.monotonic_s()
        found = self._gate(
            "noise", self._limit_s(num_steps), lambda: self.session.measure_noise(num_steps)
        )
        self.ledger.add_noise(self.bench.control.gather(found[0]), found)
        self.ledger.charge("noise", self.bench.clock.monotonic_s() - started_s)

    def reference(self) -> None:
        """Measures, once for equal settings, what the step takes without communication."""
        started_s = self.bench.clock.monotonic_s()
        limit_s = self.request.deadlines.first_batch_s
        metrics = self._gate("reference", limit_s, self.session.measure_overlap)
        self.ledger.metrics.update(metrics)
        self.ledger.charge("reference", self.bench.clock.monotonic_s() - started_s)

    def completed(self, rule: str) -> TrialRecord:
        """Returns the record of a visit that ran to its end, if its steps prove the work."""
        samples = self.session.samples_per_step
        error = self.ledger.reading(samples).error
        if not error and samples <= 0:
            error = f"{samples} samples a step"
        if error:
            return self.record(_invalid("unsteady", f"no throughput ({rule}): {error}"))
        outcome = TrialOutcome(kind=OutcomeKind.COMPLETED, reason=self.news, stop_rule=rule)
        return self.record(outcome)

    def record(self, outcome: TrialOutcome) -> TrialRecord:
        """Returns what is kept of the visit, as far as it came."""
        self.ledger.clock_s["finished"] = self.bench.clock.wall_s()
        self.ledger.charge("reference", self.session.costs_s.get("reference", 0.0))
        self._part_compiling()
        ran = bool(self.ledger.step_s)
        return self.ledger.record(
            outcome,
            samples_per_step=self.session.samples_per_step if ran else 0,
            lr=self.session.lr if ran else (),
            gradients=self.session.gradients if ran and self.settings.first_of_group else (),
        )

    def _part_compiling(self) -> None:
        """Charges the compiler apart from what it ran inside of."""
        inside_s = self.ledger.costs_s.get("prepare", 0.0)
        compile_s = min(self.session.costs_s.get("compile", 0.0), inside_s)
        if compile_s > 0:
            self.ledger.charge("compile", compile_s)
            self.ledger.charge("prepare", -compile_s)


def _invalid(error_kind: str, reason: str, rank: int | None = None) -> TrialOutcome:
    return TrialOutcome(
        kind=OutcomeKind.INVALID,
        reason=reason,
        rank=rank,
        error_kind=error_kind,
        stop_rule="error",
    )


def _refuse_missing(block: Mapping[int, Sequence[StepSample]], num_steps: int) -> None:
    for rank, items in block.items():
        if len(items) != num_steps:
            raise _Ended(
                TrialOutcome(
                    kind=OutcomeKind.FAILED,
                    reason=f"rank {rank} ran {len(items)} of {num_steps} steps",
                    rank=rank,
                    error_kind="exception",
                    stop_rule="error",
                    group_lost=True,
                )
            )
