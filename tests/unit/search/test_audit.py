"""H1 and O3: a number that came back is not yet a measurement."""

import dataclasses
import math
from typing import Any

import pytest

from lf_ray.protocol import (
    GateResult,
    Interval,
    OutcomeKind,
    Purpose,
    TrialOutcome,
    TrialRecord,
    TrialRequest,
)
from lf_ray.search.plan.audit import audited
from lf_ray.testing.objectives import BASELINE_KNOBS, KneeObjective

REQUEST = TrialRequest(id="t001", knobs=BASELINE_KNOBS, seed=0, purpose=Purpose.SEARCH)


def interval(value: float, num_steps: int = 20) -> Interval:
    return Interval(value=value, lo=value, hi=value, num_steps=num_steps, num_visits=1)


def record(**changed: Any) -> TrialRecord:
    return dataclasses.replace(KneeObjective()(REQUEST), **changed)


FAILED_GATE = GateResult(
    passed=False, bit_equal=False, worst_frac=3.0, reason="step 2 differs", num_steps=3
)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"samples_per_step": 0}, "0 samples"),
        ({"throughput_samples_per_s": None}, "no settled measurement"),
        ({"throughput_samples_per_s": interval(math.inf)}, "non-finite objective: 8 samples in"),
        ({"throughput_samples_per_s": interval(math.nan)}, "non-finite objective"),
        ({"throughput_samples_per_s": interval(0.0)}, "no measurement"),
        ({"throughput_samples_per_s": interval(90.0, num_steps=3)}, "did 3 of 20 asked steps"),
        ({"gate": FAILED_GATE}, "step 2 differs"),
    ],
)
def test_what_can_not_be_trusted_is_invalid_with_its_reason(
    changed: dict[str, Any], words: str
) -> None:
    kept = audited(record(**changed))
    assert kept.outcome.kind is OutcomeKind.INVALID
    assert words in kept.outcome.reason
    assert kept.throughput_samples_per_s is None
    assert audited(kept) == kept


def test_a_raced_visit_may_be_short() -> None:
    outcome = TrialOutcome(kind=OutcomeKind.COMPLETED, stop_rule="raced")
    short = record(outcome=outcome, throughput_samples_per_s=interval(50.0, num_steps=8))
    assert audited(short) is short


def test_a_number_beside_a_failure_is_not_believed() -> None:
    outcome = TrialOutcome(kind=OutcomeKind.FAILED, reason="raised after step 20")
    assert audited(record(outcome=outcome)).outcome.kind is OutcomeKind.FAILED
