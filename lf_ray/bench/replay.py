"""Any journal as a table: recorded traces, start-up costs and failures, played back on a clock.

A visit of a recorded point takes one of its recorded visits (which one depends on seed and request
alone), shows as many of its steps as the request's budget asks for, and costs what the journal
says that such a change costs. A point that was not recorded is answered as invalid and costs
nothing; `recorded_frac` says how much of the spanned space there is.
"""

import hashlib
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lf_ray.analysis.answer import num_ranks
from lf_ray.analysis.points import gather
from lf_ray.bench.contest.frozen import SUFFIX, read_table
from lf_ray.clock import FakeClock
from lf_ray.compose import from_nested
from lf_ray.errors import ConfigError, RecordError, four_parts
from lf_ray.measure import read_visit, tolerance
from lf_ray.protocol import (
    ChangeCost,
    Knobs,
    KnobValue,
    OutcomeKind,
    Trace,
    TrialOutcome,
    TrialRecord,
    TrialRequest,
    change_cost,
)
from lf_ray.record.history import SweepHistory
from lf_ray.search.space import Space, point_key, space_from_literal
from lf_ray.search.start.prior import prior_of
from lf_ray.testing.sim.cluster import measured_steps

CACHED_COMPILE_S = 4.4
"""What a process takes for a batch whose kernels the compiler's cache on disk has: one H200, 3B
(docs/log.md, 2026-12-01). A journal of one group has no such start to tell.
"""
_CLASSES = ("restart", "reset", "prepare", "capture")
_STEPS = ("warmup", "measured")


class ReplayTable:
    """A recorded sweep as a table.

    Args:
        history: what the journal says.
        name: shown beside its numbers.
    """

    def __init__(self, history: SweepHistory, name: str) -> None:
        self.name = name
        self.num_gpus = num_ranks(history)
        self.records = _by_point(history)
        if not any(_is_measured(r) for group in self.records.values() for r in group):
            raise _useless(name, "no completed visit")
        self.space = _space(history, self.records)
        self.gradients = next((r.gradients for r in history.records if r.gradients), ())
        self.seconds = _seconds_by_change(history.records)
        self.compile_s = _first_s(history.records, "compile")
        self.reference_s = _first_s(history.records, "reference")
        self.suggestion = _suggestion(history, self.space)
        rates = {
            point_key(point.knobs): point.throughput.value
            for point in gather(history.records).points
            if point.throughput is not None
        }
        sources = {key: point_key(group[0].request.knobs) for key, group in self.records.items()}
        self._rates = {key: rates[source] for key, source in sources.items() if source in rates}

    @property
    def recorded_frac(self) -> float:
        """Returns the share of the spanned space's points of which something is known."""
        points = [point_key(point) for point in self.space.points()]
        return sum(key in self.records for key in points) / len(points)

    def true_samples_per_s(self, knobs: Knobs) -> float:
        """Returns a point's throughput over all its visits, 0 where it has none."""
        return self._rates.get(point_key(knobs), 0.0)

    def group(
        self, seed: int, clock: FakeClock, compiled: set[KnobValue], *, with_references: bool
    ) -> "ReplayGroup":
        """Returns a group that plays the journal back."""
        return ReplayGroup(self, seed, clock, compiled, with_references=with_references)


