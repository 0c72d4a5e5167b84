"""A visit on one rank with a turned clock, and the books it keeps."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from lf_ray.clock import FakeClock
from lf_ray.protocol import (
    Budget,
    Deadlines,
    KnobValue,
    OutcomeKind,
    Purpose,
    StepSample,
    TrialOutcome,
    TrialRecord,
    TrialRequest,
)
from lf_ray.testing.group_contract import KNOBS
from lf_ray.testing.sessions import Body, FakeSession, Fault
from lf_ray.trial.faults.outcomes import ErrorReport
from lf_ray.trial.ranks.ledger import Ledger
from lf_ray.trial.visit import Bench, VisitSettings, run_visit


class Alone:
    """The control line of a single rank."""

    rank = 0
    size = 1

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value


class Echo(Alone):
    """The control line of a rank whose only peer does what it does."""

    size = 2

    def gather(self, value: Any) -> list[Any]:
        return [value, value]


class Notes:
    """A watch that remembers."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, float | None]] = []
        self.faults: list[ErrorReport] = []

    def enter(self, phase: str, limit_s: float | None) -> None:
        self.phases.append((phase, limit_s))

    def fault(self, report: ErrorReport) -> None:
        self.faults.append(report)


def request(**changes: Any) -> TrialRequest:
    values: dict[str, Any] = {
        "id": "t007",
        "knobs": KNOBS,
        "seed": 0,
        "purpose": Purpose.SEARCH,
        "budget": Budget(min_steps=20, max_steps=60),
        "deadlines": Deadlines(first_batch_s=50, capture_s=40, step_s=30),
    }
    return TrialRequest(**{**values, **changes})


class Visit:
    """One visit of a fake session, and what was seen of it."""

    def __init__(
        self, *faults: Fault, base_s: float = 0.1, first: bool = False, **changes: Any
    ) -> None:
        self.clock = FakeClock()
        self.watch = Notes()
        body = Body(meet=lambda value: None, sleep=self.clock.sleep)
        self.session = FakeSession(rank=0, world_size=1, body=body, faults=faults, base_s=base_s)
        self.changes: Mapping[str, Any] = changes
        self.settings = VisitSettings(first_of_group=first, reset_s=0.25)
        self.control = Alone()

    def run(self) -> TrialRecord:
        bench = Bench(control=self.control, clock=self.clock, watch=self.watch)
        return run_visit(self.session, bench, request(**self.changes), self.settings)


def test_time_is_split_by_class_and_adds_up() -> None:
    visit = Visit()
    record = visit.run()
    costs_s = record.outcome.costs_s
    assert record.trace is not None
    assert costs_s["reset"] == 0.25
    assert costs_s["warmup"] + costs_s["measured"] == pytest.approx(sum(record.trace.wall_s))
    assert costs_s["warmup"] == pytest.approx(sum(record.trace.wall_s[: record.steady_from]))
    assert visit.clock.monotonic_s() == pytest.approx(sum(record.trace.wall_s))


class Compiling(FakeSession):
    """Spends five seconds in `prepare`, four of them on compiling."""

    def prepare(self, request: TrialRequest) -> Mapping[str, KnobValue]:
        self.body.sleep(5.0)
        self.costs_s["compile"] = 4.0
        return super().prepare(request)


def test_compiling_is_charged_apart_from_what_it_ran_in() -> None:
    visit = Visit()
    visit.session = Compiling(rank=0, world_size=1, body=visit.session.body, base_s=0.1)
    costs_s = visit.run().outcome.costs_s
    assert costs_s["compile"] == 4.0
    assert costs_s["prepare"] == pytest.approx(1.0)


def test_phases_have_the_deadlines_of_the_request() -> None:
    visit = Visit()
    visit.run()
    limits = dict(visit.watch.phases)
    assert limits["build"] == limits["rehearsal"] == limits["first step"] == 50
    assert limits["capture"] == 40
    steps_limit_s = limits["steps"]
    assert steps_limit_s is not None
    assert 30 < steps_limit_s < 40


def test_blocks_are_long_enough_to_cost_nothing_and_short_enough_to_stop() -> None:
    visit = Visit(base_s=0.1)
    visit.run()
    blocks = [int(call.split()[1]) for call in visit.session.calls if call.startswith("run")]
    assert blocks[:2] == [1, 2]
    assert all(0.4 < count * 0.116 <= 0.75 for count in blocks[2:])
    slow = Visit(base_s=5.0)
    slow.run()
    assert {call for call in slow.session.calls if call.startswith("run")} == {"run 1", "run 2"}


@pytest.mark.parametrize("max_steps", [25, 33])
def test_no_step_is_run_beyond_the_cap(max_steps: int) -> None:
    budget = Budget(min_steps=20, max_steps=max_steps, target_frac=1e-9)
    record = Visit(budget=budget).run()
    assert record.trace is not None
    assert len(record.trace.wall_s) == max_steps
    assert record.outcome.stop_rule == "cap"


def test_a_point_that_is_clearly_beaten_stops_early_and_is_completed() -> None:
    budget = Budget(min_steps=200, max_steps=200, incumbent_samples_per_s=1000.0)
    record = Visit(budget=budget).run()
    assert record.outcome.kind is OutcomeKind.COMPLETED
    assert record.outcome.stop_rule == "raced"
    assert record.trace is not None
    assert len(record.trace.wall_s) < 30
    assert record.throughput_samples_per_s is not None


def test_too_few_steps_for_a_number_are_no_measurement() -> None:
    record = Visit(budget=Budget(min_steps=3, max_steps=4)).run()
    assert record.outcome.kind is OutcomeKind.INVALID
    assert record.outcome.error_kind == "unsteady"
    assert record.throughput_samples_per_s is None
    assert record.step_s is None


