"""A visit to a trainer that is not ours: what it says of itself is held against the wall clock."""

from dataclasses import replace

from lf_ray.protocol import TrialRecord, TrialRequest
from lf_ray.trial.ranks.contracts import WorkerSession
from lf_ray.trial.visit import Bench, VisitSettings, run_visit

MISMATCH_FRAC = 0.05


def visit_outside(
    session: WorkerSession, bench: Bench, request: TrialRequest, settings: VisitSettings
) -> TrialRecord:
    """Runs one request; the record's reason says where the trainer's figure is not the clock's."""
    return with_mismatch(run_visit(session, bench, request, settings))


def with_mismatch(record: TrialRecord) -> TrialRecord:
    """Returns the record, its reason extended where the two throughputs differ by too much."""
    frac = record.metrics.get("wall_mismatch_frac", 0.0)
    if abs(frac) <= MISMATCH_FRAC:
        return record
    said = (
        f"the trainer says {record.metrics['trainer_samples_per_s']:.1f} samples/s,"
        f" the wall clock {record.metrics['wall_samples_per_s']:.1f}"
    )
    reason = "; ".join(part for part in (record.outcome.reason, said) if part)
    return replace(record, outcome=replace(record.outcome, reason=reason))
