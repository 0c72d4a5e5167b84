"""What the planner may answer, and the rules that a sweep goes by."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lf_ray.protocol import Deadlines, Knobs, KnobValue, OutcomeKind, TrialRequest
from lf_ray.search.space import Space
from lf_ray.settings import MeasureLevel, MeasureSettings, SweepConfig, Trainer


@dataclass(frozen=True, slots=True)
class Request:
    """Send this to a group."""

    request: TrialRequest
    reason: str


@dataclass(frozen=True, slots=True)
class Line:
    """Write this event to the journal, then ask again."""

    kind: str
    payload: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to send until something comes back."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The sweep is over."""

    reason: str
    exit_code: int


Decision = Request | Line | Wait | Stop


@dataclass(frozen=True, slots=True)
class Told:
    """What a sampler may know of a point: how it ended and, where completed, how fast it was.

    Attributes:
        error_frac: standard error of `samples_per_s`, as a share.
        error_kind: what it ran out of, where infeasible.
        reserved_frac: share of the device's memory that was reserved at the peak; None: unknown.
        peak_frac: share that tensors held at the peak.
    """

    knobs: Knobs
    kind: OutcomeKind
    samples_per_s: float | None
    error_frac: float = 0.0
    error_kind: str = "oom"
    reserved_frac: float | None = None
    peak_frac: float | None = None


def alike(knobs: Knobs) -> tuple[float, float]:
    """Returns the same price for every visit."""
    return 1.0, 0.0


PriceOf = Callable[[Knobs], tuple[float, float]]


class Proposer(Protocol):
    """Draws suggestions. A pure function: the same arguments give the same points."""

    def propose(
        self,
        space: Space,
        told: Sequence[Told],
        count: int,
        seed: int,
        allowed: Callable[[Knobs], bool],
        price: PriceOf = alike,
    ) -> list[dict[str, KnobValue]]:
        """Returns up to `count` distinct canonical points of the space for which `allowed` holds.

        None are returned only where the space has no more. `price` says what a visit costs:
        seconds until its first step, and samples that it takes; whoever can weighs gain by it.
        """
        ...


# A smoke sweep is to be over within about four minutes; with a cap, what is left is for the slices.
_SMOKE_SOFT_S = 150.0
_SOFT_SHARE = 0.7

# How often a point is visited at most, by what the measurement is for.
_VISITS = {MeasureLevel.smoke: 2, MeasureLevel.standard: 3, MeasureLevel.publish: 4}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What a sweep goes by; all of it from the settings.

    Attributes:
        trials: started trials, exactly; None lets the stop rules decide.
        minutes: wall-clock cap.
        num_groups: requests that may be under way at once.
        enqueued: points tried before the sampler is asked (knobs that differ from the baseline).
        soft_s: seconds after which a sweep hurries (one visit each, fewer values); None: never.
        slice_visits: visits of each value of a slice, at most; slice_values: values, likewise.
        num_rivals: near-ties that are measured side by side, the best among them.
        winner_visits: of the best point and the baseline, at most, where visits disagree.
        coarse_frac: half-width at which visits that only sort points may stop, as a share.
        baseline_every: visits after which the baseline is visited again, to see drift.
    """

    seed: int = 0
    trials: int | None = None
    minutes: float | None = None
    delta: float = 0.02
    round_size: int = 4
    num_groups: int = 1
    measure: MeasureSettings = field(default_factory=MeasureSettings)
    deadlines: Deadlines = field(default_factory=Deadlines)
    enqueued: tuple[Mapping[str, KnobValue], ...] = ()
    soft_s: float | None = None
    slice_visits: int = 2
    slice_values: int = 7
    num_rivals: int = 3
    winner_visits: int = 6
    coarse_frac: float = 0.03
    baseline_every: int = 8
    gain_left_frac: float = 0.005
    max_failures: int = 3

    def hurried(self) -> "Rules":
        """Returns the rules of a sweep that is short of time."""
        return dataclasses.replace(
            self,
            slice_visits=1,
            slice_values=5,
            num_rivals=1,
            winner_visits=4,
            baseline_every=1_000_000,
        )


def rules_of(
    config: SweepConfig,
    *,
    num_groups: int = 1,
    deadlines: Deadlines | None = None,
    enqueued: Sequence[Mapping[str, KnobValue]] = (),
) -> Rules:
    """Returns the rules that the settings ask for."""
    return Rules(
        seed=config.sweep.seed,
        trials=config.sweep.trials,
        minutes=config.sweep.minutes,
        delta=config.sweep.delta,
        round_size=config.sweep.round_size,
        num_groups=num_groups,
        measure=config.measure,
        deadlines=deadlines or _deadlines(config),
        enqueued=tuple(enqueued),
        soft_s=_soft_s(config),
        slice_visits=_VISITS[config.measure.level],
    )


def _deadlines(config: SweepConfig) -> Deadlines:
    """Returns how long phases may take; LoongForge starts a process and builds 3B every trial."""
    if config.trainer is Trainer.loongforge:
        return Deadlines(first_batch_s=900.0, step_s=60.0)
    return Deadlines()


def _soft_s(config: SweepConfig) -> float | None:
    if config.sweep.minutes is not None:
        return config.sweep.minutes * 60 * _SOFT_SHARE
    return _SMOKE_SOFT_S if config.measure.level is MeasureLevel.smoke else None
