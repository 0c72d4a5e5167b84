"""Slices: throughput along one knob's ladder, from the best point, the other knobs held.

Pure. Orders a ladder from cheap to costly and finds the point measured at each value of it, be it
under its own name or as the twin of a setting that comes to the same thing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lf_ray.analysis.points import Point, Visit, knob_key
from lf_ray.protocol import (
    ChangeCost,
    Knobs,
    KnobValue,
    OutcomeKind,
    change_cost,
    settled_knobs,
)
from lf_ray.record.history import DeadPoint

_BUCKET = "overlap.bucket_size_mb"
_LARGER_IS_CHEAPER = (_BUCKET,)
_WORDS = {
    "overlap.comm_dtype": ("fp32", "bf16"),
    "pipeline.prefix": ("off", "on"),
    "update.sharded": ("off", "on"),
    "graph.scope": ("off", "step", "step+optimizer"),
    "memory.backend": ("caching", "expandable", "arena"),
}
_LEAST = {
    "overlap.ratio": 0.0,
    "batch.per_gpu": 1,
    "batch.accumulation": 1,
    "data.workers": 0,
    "data.prefetch": 1,
    "data.cache": 0,
    "data.decode_threads": 1,
}
_MOST = {"overlap.ratio": 1.0, "data.cache": 1}
_UNITS = {_BUCKET: "MiB"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What was measured at one value of a ladder.

    Attributes:
        sent_mib: what a step sends there, where it is known.
        point_id: whose measurement this is; two values with one id come to the same thing.
        usable: it was measured and may be chosen.
        note: why it may not be chosen, in words, where it was tried.
        start_frac: error that its visits share with their start of the workers, where the ladder's
            values need workers of their own; 0 where all run in the same.
        between_frac: what stands for the standard deviation between its visits, as a share.
    """

    value: KnobValue
    point_id: str | None
    visits: tuple[Visit, ...]
    usable: bool
    note: str = ""
    sent_mib: float | None = None
    start_frac: float = 0.0
    between_frac: float = 0.0

    @property
    def is_missing(self) -> bool:
        """Returns whether nothing is known of it."""
        return self.point_id is None or (not self.visits and not self.note)


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """One knob's ladder at the best point, cheapest value first.

    Attributes:
        closed: whether nothing lies beyond the cheap end, and beyond the costly end.
        inactive: the knob has no say while the others are as they are at the best point.
    """

    knob: str
    readings: tuple[Reading, ...]
    best_index: int
    baseline_value: KnobValue
    closed: tuple[bool, bool] = (False, False)
    inactive: bool = False

    @property
    def is_dead(self) -> bool:
        """Returns whether every value of the ladder comes to the same thing."""
        if self.inactive:
            return True
        ids = {reading.point_id for reading in self.readings}
        return len(self.readings) > 1 and len(ids) == 1 and None not in ids

    @property
    def missing(self) -> tuple[KnobValue, ...]:
        """Returns the values of which nothing is known yet."""
        return tuple(reading.value for reading in self.readings if reading.is_missing)


def slice_of(
    points: Sequence[Point],
    best: Point,
    knob: str,
    ladder: Sequence[KnobValue],
    *,
    baseline_value: KnobValue,
    dead: Sequence[DeadPoint] = (),
) -> Slice:
    """Returns the slice of one knob through the best point.

    Args:
        points: everything measured.
        best: the point that the slice goes through.
        knob: which knob walks.
        ladder: the values that the knob may take; best's own is added where it is not among them.
        baseline_value: what the knob is at the baseline.
        dead: settings known to come to the same as a measured point.
    """
    values = cheapest_first(knob, [*ladder, best.knobs[knob]])
    by_key: dict[object, list[Point]] = {}
    for point in points:
        by_key.setdefault(point.key, []).append(point)
    by_id = {point.id: point for point in points}
    twins = {knob_key(item.knobs): by_id[item.same_as] for item in dead if item.same_as in by_id}
    apart = any(_needs_others(best.knobs, {**best.knobs, knob: value}) for value in values)
    readings = []
    for value in values:
        key = knob_key(settled_knobs({**best.knobs, knob: value}))
        found = by_key.get(key) or ([twins[key]] if key in twins else [])
        readings.append(_reading(value, found, apart))
    return Slice(
        knob=knob,
        readings=tuple(readings),
        best_index=values.index(best.knobs[knob]),
        baseline_value=baseline_value,
        closed=_closed(knob, readings),
    )


