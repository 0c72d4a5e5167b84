"""Records gathered into points: what was measured of one setting, over all its visits.

A point is every record with the same `point_id`. Its throughput is pooled over its visits, each
corrected for the machine's drift. Pure: records in, points out.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lf_ray.protocol import (
    GateResult,
    Interval,
    Knobs,
    KnobValue,
    OutcomeKind,
    Purpose,
    TrialOutcome,
    TrialRecord,
)

MAX_BATCHES = 10
MIN_BATCH_STEPS = 2

DriftFrac = Callable[[float], float]
"""How much faster (+) or slower (-) than usual the machine was at a wall-clock second, a share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """One settled visit of a point, in samples/s, corrected for drift.

    Attributes:
        at_s: seconds since the epoch at which its first step ran; 0 where unknown.
        interval: of this visit alone.
        batches: means over consecutive steady steps, as throughput.
        drift_frac: what was taken out.
    """

    id: str
    at_s: float
    interval: Interval
    batches: tuple[float, ...]
    drift_frac: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """What is known of one setting.

    Attributes:
        outcome: of the trial itself; a later failed replicate does not undo a measurement.
        throughput: samples/s over all ranks, pooled over visits; None where no visit settled.
        step_s: likewise.
        gate: the worst verdict over the visits; None where none was gated.
        outcome_counts: how its requests ended, by kind.
        metrics: means over visits, likewise phases_s and memory_bytes.
    """

    id: str
    purpose: Purpose
    knobs: Knobs
    effective: Mapping[str, KnobValue]
    outcome: TrialOutcome
    throughput: Interval | None
    step_s: Interval | None
    visits: tuple[Visit, ...]
    gate: GateResult | None
    outcome_counts: Mapping[str, int]
    samples_per_step: int
    phases_s: Mapping[str, float]
    memory_bytes: Mapping[str, float]
    metrics: Mapping[str, float]
    records: tuple[TrialRecord, ...]

    @property
    def gate_failed(self) -> bool:
        """Returns whether its numbers were found wrong; such a point can't win."""
        return self.gate is not None and not self.gate.passed

    @property
    def key(self) -> frozenset[tuple[str, KnobValue]]:
        """Returns its knobs as one hashable value."""
        return knob_key(self.knobs)


def knob_key(knobs: Knobs) -> frozenset[tuple[str, KnobValue]]:
    """Returns the knobs as one hashable value, equal for equal settings."""
    return frozenset(knobs.items())


def points_of(
    records: Iterable[TrialRecord], drift_frac: DriftFrac = lambda _: 0.0
) -> tuple[Point, ...]:
    """Returns the points in the order of their first record."""
    grouped: dict[str, list[TrialRecord]] = {}
    for record in records:
        grouped.setdefault(record.point_id, []).append(record)
    return tuple(_point(name, group, drift_frac) for name, group in grouped.items())


def baseline_of(points: Iterable[Point]) -> Point | None:
    """Returns the point that everything is compared with."""
    return next((point for point in points if point.purpose is Purpose.BASELINE), None)


def eligible(points: Iterable[Point]) -> list[Point]:
    """Returns the points that may be called best: measured, and gated where the sweep gates."""
    points = list(points)
    gates = any(point.gate is not None for point in points)
    return [
        point
        for point in points
        if point.throughput is not None
        and not point.gate_failed
        and (point.gate is not None or not gates)
    ]


def best_of(points: Iterable[Point]) -> Point | None:
    """Returns the point with the highest re-measured throughput that passed the gate.

    One reading is a lucky one: while any point but the baseline has been measured again, a point
    with a single visit wins only where its interval lies above the best re-measured value.
    """
    candidates = eligible(points)
    again = [point for point in candidates if len(point.visits) > 1]
    if not any(point.purpose is not Purpose.BASELINE for point in again):
        return max(candidates, key=_value, default=None)
    best = max(again, key=_value)
    single = max(candidates, key=lambda point: _interval(point).lo)
    return single if _interval(single).lo > _value(best) else best


def _interval(point: Point) -> Interval:
    assert point.throughput is not None
    return point.throughput


