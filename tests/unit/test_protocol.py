"""The values that cross borders: JSON both ways, and what a change of knobs costs."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lf_ray.errors import RecordError
from lf_ray.protocol import (
    KNOB_NAMES,
    ChangeCost,
    GateResult,
    GradientTensor,
    Interval,
    OutcomeKind,
    Purpose,
    Trace,
    TrialOutcome,
    TrialRecord,
    TrialRequest,
    change_cost,
)
from lf_ray.settings import SweepConfig, knobs_of

KNOBS = knobs_of(SweepConfig())
NUMBERS = st.floats(allow_nan=False)


def _record(number: float) -> TrialRecord:
    request = TrialRequest(id="t001r1", knobs=KNOBS, seed=7, purpose=Purpose.REPLICATE)
    return TrialRecord(
        request=request,
        outcome=TrialOutcome(kind=OutcomeKind.COMPLETED, effective={"num_buckets": 3, "x": number}),
        samples_per_step=8,
        trace=Trace(wall_s=(number, 0.1), loss=(1.0, 0.5), grad_norm=(1.0, 1.0), wait_s=(0.0, 0.0)),
        throughput_samples_per_s=Interval(value=1, lo=number, hi=2, num_steps=9, num_visits=1),
        gate=GateResult(passed=True, bit_equal=True, worst_frac=0.0, reason="", num_steps=3),
        gradients=(GradientTensor(name="w", num_elements=4, layer="block.0"),),
        clock_s={"first_step": number},
    )


@given(NUMBERS)
def test_a_record_survives_json(number: float) -> None:
    record = _record(number)
    text = json.dumps(record.to_json(), allow_nan=False)
    assert TrialRecord.from_json(json.loads(text)) == record


def test_a_number_that_is_none_survives_json() -> None:
    back = TrialRecord.from_json(json.loads(json.dumps(_record(math.nan).to_json())))
    assert math.isnan(back.clock_s["first_step"])
    assert str(back.outcome.effective["x"]) == "nan"


@pytest.mark.parametrize(
    ("field", "value"),
    [("samples_per_step", "8"), ("request", 3), ("unknown", 1), ("steady_from", 1.5)],
)
def test_a_record_of_another_shape_is_refused_by_name(field: str, value: object) -> None:
    data = _record(1.0).to_json() | {field: value}
    with pytest.raises(RecordError, match=field):
        TrialRecord.from_json(data)


def test_a_missing_field_is_named() -> None:
    data = _record(1.0).to_json()
    del data["outcome"]
    with pytest.raises(RecordError, match=r"missing .'outcome'."):
        TrialRecord.from_json(data)


@pytest.mark.parametrize(
    ("changes", "captured", "cost"),
    [
        ({}, False, ChangeCost.HOT),
        ({"overlap.bucket_size_mb": 64.0}, False, ChangeCost.HOT),
        ({"overlap.bucket_size_mb": 64.0}, True, ChangeCost.RECAPTURE),
        ({"batch.lr_rule": "sqrt"}, True, ChangeCost.HOT),
        ({"batch.per_gpu": 8}, False, ChangeCost.RECAPTURE),
        ({"memory.backend": "arena"}, False, ChangeCost.RESTART),
    ],
)
def test_change_cost(changes: dict[str, float | str], captured: bool, cost: ChangeCost) -> None:
    previous = KNOBS | {"graph.scope": "step" if captured else "off"}
    assert change_cost(previous, previous | changes) is cost


def test_a_group_that_was_not_started_must_start() -> None:
    assert change_cost(None, KNOBS) is ChangeCost.RESTART


def test_every_knob_has_a_change_cost_and_a_setting() -> None:
    assert set(KNOBS) == set(KNOB_NAMES)
    for name in KNOB_NAMES:
        assert change_cost(KNOBS, KNOBS | {name: "other"}) in ChangeCost
