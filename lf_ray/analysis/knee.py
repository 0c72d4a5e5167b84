"""The knee of one knob: the cheapest value that is as fast as the best, with an interval.

Read from a slice: from the best point one knob walks its ladder, the others held. The knee is the
cheapest value such that it and every ladder value between it and best's are within delta of the
best. Unlike the elbow of a curve this does not move when a longer range is swept.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from lf_ray.analysis.points import Visit
from lf_ray.analysis.slices import Reading, Slice, in_words
from lf_ray.protocol import KnobValue, Wire

NUM_RESAMPLES = 2000
MAX_SPAN_STEPS = 2
MAX_FASTER_SHARE = 0.5
"""Beyond it the best point is the best by chance, and so is the knee that starts from it."""

Floats = NDArray[np.float64]


class KneeStatus(StrEnum):
    """What a slice says.

    RESOLVED: the knee is pinned to within a ladder step or so.
    FLAT: the whole ladder is within delta; the baseline's value is kept.
    EDGE: the answer lies at an end of the ladder beyond which values could be swept.
    UNDETERMINED: the measurements do not decide, or some are missing.
    DEAD: the knob changes nothing effective here.
    """

    RESOLVED = "resolved"
    FLAT = "flat"
    EDGE = "edge"
    UNDETERMINED = "undetermined"
    DEAD = "dead"


@dataclass(frozen=True, kw_only=True, slots=True)
class Knee(Wire):
    """Where the knee is.

    Attributes:
        value: the knee; the baseline's value where flat or dead.
        lo: the cheap or small end of the 95 % interval; numbers are ordered, words as the ladder.
        best_value: the knob's value at the best point.
        advised: what to set: the knee where it is known, else the value that can't be wrong.
        confidence_frac: share of resamples that give `value` (flat: that are flat).
        reason: one line in words.
    """

    knob: str
    value: KnobValue
    lo: KnobValue
    hi: KnobValue
    status: KneeStatus
    best_value: KnobValue
    advised: KnobValue
    confidence_frac: float
    reason: str


def knee_estimate(
    slice_: Slice,
    *,
    delta: float = 0.02,
    seed: int = 0,
) -> Knee:
    """Returns the knee that a slice shows.

    Args:
        slice_: throughput along one knob's ladder, cheapest first.
        delta: what counts as equally fast, as a share.
        seed: of the bootstrap.
    """
    if slice_.is_dead:
        return _dead(slice_)
    if len(slice_.readings) == 1:
        return _unmeasured(slice_, "the ladder has a single value")
    values = np.array([_pooled_value(reading) for reading in slice_.readings])
    if not np.isfinite(values[slice_.best_index]):
        return _unmeasured(slice_, "the best point itself was not measured")
    draws = _resample(slice_.readings, np.random.default_rng(seed))
    return _Judgement(slice_, values, draws, delta).knee()


def knee_index(values: Floats, best_index: int, delta: float) -> int:
    """Returns the index of the cheapest value reached from best's without leaving delta.

    Args:
        values: throughput along the ladder, cheapest first; nan where unknown or unusable.
        best_index: where the best point is on it.
        delta: what counts as equally fast, as a share.
    """
    return int(_walked(values[None, :], best_index, delta)[0])


def _walked(draws: Floats, best_index: int, delta: float) -> NDArray[np.int64]:
    """Returns the index of the knee in each row, walked from the same best point."""
    reached = draws[:, :best_index] >= (1 - delta) * draws[:, best_index, None]
    # From best's towards the cheap end: how many values in a row are reached.
    in_a_row = np.logical_and.accumulate(reached[:, ::-1], axis=1).sum(axis=1)
    return np.asarray(best_index - in_a_row, dtype=np.int64)


def _walked_from_each_best(draws: Floats, best_index: int, delta: float) -> NDArray[np.int64]:
    """Returns the index of the knee in each row, walked from the row's own best value.

    That is the best point's as long as no other is more than delta faster in the row: a knee is
    no surer than the best that it starts from.
    """
    tops = np.where(np.isnan(draws), -np.inf, draws)
    fastest = tops.argmax(axis=1)
    is_other = tops.max(axis=1) > (1 + delta) * draws[:, best_index]
    starts = np.where(is_other, fastest, best_index)
    found = np.empty(len(draws), dtype=np.int64)
    for start in np.unique(starts):
        rows = starts == start
        found[rows] = _walked(draws[rows], int(start), delta)
    return found


def elbow_of(along: Slice) -> KnobValue | None:
    """Returns the ladder value at the curve's elbow (Kneedle), from the cheap side to the best.

    Shown beside the knee and never used for it: it moves with the range that was swept.
    """
    usable = [
        (reading.value, float(np.mean([visit.throughput.value for visit in reading.visits])))
        for reading in along.readings[: along.best_index + 1]
        if reading.usable
    ]
    if len(usable) < 4:
        return None
    from kneed import KneeLocator  # importing it takes seconds (scipy)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where a curve has no elbow
        found = KneeLocator(
            range(len(usable)),
            [throughput for _, throughput in usable],
            curve="concave",
            direction="increasing",
        ).knee
    # It answers with the first value where the curve does not rise at all.
    return usable[int(found)][0] if found else None


@dataclass(frozen=True, slots=True)
class _Judgement:
    """One slice with its resamples (one a row): the rules that turn them into a status."""

    along: Slice
    values: Floats
    draws: Floats
    delta: float

    def knee(self) -> Knee:
        best = self.along.best_index
        index = knee_index(self.values, best, self.delta)
        indices = _walked_from_each_best(self.draws, best, self.delta)
        low, high = (int(i) for i in np.percentile(indices, [2.5, 97.5], method="nearest"))
        share = float(np.mean(indices == index))
        flat = float(self._all_within(self.draws).mean())
        if self._all_within(self.values[None, :])[0]:
            status, reason = self._flat_status(flat)
            return self._knee(status, reason, index, (low, high), flat)
        status, reason = self._status(index, low, high)
        return self._knee(status, reason, index, (low, high), share)

    def _flat_status(self, flat_frac: float) -> tuple[KneeStatus, str]:
        whole = f"every value measured is within {self.delta:.0%} of the best"
        if self.along.missing:
            return KneeStatus.UNDETERMINED, f"{whole}, but {self._missing(self.along.missing)}"
        if flat_frac >= 0.5:
            return KneeStatus.FLAT, f"{whole}: keep the baseline's value"
        return KneeStatus.UNDETERMINED, f"{whole}, but the readings are too wide to be sure"

    def _status(self, index: int, low: int, high: int) -> tuple[KneeStatus, str]:
        readings, best = self.along.readings, self.along.best_index
        if index > 0 and readings[index - 1].is_missing:
            missing = self._missing((readings[index - 1].value,))
            return KneeStatus.UNDETERMINED, f"the walk towards cheaper values stops where {missing}"
        if best + 1 < len(readings) and readings[best + 1].is_missing:
            # The best of what was measured need not be the best of the ladder.
            beyond = self._missing((readings[best + 1].value,))
            return KneeStatus.UNDETERMINED, f"{beyond} and may be faster than the best"
        if self._share_with_a_faster() > MAX_FASTER_SHARE:
            whole = f"another value may well be over {self.delta:.0%} faster"
            return KneeStatus.UNDETERMINED, f"{whole}: the readings are too wide to be sure"
        if high - low > MAX_SPAN_STEPS:
            span = f"{self._words(readings[low].value)} to {self._words(readings[high].value)}"
            return KneeStatus.UNDETERMINED, f"the readings allow anything from {span}"
        if index == 0 and not self.along.closed[0]:
            return KneeStatus.EDGE, "the cheapest value swept is still within delta of the best"
        if best == len(readings) - 1 and not self.along.closed[1] and self._rises_to(best):
            return KneeStatus.EDGE, "throughput still rises at the end of the ladder"
        return KneeStatus.RESOLVED, self._resolved_reason(index)

    def _resolved_reason(self, index: int) -> str:
        if index == 0:
            return "the cheapest value there is, and as fast as the best"
        cheaper = self.along.readings[index - 1]
        if not cheaper.usable:
            return f"{self._words(cheaper.value)} is cheaper but {cheaper.note}"
        loss = 1 - self.values[index - 1] / self.values[self.along.best_index]
        return f"{self._words(cheaper.value)} is cheaper but {loss:.1%} slower than the best"

    def _share_with_a_faster(self) -> float:
        """Returns in how many draws some value lies more than delta above the best point's."""
        tops = (1 + self.delta) * self.draws[:, self.along.best_index, None]
        return float(np.mean((self.draws > tops).any(axis=1)))

    def _rises_to(self, end: int) -> bool:
        """Returns whether the end of the ladder is certainly faster than two steps before it."""
        before = max(index for index in (end - 2, end - 1) if index >= 0)
        ratio = self.draws[:, end] / self.draws[:, before]
        return bool(np.isnan(ratio).any() or np.percentile(ratio, 5) > 1)

    def _all_within(self, draws: Floats) -> NDArray[np.bool_]:
        """Returns of each row whether no value that is known lies further than delta below."""
        known = np.isfinite(draws)
        usable = all(reading.usable or reading.is_missing for reading in self.along.readings)
        floors = (1 - self.delta) * draws[:, self.along.best_index, None]
        within = ((draws >= floors) | ~known).all(axis=1)
        return np.asarray(within & (known.sum(axis=1) > 1) & usable, dtype=np.bool_)

    def _missing(self, values: Sequence[KnobValue]) -> str:
        return f"{', '.join(self._words(value) for value in values)} was not measured"

    def _words(self, value: KnobValue) -> str:
        return in_words(self.along.knob, value)

    def _knee(
        self, status: KneeStatus, reason: str, index: int, span: tuple[int, int], share: float
    ) -> Knee:
        readings, flat = self.along.readings, status is KneeStatus.FLAT
        value = self.along.baseline_value if flat else readings[index].value
        lo, hi = readings[span[0]].value, readings[span[1]].value
        if flat:
            lo, hi = readings[0].value, readings[-1].value
        if isinstance(lo, int | float) and isinstance(hi, int | float):
            lo, hi = min(lo, hi), max(lo, hi)
        best_value = readings[self.along.best_index].value
        unsure = status is KneeStatus.UNDETERMINED
        return Knee(
            knob=self.along.knob,
            value=value,
            lo=lo,
            hi=hi,
            status=status,
            best_value=best_value,
            advised=best_value if unsure else value,
            confidence_frac=share,
            reason=reason,
        )


