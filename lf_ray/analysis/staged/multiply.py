"""Do gains multiply? The product of single gains against the gain of all together.

Pure. Every side is measured in one block of interleaved visits around the same baseline, so that
the machine's mood hits all alike.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from lf_ray.measure.interval import ratio
from lf_ray.protocol import Interval


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


def multiplied(
    baseline: Interval,
    singles: Mapping[str, Interval | None],
    joint: Interval | None,
    delta: float,
) -> Multiplied:
    """Returns whether the gains multiply.

    Args:
        baseline: its throughput, as the two others.
        singles: each stage's winner alone on the baseline; None where it could not be measured.
        joint: all winners together.
        delta: what counts as equal, as a share.
    """
    gains = {name: ratio(rate, baseline) if rate else None for name, rate in singles.items()}
    together = ratio(joint, baseline) if joint else None
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
    alone = [rate for rate in singles.values() if rate is not None]
    value = math.prod(rate.value / baseline.value for rate in alone)
    spread = math.hypot(*(_log_half(rate) for rate in alone))
    extra = _log_half(baseline)
    # The baseline is in every single gain: its error counts as often, and once less in the ratio.
    product = _around(value, math.hypot(spread, len(alone) * extra), alone)
    whole = math.hypot(spread, _log_half(joint), (len(alone) - 1) * extra)
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
