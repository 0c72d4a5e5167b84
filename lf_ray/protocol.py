"""Values that cross borders: frozen, versioned, JSON both ways.

What search asks of a group, what the workers answer, what the journal keeps. No behaviour beyond
the codec and `change_cost`, no torch, no other part of the project.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from lf_ray.errors import RecordError, four_parts

PROTOCOL_VERSION = 1

KnobValue = bool | int | float | str
Knobs = Mapping[str, KnobValue]


class Purpose(StrEnum):
    """Why a request is sent. Only SEARCH and BASELINE requests count as trials."""

    SEARCH = "search"
    BASELINE = "baseline"
    SLICE = "slice"
    REPLICATE = "replicate"


class OutcomeKind(StrEnum):
    """How a trial ended."""

    COMPLETED = "completed"
    PRUNED = "pruned"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    INVALID = "invalid"


class ChangeCost(StrEnum):
    """What going from one trial's knobs to the next one's takes, cheapest first."""

    HOT = "hot"
    RECAPTURE = "recapture"
    RESTART = "restart"


class Wire:
    """JSON both ways for the frozen dataclasses of this file."""

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values; non-finite floats become the strings nan, inf and -inf."""
        return {
            item.name: _encode(getattr(self, item.name))
            for item in dataclasses.fields(typing.cast(Any, self))
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Returns the value that `to_json` wrote.

        Raises:
            RecordError: a field is missing or unknown, or has another type.
        """
        hints = _hints_of(typing.cast(Any, cls))
        items = {item.name: item for item in dataclasses.fields(typing.cast(Any, cls))}
        unknown = sorted(set(data) - set(items))
        missing = sorted(
            name
            for name, item in items.items()
            if name not in data
            and item.default is dataclasses.MISSING
            and item.default_factory is dataclasses.MISSING
        )
        if unknown or missing:
            raise RecordError(
                four_parts(
                    f"reading a {cls.__name__}",
                    f"its fields are {', '.join(items)}",
                    f"unknown {unknown or 'none'}, missing {missing or 'none'}",
                    "Read it with the version of lf-ray that wrote it.",
                )
            )
        return cls(**{name: _decode(hints[name], data[name], name) for name in data})


@functools.cache
def _hints_of(cls: type) -> Mapping[str, Any]:
    """Returns the types of a class's fields; working them out takes as long as a whole record."""
    return typing.get_type_hints(cls)


def _encode(value: Any) -> Any:
    if type(value) is float:
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Wire):
        return value.to_json()
    if isinstance(value, Mapping):
        return {str(key): _encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _decode(kind: Any, value: Any, name: str) -> Any:
    if type(value) is kind:
        return value  # most of a record: its steps
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _decode_union(kind, value, name)
    if origin is tuple:
        return tuple(_decode(typing.get_args(kind)[0], item, name) for item in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        item_kind = typing.get_args(kind)[1]
        return {key: _decode(item_kind, item, f"{name}.{key}") for key, item in value.items()}
    if kind is Any:
        return value
    if kind is float and (value in ("nan", "inf", "-inf") or type(value) in (int, float)):
        return float(value)
    if isinstance(kind, type) and issubclass(kind, Wire) and isinstance(value, Mapping):
        return kind.from_json(value)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(value)
    raise RecordError(
        four_parts(
            "reading a record",
            f"{name} is a {getattr(kind, '__name__', kind)}",
            f"{value!r}",
            "Read it with the version of lf-ray that wrote it.",
        )
    )


def _decode_union(kind: Any, value: Any, name: str) -> Any:
    options = typing.get_args(kind)
    if value is None and type(None) in options:
        return None
    if set(options) >= {bool, int, float, str}:
        return float(value) if value in ("nan", "inf", "-inf") else value
    (inner,) = [item for item in options if item is not type(None)]
    return _decode(inner, value, name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval(Wire):
    """A number with its 95 % interval and what it rests on."""

    value: float
    lo: float
    hi: float
    num_steps: int
    num_visits: int

    @property
    def half_width_frac(self) -> float:
        """Returns half the interval's width as a share of the value."""
        return (self.hi - self.lo) / 2 / self.value if self.value else math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget(Wire):
    """When a visit may stop.

    Attributes:
        min_steps: steady steps before a visit may settle; a lost race may end it from eight on.
        max_steps: cap on steps, warm-up included.
        max_s: cap on the visit's measured wall time; up to four times that where steps are long.
        target_frac: stop when the half-width of the interval is below this share.
        incumbent_samples_per_s: best so far; a visit certainly more than `delta_frac` below stops.
        delta_frac: what counts as clearly worse.
    """

    min_steps: int = 20
    max_steps: int = 60
    max_s: float = 60.0
    target_frac: float = 0.05
    incumbent_samples_per_s: float | None = None
    delta_frac: float = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Deadlines(Wire):
    """How long each phase may take before the late rank is named and the group given up, in s."""

    start_s: float = 120.0
    first_batch_s: float = 120.0
    capture_s: float = 120.0
    step_s: float = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRequest(Wire):
    """What is sent to the workers: one visit of one point.

    Attributes:
        id: unique in a sweep; "t007" for the eighth trial, "t007r2" for its second replicate,
            "s012" for a slice visit of a point that was no trial.
        knobs: every knob by its dotted name; nothing is left to defaults.
        replicate_of: id of the trial whose point is measured again, else None.
        noise_steps: batches after the timed steps of which the gradient noise is taken; 0: none.
        run_samples: the visit is a training run of this many samples, and its learning-rate
            schedule is laid out for them; None takes the settings' own.
    """

    id: str
    knobs: Mapping[str, KnobValue]
    seed: int
    purpose: Purpose
    replicate_of: str | None = None
    budget: Budget = field(default_factory=Budget)
    deadlines: Deadlines = field(default_factory=Deadlines)
    noise_steps: int = 0
    run_samples: int | None = None
    version: int = PROTOCOL_VERSION


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSample(Wire):
    """One timed step on one rank. `device_s` equals `wall_s` on CPU.

    Attributes:
        num_skipped: samples that others stood in for, because a frame could not be had.
        bad_frames: those frames, as words that name file and frame.
    """

    step: int
    rank: int
    wall_s: float
    device_s: float
    loss: float
    grad_norm: float
    wait_s: float
    phases_s: Mapping[str, float]
    num_skipped: int = 0
    bad_frames: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialOutcome(Wire):
    """How a request ended, and why.

    Attributes:
        reason: one line, never empty unless completed.
        rank: the rank that the reason speaks of.
        error_kind: groups like reasons ("oom", "host_memory", "worker_lost", "hang", "diverged",
            "capture", "gate", "settings", "exception", "save", "export"); empty when completed.
        stop_rule: why the visit ended: settled | raced | cap | error.
        effective: what really ran, by name (bucket count, bytes, ratio, global batch ...).
        costs_s: seconds by class: restart, prepare, reference, capture, warmup, measured, reset.
        group_lost: the group was given up and must be replaced.
    """

    kind: OutcomeKind
    reason: str = ""
    rank: int | None = None
    error_kind: str = ""
    stop_rule: str = ""
    effective: Mapping[str, KnobValue] = field(default_factory=dict)
    costs_s: Mapping[str, float] = field(default_factory=dict)
    group_lost: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class GateResult(Wire):
    """The numerics gate's verdict on a trial's own first steps (design: correct before fast).

    Attributes:
        bit_equal: loss, grad norm and every checksum equal the reference's.
        worst_frac: largest difference as a share of its bound; above 1 the gate is failed.
    """

    passed: bool
    bit_equal: bool
    worst_frac: float
    reason: str
    num_steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace(Wire):
    """The steps of one visit as columns, one row a step.

    `wall_s` is the slowest rank's, `loss` the mean over ranks, `wait_s` the longest data wait.
    """

    wall_s: tuple[float, ...]
    loss: tuple[float, ...]
    grad_norm: tuple[float, ...]
    wait_s: tuple[float, ...]
    lr: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientTensor(Wire):
    """One gradient that is sent, in the order in which backward makes them ready.

    Attributes:
        layer: name of the layer (block) that it belongs to; a bucket holds neighbouring layers.
    """

    name: str
    num_elements: int
    layer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRecord(Wire):
    """What is kept of one request: asked, ended, measured.

    Attributes:
        samples_per_step: samples over all ranks that one step consumes.
        steady_from: index of the first steady step in the trace.
        throughput_samples_per_s: over all ranks, from this visit alone; None without a settled one.
        step_s: step time of this visit, likewise.
        phases_s: mean seconds that a steady step spends in each phase, mean over ranks.
        memory_bytes: allocated, reserved, peak ... by name.
        metrics: anything else worth a column: overlap_hidden, t_comm_s, t_no_comm_s, lr,
            gpu_utilisation_frac, num_launches, ...
        clock_s: seconds since the epoch by name: requested, first_step, last_step, finished.
        gradients: what is sent, in ready order; set on the group's first record only, so that
            search can tell which bucket plans are the same.
        bad_frames: frames that could not be had, in words, the first ones of many; the metrics
            samples_skipped and frames_bad count samples and frames.
    """

    request: TrialRequest
    outcome: TrialOutcome
    samples_per_step: int = 0
    trace: Trace | None = None
    steady_from: int = 0
    throughput_samples_per_s: Interval | None = None
    step_s: Interval | None = None
    gate: GateResult | None = None
    phases_s: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    clock_s: Mapping[str, float] = field(default_factory=dict)
    gradients: tuple[GradientTensor, ...] = ()
    bad_frames: tuple[str, ...] = ()
    version: int = PROTOCOL_VERSION

    @property
    def point_id(self) -> str:
        """Returns the id of the trial whose point this visit measured."""
        return self.request.replicate_of or self.request.id


_RESTART_KNOBS = ("memory.backend", "memory.block_sizes", "nccl.algo", "nccl.max_ctas")
_RECAPTURE_KNOBS = (
    "pipeline.prefix",
    "update.sharded",
    "graph.scope",
    "batch.per_gpu",
    "batch.accumulation",
)
_HOT_UNLESS_CAPTURED = ("overlap.bucket_size_mb", "overlap.ratio", "overlap.comm_dtype")
_HOT_KNOBS = (
    "batch.lr_rule",
    "data.workers",
    "data.prefetch",
    "data.cache",
    "data.decode_threads",
)
ARITHMETIC_KNOBS = (
    "overlap.comm_dtype",
    "batch.per_gpu",
    "batch.accumulation",
    "batch.lr_rule",
)
"""Knobs that change what is computed; the numerics gate holds all others to the reference."""
KNOB_NAMES = _HOT_UNLESS_CAPTURED + _RECAPTURE_KNOBS + _RESTART_KNOBS + _HOT_KNOBS


ACTS_ONLY: Mapping[str, tuple[str, KnobValue, KnobValue]] = {
    "pipeline.prefix": ("graph.scope", "step+optimizer", "off"),
    "update.sharded": ("graph.scope", "step+optimizer", "off"),
    "memory.block_sizes": ("memory.backend", "arena", "none"),
}
"""Knobs that act only where another one has some value: that one, the value, what they are else."""


def settled_knobs(knobs: Knobs) -> dict[str, KnobValue]:
    """Returns the knobs, those that can't act beside the others as they are then."""
    settled = dict(knobs)
    for name, (other, value, otherwise) in ACTS_ONLY.items():
        if name in settled and settled.get(other, value) != value:
            settled[name] = otherwise
    return settled


def change_cost(previous: Knobs | None, following: Knobs) -> ChangeCost:
    """Returns what a group that ran `previous` must do to run `following` (None: not started)."""
    if previous is None:
        return ChangeCost.RESTART
    changed = {name for name in following if previous.get(name) != following[name]}
    if changed & set(_RESTART_KNOBS):
        return ChangeCost.RESTART
    captured = following.get("graph.scope", "off") != "off"
    if changed & set(_RECAPTURE_KNOBS) or (captured and changed & set(_HOT_UNLESS_CAPTURED)):
        return ChangeCost.RECAPTURE
    return ChangeCost.HOT