class ReplayGroup:
    """Warm workers that answer from a journal."""

    def __init__(
        self,
        table: ReplayTable,
        seed: int,
        clock: FakeClock,
        compiled: set[KnobValue],
        *,
        with_references: bool,
    ) -> None:
        self._table = table
        self._seed = seed
        self._clock = clock
        self._compiled = compiled
        self._batches: set[KnobValue] = set()
        self._with_references = with_references
        self._knobs: Knobs | None = None
        self._told_gradients = False

    def run(self, request: TrialRequest) -> TrialRecord:
        """Returns a recorded visit, cut to the request's budget."""
        recorded = self._table.records.get(point_key(request.knobs))
        if not recorded:
            return _not_recorded(request)
        source = self._chosen(recorded, request)
        change = change_cost(self._knobs, request.knobs)
        costs_s = {**self._table.seconds[change], **self._batch_costs_s(request.knobs, change)}
        self._knobs = None if source.outcome.group_lost else dict(request.knobs)
        self._clock.sleep(sum(costs_s.values()))
        if source.trace is None or not _is_measured(source):
            self._clock.sleep(sum(source.outcome.costs_s.get(name, 0.0) for name in _STEPS))
            return _failed(request, source, costs_s)
        return self._measured(request, source, source.trace, costs_s)

    def _batch_costs_s(self, knobs: Knobs, change: ChangeCost) -> dict[str, float]:
        """Returns what a batch costs that these workers have not met: kernels, the reference.

        Kernels cost it in full once a machine.
        """
        if change is ChangeCost.RESTART:
            self._batches.clear()
        batch = knobs["batch.per_gpu"]
        if batch in self._batches:
            return {}
        compile_s = self._table.compile_s.get(batch, 0.0)
        if batch in self._compiled:
            compile_s = min(compile_s, CACHED_COMPILE_S)
        self._batches.add(batch)
        self._compiled.add(batch)
        reference_s = self._table.reference_s.get(batch, 0.0)
        return {"compile": compile_s, "reference": reference_s * self._with_references}

    def _chosen(self, recorded: Sequence[TrialRecord], request: TrialRequest) -> TrialRecord:
        """Returns one recorded visit; a measured one wherever the point was measured at all."""
        measured = [record for record in recorded if _is_measured(record)] or list(recorded)
        digest = hashlib.sha256(f"{self._seed}/{request.id}".encode()).digest()
        return measured[int.from_bytes(digest[:4], "little") % len(measured)]

    def _measured(
        self,
        request: TrialRequest,
        source: TrialRecord,
        trace: Trace,
        costs_s: dict[str, float],
    ) -> TrialRecord:
        all_s = _lengthened(trace.wall_s, source.steady_from, request.budget.max_steps)
        steps_s, rule = measured_steps(all_s, request.budget, source.samples_per_step)
        reading = read_visit(steps_s, source.samples_per_step, tolerance(request.budget))
        first = reading.steady.first
        costs_s["warmup"] = float(steps_s[:first].sum())
        costs_s["measured"] = float(steps_s[first:].sum())
        started_s = self._clock.wall_s()
        self._clock.sleep(float(steps_s.sum()))
        told, self._told_gradients = self._told_gradients, True
        return TrialRecord(
            request=request,
            outcome=TrialOutcome(
                kind=OutcomeKind.INVALID if reading.error else OutcomeKind.COMPLETED,
                reason=f"no throughput ({rule}): {reading.error}" if reading.error else "",
                error_kind="unsteady" if reading.error else "",
                stop_rule=rule,
                effective={**source.outcome.effective, "replayed": True},
                costs_s=costs_s,
            ),
            samples_per_step=source.samples_per_step,
            trace=Trace(
                wall_s=tuple(float(item) for item in steps_s),
                loss=(1.0,) * steps_s.size,
                grad_norm=(1.0,) * steps_s.size,
                wait_s=(0.0,) * steps_s.size,
            ),
            steady_from=first,
            throughput_samples_per_s=reading.throughput_samples_per_s,
            step_s=reading.step_s,
            gate=source.gate,
            phases_s=source.phases_s,
            memory_bytes=source.memory_bytes,
            # Which workers it ran in then says nothing of those that are played here.
            metrics={k: v for k, v in source.metrics.items() if k != "incarnation"},
            clock_s={"first_step": started_s, "finished": self._clock.wall_s()},
            gradients=() if told else self._table.gradients,
        )


def replay_table(path: Path) -> ReplayTable:
    """Returns a journal, or a frozen table, as a table.

    Raises:
        RecordError: it is no journal, or holds nothing that could be played back.
    """
    history = read_table(path)
    frozen = path.name.endswith(SUFFIX)
    name = path.name.removesuffix(SUFFIX) if frozen else f"journal:{path.parent.name}"
    return ReplayTable(history, name)


def _by_point(history: SweepHistory) -> dict[str, list[TrialRecord]]:
    """Returns the records that tell something of their point: measured, or infeasible.

    A point that the sweep knew to come to the same as another, or not to fit either, has those.
    """
    found: dict[str, list[TrialRecord]] = {}
    by_id: dict[str, list[TrialRecord]] = {}
    for record in history.records:
        if _is_measured(record) or record.outcome.kind is OutcomeKind.INFEASIBLE:
            found.setdefault(point_key(record.request.knobs), []).append(record)
            by_id[record.point_id] = found[point_key(record.request.knobs)]
    for point in history.dead:
        if point.same_as in by_id:
            found.setdefault(point_key(point.knobs), by_id[point.same_as])
    return found