def test_steps_without_samples_are_no_measurement() -> None:
    visit = Visit()
    visit.session.samples_per_step = 0
    record = visit.run()
    assert record.outcome.kind is OutcomeKind.INVALID
    assert "0 samples a step" in record.outcome.reason


def test_a_measured_rate_that_then_fails_is_not_kept() -> None:
    fault = Fault(kind="exception", phase="step", ranks=(0,), step=30)
    record = Visit(fault, budget=Budget(min_steps=40, max_steps=60)).run()
    assert record.outcome.kind is OutcomeKind.FAILED
    assert record.throughput_samples_per_s is None
    assert record.trace is not None
    assert len(record.trace.wall_s) >= 20


def test_an_error_in_communication_is_told_before_the_gate_is_waited_for() -> None:
    visit = Visit(Fault(kind="exception", phase="step", ranks=(0,), step=5))
    visit.control = Echo()
    record = visit.run()
    assert [item.phase for item in visit.watch.faults] == ["steps"]
    assert record.outcome.group_lost


@pytest.mark.parametrize("phase", ["step", "capture"])
def test_a_rank_alone_runs_out_of_memory_without_losing_its_process(phase: str) -> None:
    """Nobody waits for it in a collective; only a failed capture spoils the process itself."""
    visit = Visit(Fault(kind="oom", phase=phase, ranks=(0,)))
    record = visit.run()
    assert record.outcome.kind is OutcomeKind.INFEASIBLE
    assert record.outcome.group_lost == (phase == "capture")
    assert [item.phase for item in visit.watch.faults] == ["capture"] * (phase == "capture")
    visit = Visit(Fault(kind="oom", phase=phase, ranks=(0,)))
    visit.control = Echo()
    assert visit.run().outcome.group_lost


def test_an_error_before_communication_needs_no_alarm() -> None:
    visit = Visit(Fault(kind="oom", phase="rehearsal", ranks=(0,)))
    record = visit.run()
    assert visit.watch.faults == []
    assert not record.outcome.group_lost
    assert record.trace is None
    assert "first_step" not in record.clock_s
    assert record.samples_per_step == 0


def test_gradients_are_told_by_the_group_s_first_record_only() -> None:
    assert [item.name for item in Visit(first=True).run().gradients] == ["b", "a"]
    assert Visit().run().gradients == ()


def test_records_survive_the_wire() -> None:
    record = Visit(first=True).run()
    assert TrialRecord.from_json(record.to_json()) == record


def sample(rank: int, step: int, **changes: Any) -> StepSample:
    values: dict[str, Any] = {
        "step": step,
        "rank": rank,
        "wall_s": 0.1,
        "device_s": 0.1,
        "loss": 1.0,
        "grad_norm": 2.0,
        "wait_s": 0.0,
        "phases_s": {"forward": 0.03, "exposed_comm": 0.05},
    }
    return StepSample(**{**values, **changes})


def ledger_of(ranks: Mapping[int, list[StepSample]]) -> TrialRecord:
    ledger = Ledger(request())
    ledger.add_block(ranks)
    outcome = TrialOutcome(kind=OutcomeKind.COMPLETED, stop_rule="settled")
    return ledger.record(outcome, samples_per_step=8, lr=[1e-4] * 30)


def test_the_slowest_rank_s_time_and_the_mean_loss_are_kept() -> None:
    record = ledger_of(
        {
            0: [sample(0, step, wall_s=0.1, loss=1.0, wait_s=0.02) for step in range(20)],
            1: [sample(1, step, wall_s=0.2, loss=3.0) for step in range(20)],
        }
    )
    assert record.trace is not None
    assert set(record.trace.wall_s) == {0.2}
    assert set(record.trace.loss) == {2.0}
    assert set(record.trace.wait_s) == {0.02}
    assert record.throughput_samples_per_s is not None
    assert record.throughput_samples_per_s.value == pytest.approx(40.0)


def test_skipped_samples_are_counted_over_ranks_and_their_frames_named_once() -> None:
    lacking = {"num_skipped": 2, "bad_frames": ("frame 7 of a.mp4: broken",)}
    record = ledger_of(
        {
            rank: [sample(rank, step, **(lacking if step in (3, 9) else {})) for step in range(20)]
            for rank in (0, 1)
        }
    )
    assert record.metrics["samples_skipped"] == 8
    assert record.metrics["frames_bad"] == 1
    assert record.bad_frames == ("frame 7 of a.mp4: broken",)
    assert TrialRecord.from_json(record.to_json()) == record
    whole = ledger_of({0: [sample(0, step) for step in range(20)]})
    assert "samples_skipped" not in whole.metrics


def test_a_rank_that_works_longer_is_named_though_all_steps_take_the_same() -> None:
    slow = {"forward": 0.07, "exposed_comm": 0.01}
    record = ledger_of(
        {
            0: [sample(0, step) for step in range(20)],
            1: [sample(1, step, phases_s=slow) for step in range(20)],
            2: [sample(2, step) for step in range(20)],
        }
    )
    assert record.metrics["slowest_rank"] == 1.0
    assert record.metrics["slowest_rank_excess_frac"] == pytest.approx(0.07 / 0.03 - 1)
    assert record.phases_s["forward"] == pytest.approx((0.03 + 0.07 + 0.03) / 3)
    assert sum(record.phases_s.values()) == pytest.approx(0.08)


def test_a_non_finite_loss_is_kept_in_the_trace() -> None:
    record = ledger_of({0: [sample(0, 0, loss=math.nan)]})
    assert record.trace is not None
    assert math.isnan(record.trace.loss[0])