def _dead(slice_: Slice) -> Knee:
    best_value = slice_.readings[slice_.best_index].value
    return Knee(
        knob=slice_.knob,
        value=slice_.baseline_value,
        lo=slice_.baseline_value,
        hi=slice_.baseline_value,
        status=KneeStatus.DEAD,
        best_value=best_value,
        advised=slice_.baseline_value,
        confidence_frac=1.0,
        reason=(
            "it has no say while the other knobs are as at the best point"
            if slice_.inactive
            else "no value on the ladder changes anything effective here"
        ),
    )


def _unmeasured(slice_: Slice, reason: str) -> Knee:
    best_value = slice_.readings[slice_.best_index].value
    return Knee(
        knob=slice_.knob,
        value=best_value,
        lo=best_value,
        hi=best_value,
        status=KneeStatus.UNDETERMINED,
        best_value=best_value,
        advised=best_value,
        confidence_frac=0.0,
        reason=reason,
    )


def _pooled_value(reading: Reading) -> float:
    if not reading.usable:
        return np.nan
    return float(np.mean([visit.throughput.value for visit in reading.visits]))


def _resample(readings: Sequence[Reading], rng: np.random.Generator) -> Floats:
    """Returns bootstrap draws of the ladder's throughputs: over visits, then batches.

    Few visits can't show how far visits differ, so that part is drawn from `between_frac`, which
    is learnt over the whole sweep; batches are drawn with replacement within each visit. What
    visits share with a start of their workers is drawn once for all of them.
    """
    draws = np.full((NUM_RESAMPLES, len(readings)), np.nan)
    by_point: dict[str | None, Floats] = {}  # values that come to the same thing move together
    for column, reading in enumerate(readings):
        if not reading.usable:
            continue
        if reading.point_id not in by_point:
            drawn = [_resample_visit(visit, rng) for visit in reading.visits]
            noise = 1 + reading.between_frac * rng.standard_normal((len(drawn), NUM_RESAMPLES))
            mean = np.mean(np.array(drawn) * noise, axis=0)
            if reading.start_frac:
                mean = mean * (1 + reading.start_frac * rng.standard_normal(NUM_RESAMPLES))
            by_point[reading.point_id] = mean
        draws[:, column] = by_point[reading.point_id]
    return draws


def _resample_visit(visit: Visit, rng: np.random.Generator) -> Floats:
    """Returns draws of one visit's mean.

    Their shape comes from its batches. Their spread is at least that of its interval, which knows
    what a few batches can't show: likeness of neighbouring steps and rare spikes.
    """
    value, num = visit.throughput.value, len(visit.batches)
    spread = (visit.throughput.hi - visit.throughput.lo) / 3.92
    if num < 3:
        return np.asarray(value + spread * rng.standard_normal(NUM_RESAMPLES))
    batches = np.array(visit.batches)
    drawn = batches[rng.integers(0, num, (NUM_RESAMPLES, num))].mean(axis=1) - batches.mean()
    return np.asarray(value + drawn * max(1.0, spread / max(float(drawn.std()), 1e-12 * value)))