def _is_measured(record: TrialRecord) -> bool:
    return record.outcome.kind is OutcomeKind.COMPLETED and record.step_s is not None


def _space(history: SweepHistory, records: Mapping[str, Sequence[TrialRecord]]) -> Space:
    """Returns the space that the recorded points span."""
    header = history.header
    literal: dict[str, list[KnobValue]] = {}
    for name in header.space:
        values = {group[0].request.knobs[name] for group in records.values()}
        values |= {point.knobs[name] for point in history.dead if point_key(point.knobs) in records}
        literal[name] = sorted(values, key=lambda value: (isinstance(value, str), value))
    return space_from_literal(literal, header.baseline_knobs)


def _seconds_by_change(records: Sequence[TrialRecord]) -> dict[ChangeCost, dict[str, float]]:
    """Returns the median seconds of each class that a change of knobs cost in this journal."""
    seen: dict[ChangeCost, list[Mapping[str, float]]] = {change: [] for change in ChangeCost}
    previous: Knobs | None = None
    for record in records:
        change = change_cost(previous, record.request.knobs)
        if record.outcome.costs_s.get("restart", 0.0) > 0:
            change = ChangeCost.RESTART
        if _is_measured(record):
            seen[change].append(record.outcome.costs_s)
        previous = None if record.outcome.group_lost else record.request.knobs
    cheaper: list[Mapping[str, float]] = []
    seconds: dict[ChangeCost, dict[str, float]] = {}
    for change, costs in seen.items():
        # A class that never happened costs at least what the next cheaper one does.
        costs = costs or cheaper
        seconds[change] = {
            name: statistics.median([item.get(name, 0.0) for item in costs]) if costs else 0.0
            for name in _CLASSES
        }
        cheaper = costs
    # Whoever started the group tells what that takes, even where its visit came to nothing.
    started = [r.outcome.costs_s.get("restart", 0.0) for r in records]
    seconds[ChangeCost.RESTART]["restart"] = statistics.median(
        [cost_s for cost_s in started if cost_s > 0] or [0.0]
    )
    return seconds


def _first_s(records: Sequence[TrialRecord], name: str) -> dict[KnobValue, float]:
    """Returns the seconds of a class that each batch took when the journal met it first."""
    found: dict[KnobValue, float] = {}
    for record in records:
        seconds = record.outcome.costs_s.get(name, 0.0)
        if seconds > 0:
            found.setdefault(record.request.knobs["batch.per_gpu"], seconds)
    return found


def _suggestion(history: SweepHistory, space: Space) -> Knobs | None:
    """Returns what a sweep of this space on the recorded machine would be told to try early."""
    header = history.header
    try:
        config = from_nested(dict(header.config))
    except ConfigError:  # of another version, whose settings this one does not know
        return None
    prior = prior_of(config, space, header.machine.get("gpus", ()))
    return None if prior is None else prior.knobs


def _lengthened(
    wall_s: Sequence[float], steady_from: int, max_steps: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Returns a trace of `max_steps`, its steady part gone through again where it is shorter."""
    steps_s = np.asarray(wall_s, dtype=np.float64)
    steady_s = steps_s[steady_from:]
    missing = max_steps - steps_s.size
    if missing > 0 and steady_s.size:
        steps_s = np.concatenate([steps_s, np.resize(steady_s, missing)])
    return steps_s[:max_steps]


def _failed(
    request: TrialRequest, source: TrialRecord, costs_s: Mapping[str, float]
) -> TrialRecord:
    outcome = source.outcome
    return TrialRecord(
        request=request,
        outcome=TrialOutcome(
            kind=outcome.kind,
            reason=outcome.reason,
            rank=outcome.rank,
            error_kind=outcome.error_kind,
            stop_rule=outcome.stop_rule,
            effective={**outcome.effective, "replayed": True},
            costs_s=costs_s,
            group_lost=outcome.group_lost,
        ),
    )


def _not_recorded(request: TrialRequest) -> TrialRecord:
    return TrialRecord(
        request=request,
        outcome=TrialOutcome(
            kind=OutcomeKind.INVALID,
            reason="this point is not in the journal",
            error_kind="not_recorded",
            stop_rule="error",
        ),
    )


def _useless(name: str, got: str) -> RecordError:
    return RecordError(
        four_parts(
            f"reading {name} as a table for searchers",
            "a table needs measured points",
            got,
            "Give the journal of a sweep that completed trials, best of all a full grid.",
        )
    )
