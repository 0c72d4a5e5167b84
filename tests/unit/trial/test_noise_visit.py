"""A visit that takes the gradient noise: after its timed steps, at a cost that is shown."""

from typing import Any

import pytest

from lf_ray.clock import FakeClock
from lf_ray.protocol import Budget, OutcomeKind, Purpose, TrialRecord, TrialRequest
from lf_ray.testing.group_contract import KNOBS
from lf_ray.testing.sessions import Body, FakeSession
from lf_ray.trial.visit import Bench, VisitSettings, run_visit


class Line:
    """The control line of one rank of two, which sees itself twice."""

    rank = 0
    size = 1

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value


class Silence:
    """A watch that nobody looks at."""

    def enter(self, phase: str, limit_s: float | None) -> None:
        """Notes nothing."""

    def fault(self, report: Any) -> None:
        """Notes nothing."""


def visited(noise_steps: int) -> tuple[TrialRecord, list[str]]:
    clock = FakeClock()
    session = FakeSession(
        rank=0, world_size=2, body=Body(meet=lambda _: None, sleep=clock.sleep), base_s=0.1
    )
    request = TrialRequest(
        id="t000",
        knobs=KNOBS,
        seed=0,
        purpose=Purpose.SEARCH,
        budget=Budget(min_steps=20, max_steps=60),
        noise_steps=noise_steps,
    )
    bench = Bench(control=Line(), clock=clock, watch=Silence())
    return run_visit(session, bench, request, VisitSettings()), session.calls


def test_it_comes_after_every_timed_step_and_stands_in_the_record() -> None:
    record, calls = visited(8)
    assert record.outcome.kind is OutcomeKind.COMPLETED
    assert calls[-1] == "noise 8"
    assert "noise" in record.outcome.costs_s
    assert record.metrics["noise_steps"] == 8
    assert record.metrics["noise_scale"] == pytest.approx(16, rel=0.2)
    low, high = record.metrics["noise_scale_lo"], record.metrics["noise_scale_hi"]
    assert low <= record.metrics["noise_scale"] <= high
    # This batch is the baseline's own as far as the session says.
    assert record.metrics["efficiency"] == 1


def test_it_is_off_unless_asked_for_and_changes_no_timed_step() -> None:
    without, calls = visited(0)
    assert not [name for name in calls if name.startswith("noise")]
    assert not [name for name in without.metrics if name.startswith("noise")]
    assert "noise" not in without.outcome.costs_s
    asked, _ = visited(8)
    assert asked.trace == without.trace
    assert asked.step_s == without.step_s
