"""Whether a record may be believed: a number that came back is not yet a measurement."""

import dataclasses
import math

from lf_ray.protocol import OutcomeKind, TrialOutcome, TrialRecord, TrialRequest

# A visit that stopped for one of these may have fewer steps than were asked for.
_SHORT_STOPS = ("raced", "cap")
# The error kind of a visit that never settled.
UNSTEADY = "unsteady"


def audited(record: TrialRecord) -> TrialRecord:
    """Returns the record, its outcome invalid where it calls itself completed without cause."""
    if record.outcome.kind is not OutcomeKind.COMPLETED:
        return record
    kind, reason = _distrust(record)
    if not reason:
        return record
    outcome = dataclasses.replace(
        record.outcome, kind=OutcomeKind.INVALID, reason=reason, error_kind=kind
    )
    return dataclasses.replace(record, outcome=outcome, throughput_samples_per_s=None, step_s=None)


def _distrust(record: TrialRecord) -> tuple[str, str]:
    """Returns the kind and the words of what is wrong, both empty where nothing is."""
    reading = record.throughput_samples_per_s
    step_s = record.step_s.value if record.step_s else math.nan
    if record.samples_per_step <= 0:
        return "samples", f"a step of {record.samples_per_step} samples measures nothing"
    if reading is None:
        return UNSTEADY, f"no settled measurement (stopped by: {record.outcome.stop_rule})"
    if not all(math.isfinite(item) for item in (reading.value, reading.lo, reading.hi)):
        return "non_finite", (
            f"non-finite objective: {record.samples_per_step} samples in {step_s} s a step"
            f" gives {reading.value} samples/s"
        )
    if reading.value <= 0:
        return "non_finite", f"a throughput of {reading.value} samples/s is no measurement"
    wanted = record.request.budget.min_steps
    if reading.num_steps < wanted and record.outcome.stop_rule not in _SHORT_STOPS:
        return "short", f"did {reading.num_steps} of {wanted} asked steps"
    if record.gate is not None and not record.gate.passed:
        return "gate", f"numerics gate: {record.gate.reason}"
    return "", ""


def failed_record(request: TrialRequest, reason: str, error_kind: str) -> TrialRecord:
    """Returns the record of a request of which nothing usable came back."""
    return TrialRecord(
        request=request,
        outcome=TrialOutcome(
            kind=OutcomeKind.FAILED, reason=reason, error_kind=error_kind, stop_rule="error"
        ),
    )


def says_nothing(outcome: TrialOutcome) -> bool:
    """Returns whether the outcome tells of the machine or the moment, not of the point."""
    unsteady = outcome.kind is OutcomeKind.INVALID and outcome.error_kind == UNSTEADY
    return unsteady or outcome.kind is OutcomeKind.FAILED
