"""Do gains multiply? The product of single gains against the gain of all together.

Pure. Every side is measured in one block of interleaved visits around the same baseline, so that
the machine's mood hits all alike.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lf_ray.analysis.points import Point
from lf_ray.measure.interval import ratio, widened
from lf_ray.measure.quantiles import Z_95
from lf_ray.protocol import ChangeCost, Interval, change_cost


class Multiply(StrEnum):
    """How the gain of all together compares with the product of the single ones.

    MULTIPLY: within delta of it. LESS, MORE: certainly below or above it.
    """

    MULTIPLY = "multiply"
    LESS = "less"
    MORE = "more"
    UNDETERMINED = "undetermined"


@dataclass(frozen=True, kw_only=True, slots=True)
class Multiplied:
    """The comparison, with its verdict.

    Attributes:
        singles: gain of each stage's winner alone over the baseline; None where it has none.
        product: of the single gains; None where one of them is missing.
        joint: gain of all together over the baseline.
        ratio: joint over product, the interval of all sides in it.
    """

    singles: Mapping[str, Interval | None]
    product: Interval | None
    joint: Interval | None
    ratio: Interval | None
    verdict: Multiply
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Shared:
    """What visits share with their starts of the workers, as shares (`Point.start_frac`).

    It cancels between sides that run in the same workers.

    Attributes:
        baseline: of the baseline's visits.
        singles: of the winners alone that need other workers than the baseline.
        joint: of all winners together; None where they run in the baseline's workers.
    """

    baseline: float = 0.0
    singles: Mapping[str, float] = field(default_factory=dict)
    joint: float | None = None


SAME_WORKERS = Shared()


def shared_of(
    baseline: Point | None, singles: Mapping[str, Point | None], joint: Point | None
) -> Shared:
    """Returns what the sides share with starts of their workers."""
    if baseline is None:
        return SAME_WORKERS

    def of(point: Point | None) -> float | None:
        apart = point and change_cost(baseline.knobs, point.knobs) is ChangeCost.RESTART
        return point.start_frac if point and apart else None

    found = {name: of(point) for name, point in singles.items()}
    return Shared(
        baseline=baseline.start_frac,
        singles={name: frac for name, frac in found.items() if frac is not None},
        joint=of(joint),
    )


def multiplied(
    baseline: Interval,
    singles: Mapping[str, Interval | None],
    joint: Interval | None,
    delta: float,
    shared: Shared = SAME_WORKERS,
) -> Multiplied:
    """Returns whether the gains multiply.

    Args:
        baseline: its throughput, as the two others.
        singles: each stage's winner alone on the baseline; None where it could not be measured.
        joint: all winners together.
        delta: what counts as equal, as a share.
        shared: errors that count between sides of different workers alone.
    """
    started = widened(baseline, shared.baseline)
    own = {
        name: widened(rate, shared.singles.get(name, 0.0)) if rate else None
        for name, rate in singles.items()
    }
    gains = {
        name: ratio(rate, started if name in shared.singles else baseline) if rate else None
        for name, rate in own.items()
    }
    if joint is not None:
        joint = widened(joint, shared.joint or 0.0)
    apart = shared.joint is not None
    together = ratio(joint, started if apart else baseline) if joint else None
    missing = [name for name, gain in gains.items() if gain is None]
    if joint is None or missing or not gains:
        what = f"{' and '.join(missing)} alone" if missing else "all together"
        reason = f"{what} could not be measured" if gains else "no stage changed anything"
        return Multiplied(
            singles=gains,
            product=None,
            joint=together,
            ratio=None,
            verdict=Multiply.UNDETERMINED,
            reason=reason,
        )
    alone = [rate for rate in own.values() if rate is not None]
    value = math.prod(rate.value / baseline.value for rate in alone)
    spread = math.hypot(*(_log_half(rate) for rate in alone))
    extra = _log_half(baseline)
    # The baseline is in every single gain: its error counts as often, and once less in the ratio.
    # What it shares with its start cancels against every side in the same workers.
    start, num_apart = Z_95 * shared.baseline, len(shared.singles)
    product = _around(value, math.hypot(spread, len(alone) * extra, num_apart * start), alone)
    net = abs(num_apart - apart) * start
    whole = math.hypot(spread, _log_half(joint), (len(alone) - 1) * extra, net)
    found = _around(joint.value / baseline.value / value, whole, [*alone, joint])
    verdict, reason = _verdict(found, delta, len(alone))
    return Multiplied(
        singles=gains,
        product=product,
        joint=together,
        ratio=found,
        verdict=verdict,
        reason=reason,
    )


def _verdict(found: Interval, delta: float, num_stages: int) -> tuple[Multiply, str]:
    words = f"{found.value:.3f}x the product (95 %: {found.lo:.3f} to {found.hi:.3f})"
    if num_stages == 1:
        return Multiply.UNDETERMINED, "only one stage changed anything: nothing to multiply"
    if 1 - delta <= found.lo and found.hi <= 1 + delta:
        return Multiply.MULTIPLY, f"all together {words}, within {delta:.0%}"
    if found.hi < 1:
        return Multiply.LESS, f"all together {words}: the gains overlap"
    if found.lo > 1:
        return Multiply.MORE, f"all together {words}: the gains help each other"
    return Multiply.UNDETERMINED, f"all together {words}: too wide to tell"


def _log_half(rate: Interval) -> float:
    """Returns half the interval's width on the log scale, where ratios are differences."""
    if rate.lo <= 0 or not math.isfinite(rate.hi):
        return math.inf
    return math.log(rate.hi / rate.lo) / 2


def _around(value: float, half: float, sides: list[Interval]) -> Interval:
    return Interval(
        value=value,
        lo=value * math.exp(-half),
        hi=value * math.exp(half) if half < 700 else math.inf,
        num_steps=sum(side.num_steps for side in sides),
        num_visits=sum(side.num_visits for side in sides),
    )
