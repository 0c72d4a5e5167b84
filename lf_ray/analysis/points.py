"""Records gathered into points: what was measured of one setting, over all its visits.

A point is every record with the same `point_id`. Its step time is pooled over its visits, each
corrected for the machine's drift; throughput follows from it. Pure: records in, points out.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from lf_ray.measure.between import between_visits
from lf_ray.measure.drift import Drift, drift_of, shared_by
from lf_ray.measure.interval import ASSUMED_BETWEEN_FRAC, pooled, start_part, throughput
from lf_ray.measure.starts import starts_of
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

_MAX_BATCHES = 10
_MIN_BATCH_STEPS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """One settled visit of a point, corrected for drift.

    Attributes:
        at_s: seconds since the epoch at which its first step ran; 0 where unknown.
        step_s: of this visit alone, within part only; throughput likewise.
        batches: means over runs of consecutive steady steps, as throughput.
        drift_factor: step time then over the sweep's mean, taken out of the numbers above.
    """

    id: str
    at_s: float
    step_s: Interval
    throughput: Interval
    batches: tuple[float, ...]
    drift_factor: float

    @property
    def interval(self) -> Interval:
        """Returns its throughput."""
        return self.throughput


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
        start_frac: error that its visits share because they share starts of the workers; it
            counts against points that need other workers alone, and is not in the intervals.
        between_frac: what stands for the standard deviation between its visits, as a share; it is
            in the intervals.
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
    start_frac: float
    between_frac: float

    @property
    def gate_failed(self) -> bool:
        """Returns whether its numbers were found wrong; such a point can't win."""
        return self.gate is not None and not self.gate.passed

    @property
    def key(self) -> frozenset[tuple[str, KnobValue]]:
        """Returns its knobs as one hashable value."""
        return knob_key(self.knobs)


@dataclass(frozen=True, slots=True)
class Gathered:
    """A sweep's points, with what all of them share.

    Attributes:
        drift: of the machine; None before the baseline has settled.
    """

    points: tuple[Point, ...]
    drift: Drift | None

    @property
    def baseline(self) -> Point | None:
        """Returns the point that everything is compared with."""
        return baseline_of(self.points)

    @property
    def best(self) -> Point | None:
        """Returns the point that may be called best."""
        return best_of(self.points)

    def find(self, knobs: Knobs) -> Point | None:
        """Returns the point with these knobs."""
        key = knob_key(knobs)
        return next((point for point in self.points if point.key == key), None)


def knob_key(knobs: Knobs) -> frozenset[tuple[str, KnobValue]]:
    """Returns the knobs as one hashable value, equal for equal settings."""
    return frozenset(knobs.items())


def gather(records: Iterable[TrialRecord]) -> Gathered:
    """Returns the points in the order of their first record, corrected for drift and pooled."""
    return Gatherer().gather(records)


class Gatherer:
    """Gathers a growing list of records again and again, and does what is known only once.

    What a record says by itself is kept by request and start; all that depends on other records
    (drift, how far visits differ, what is pooled) is computed anew.
    """

    def __init__(self) -> None:
        self._batches: dict[int, tuple[TrialRecord, tuple[float, ...]]] = {}
        self._points: dict[str, tuple[tuple[object, ...], Point]] = {}

    def gather(self, records: Iterable[TrialRecord]) -> Gathered:
        """Returns the points in the order of their first record, corrected for drift and pooled."""
        records = list(records)
        numbers, borders_s = starts_of(records)
        start_of = {id(record): number for record, number in zip(records, numbers)}
        grouped: dict[str, list[TrialRecord]] = {}
        for record in records:
            grouped.setdefault(record.point_id, []).append(record)
        settled = {name: [r for r in group if _settled(r)] for name, group in grouped.items()}
        drift = _drift(settled.values(), borders_s)
        moved = drift if drift and drift.found else None
        steps = {name: [_step_s(r, moved) for r in group] for name, group in settled.items()}
        between = between_visits({name: group for name, group in steps.items() if group})
        typical_frac = median(between.values()) if between else ASSUMED_BETWEEN_FRAC
        num_starts = {
            name: len({start_of[id(record)] for record in group}) for name, group in settled.items()
        }
        # What starts differ by is in the spread of what was visited in several, and is no more.
        spanning = [frac for name, frac in between.items() if num_starts[name] > 1]
        start_frac = min(spanning, default=typical_frac)
        points = []
        for name, group in grouped.items():
            # The point is the same as long as no record came in and nothing shared has moved.
            own_frac = between.get(name, typical_frac)
            key = (len(group), moved, own_frac, start_frac)
            known = self._points.get(name)
            if known is None or known[0] != key:
                visits = tuple(self._visit(record, moved) for record in settled[name])
                shared = (num_starts[name], start_frac, moved.starts_frac if moved else 0.0)
                point = _point(name, group, visits, own_frac, shared)
                known = self._points[name] = (key, point)
            points.append(known[1])
        return Gathered(tuple(points), drift)

    def _visit(self, record: TrialRecord, drift: Drift | None) -> Visit:
        if id(record) not in self._batches:
            # The record is kept beside, so that its number stays its own.
            self._batches[id(record)] = record, tuple(_batch_throughputs(record))
        return _visit(record, self._batches[id(record)][1], drift)