def _value(point: Point) -> float:
    return _interval(point).value


def _point(name: str, group: Sequence[TrialRecord], drift_frac: DriftFrac) -> Point:
    own = next((r for r in group if r.request.id == name), group[0])
    settled = [r for r in group if r.throughput_samples_per_s is not None]
    shown = own if own.throughput_samples_per_s is not None or not settled else settled[0]
    visits = tuple(visit for visit in (_visit(r, drift_frac) for r in group) if visit)
    throughput = _pooled([visit.interval for visit in visits])
    per_step = shown.samples_per_step
    return Point(
        id=name,
        purpose=own.request.purpose,
        knobs=dict(own.request.knobs),
        effective=dict(shown.outcome.effective),
        outcome=shown.outcome,
        throughput=throughput,
        step_s=_step_s(throughput, per_step),
        visits=visits,
        gate=_worst_gate(group),
        outcome_counts=dict(Counter(str(r.outcome.kind) for r in group)),
        samples_per_step=per_step,
        phases_s=_means([r.phases_s for r in settled]),
        memory_bytes=_means([r.memory_bytes for r in settled or group]),
        metrics=_means([r.metrics for r in settled]),
        records=tuple(group),
    )


def _visit(record: TrialRecord, drift_frac: DriftFrac) -> Visit | None:
    found = record.throughput_samples_per_s
    if found is None or record.outcome.kind is not OutcomeKind.COMPLETED:
        return None
    at_s = record.clock_s.get("first_step", 0.0)
    drift = drift_frac(at_s)
    return Visit(
        id=record.request.id,
        at_s=at_s,
        interval=_scaled(found, 1 / (1 + drift)),
        batches=tuple(value / (1 + drift) for value in _batch_throughputs(record)),
        drift_frac=drift,
    )


def _batch_throughputs(record: TrialRecord) -> list[float]:
    """Returns samples/s over runs of consecutive steady steps, so that neighbours' noise is in."""
    steps = record.trace.wall_s[record.steady_from :] if record.trace else ()
    num_batches = min(MAX_BATCHES, len(steps) // MIN_BATCH_STEPS)
    if not num_batches:
        return []
    bounds = [round(i * len(steps) / num_batches) for i in range(num_batches + 1)]
    return [record.samples_per_step * (hi - lo) / sum(steps[lo:hi]) for lo, hi in pairwise(bounds)]


def _scaled(interval: Interval, factor: float) -> Interval:
    return Interval(
        value=interval.value * factor,
        lo=interval.lo * factor,
        hi=interval.hi * factor,
        num_steps=interval.num_steps,
        num_visits=interval.num_visits,
    )


def _step_s(throughput: Interval | None, samples_per_step: int) -> Interval | None:
    if throughput is None or samples_per_step <= 0 or throughput.lo <= 0:
        return None
    return Interval(
        value=samples_per_step / throughput.value,
        lo=samples_per_step / throughput.hi,
        hi=samples_per_step / throughput.lo,
        num_steps=throughput.num_steps,
        num_visits=throughput.num_visits,
    )


def _worst_gate(group: Sequence[TrialRecord]) -> GateResult | None:
    gates = [record.gate for record in group if record.gate is not None]
    return min(gates, key=lambda gate: (gate.passed, -gate.worst_frac), default=None)


def _means(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for table in tables for name in table)
    return {
        name: sum(found) / len(found)
        for name in names
        if (found := [table[name] for table in tables if name in table])
    }


def _pooled(visits: Sequence[Interval]) -> Interval | None:
    """Returns the mean over visits with a normal interval from within and between them."""
    if not visits:
        return None
    num = len(visits)
    value = sum(visit.value for visit in visits) / num
    between = sum((visit.value - value) ** 2 for visit in visits) / max(num - 1, 1)
    within = sum(((visit.hi - visit.lo) / 3.92) ** 2 for visit in visits) / num
    half = 1.96 * (max(between, within + (0.003 * value) ** 2) / num) ** 0.5
    return Interval(
        value=value,
        lo=value - half,
        hi=value + half,
        num_steps=sum(visit.num_steps for visit in visits),
        num_visits=num,
    )