def cheapest_first(knob: str, values: Sequence[KnobValue]) -> list[KnobValue]:
    """Returns the distinct values of a knob from its cheap side to its costly side.

    Cheaper is: fewer collectives, less overlap, smaller batch, fewer processes, fewer moving
    parts. Ladders of words that have no such order keep the order they are given in.
    """
    distinct = list(dict.fromkeys(values))
    if knob in _WORDS:
        return sorted(distinct, key=lambda value: _WORDS[knob].index(str(value)))
    if all(isinstance(value, int | float) for value in distinct):
        return sorted(distinct, key=float, reverse=knob in _LARGER_IS_CHEAPER)
    return sorted(distinct, key=lambda value: value != "none")


def in_words(knob: str, value: KnobValue) -> str:
    """Returns a knob's value as people write it, with its unit."""
    if isinstance(value, bool):
        return str(value).lower()
    text = f"{value:g}" if isinstance(value, int | float) else str(value)
    unit = _UNITS.get(knob)
    return f"{text} {unit}" if unit else text


def _needs_others(one: Knobs, other: Knobs) -> bool:
    return change_cost(one, other) is ChangeCost.RESTART


def _reading(value: KnobValue, found: Sequence[Point], apart: bool) -> Reading:
    if not found:
        return Reading(value=value, point_id=None, visits=(), usable=False)
    visits = tuple(visit for point in found for visit in point.visits)
    own = next((point for point in found if point.visits), found[0])
    failed_gate = any(point.gate_failed for point in found)
    note = ""
    if failed_gate:
        note = "its numbers differ from the reference's"
    elif not visits and own.outcome.kind is not OutcomeKind.COMPLETED:
        note = f"it is {own.outcome.kind} ({own.outcome.reason})"
    usable = bool(visits) and not failed_gate
    return Reading(
        value=value,
        point_id=own.id,
        visits=visits,
        usable=usable,
        note=note,
        sent_mib=_sent_mib(own),
        start_frac=own.start_frac if apart else 0.0,
        between_frac=max(point.between_frac for point in found),
    )


def _closed(knob: str, readings: Sequence[Reading]) -> tuple[bool, bool]:
    """Returns whether each end of the ladder is an end of what there is."""
    if knob in _WORDS or not all(isinstance(r.value, int | float) for r in readings):
        return True, True
    cheap, costly = float(readings[0].value), float(readings[-1].value)
    cheap_closed = cheap <= _LEAST.get(knob, float("-inf")) or _same(readings[:2])
    costly_closed = costly >= _MOST.get(knob, float("inf")) or bool(readings[-1].note)
    if knob == _BUCKET:
        # Its domain ends where one bucket holds all, and at 256 buckets or 1/64 MiB.
        sent_mib = next((item.sent_mib for item in readings if item.sent_mib), float("inf"))
        least_mib = max(1 / 64, sent_mib / 256) if sent_mib < float("inf") else 1 / 64
        cheap_closed = _same(readings[:2]) or 2 * cheap > sent_mib
        costly_closed = costly_closed or costly / 2 < least_mib
    return cheap_closed, costly_closed


def _sent_mib(point: Point) -> float | None:
    sent = point.effective.get("bytes_on_wire")
    return float(sent) / 2**20 if isinstance(sent, int | float) and sent else None


def _same(readings: Sequence[Reading]) -> bool:
    ids = {reading.point_id for reading in readings}
    return len(readings) > 1 and len(ids) == 1 and None not in ids