def points_of(records: Iterable[TrialRecord]) -> tuple[Point, ...]:
    """Returns the points alone."""
    return gather(records).points


def baseline_of(points: Iterable[Point]) -> Point | None:
    """Returns the point that everything is compared with.

    The last of its kind: a baseline that did not fit is followed by one of half the batch.
    """
    found = [point for point in points if point.purpose is Purpose.BASELINE]
    return found[-1] if found else None


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


def _settled(record: TrialRecord) -> bool:
    """Returns whether a record holds a measurement: completed, with a finite step time."""
    step_s, completed = record.step_s, record.outcome.kind is OutcomeKind.COMPLETED
    if step_s is None or not completed or record.samples_per_step <= 0:
        return False
    return step_s.value > 0 and all(map(math.isfinite, (step_s.value, step_s.lo, step_s.hi)))


def _at_s(record: TrialRecord) -> float:
    return record.clock_s.get("first_step", 0.0)


def _drift(groups: Iterable[Sequence[TrialRecord]], borders_s: Sequence[float]) -> Drift | None:
    baselines: list[tuple[float, Interval]] = []
    others = []
    for group in groups:
        visits = [
            (_at_s(record), record.step_s)
            for record in group
            if record.step_s is not None and _at_s(record) > 0
        ]
        if any(record.request.purpose is Purpose.BASELINE for record in group):
            baselines += visits
        elif visits:
            others.append(visits)
    return shared_by(drift_of(baselines, borders_s=borders_s), others) if baselines else None


def _step_s(record: TrialRecord, drift: Drift | None) -> Interval:
    assert record.step_s is not None
    return drift.corrected(record.step_s, _at_s(record)) if drift else record.step_s


def _visit(record: TrialRecord, batches: tuple[float, ...], drift: Drift | None) -> Visit:
    at_s = _at_s(record)
    factor = drift.factor(at_s) if drift else 1.0
    step_s = _step_s(record, drift)
    return Visit(
        id=record.request.id,
        at_s=at_s,
        step_s=step_s,
        throughput=throughput(step_s, record.samples_per_step),
        batches=tuple(value * factor for value in batches),
        drift_factor=factor,
    )


def _batch_throughputs(record: TrialRecord) -> list[float]:
    """Returns samples/s over runs of consecutive steady steps, so that neighbours' noise is in."""
    steps = record.trace.wall_s[record.steady_from :] if record.trace else ()
    num_batches = min(_MAX_BATCHES, len(steps) // _MIN_BATCH_STEPS)
    if not num_batches:
        return []
    bounds = [round(i * len(steps) / num_batches) for i in range(num_batches + 1)]
    return [record.samples_per_step * (hi - lo) / sum(steps[lo:hi]) for lo, hi in pairwise(bounds)]


def _point(
    name: str,
    group: Sequence[TrialRecord],
    visits: tuple[Visit, ...],
    between_frac: float,
    starts: tuple[int, float, float],
) -> Point:
    own = next((r for r in group if r.request.id == name), group[0])
    settled = [r for r in group if _settled(r)]
    shown = own if own in settled or not settled else settled[0]
    step_s = pooled([visit.step_s for visit in visits], between_frac) if visits else None
    return Point(
        id=name,
        purpose=own.request.purpose,
        knobs=dict(own.request.knobs),
        effective=dict(shown.outcome.effective),
        outcome=shown.outcome,
        throughput=throughput(step_s, shown.samples_per_step) if step_s else None,
        step_s=step_s,
        visits=visits,
        gate=_worst_gate(group),
        outcome_counts=dict(Counter(str(r.outcome.kind) for r in group)),
        samples_per_step=shown.samples_per_step,
        phases_s=_means([r.phases_s for r in settled]),
        memory_bytes=_means([r.memory_bytes for r in settled or group]),
        metrics=_means([r.metrics for r in settled]),
        records=tuple(group),
        start_frac=start_part(starts[1], starts[0], len(visits), starts[2]) if visits else 0.0,
        between_frac=between_frac,
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
