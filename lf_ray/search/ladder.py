"""Ladders of values: which steps a knob's domain has, and which of them are tried first.

A ladder whose ends depend on the model is a rule until the baseline has told what is sent.
"""

import itertools
import math
from dataclasses import dataclass

from lf_ray.protocol import KnobValue

MIB = 2**20
_PLAIN_DDP_MIB = 25.0
_SMALLEST_MIB = 1 / 64
_MOST_BUCKETS = 256
_LARGE_BATCH = 16


@dataclass(frozen=True)
class BucketLadder:
    """Bucket sizes in MiB as sent: powers of two plus 25, within [max(1/64, G/256), G]."""

    rule: str = "powers of two plus 25 MiB within [max(1/64, G/256), G]"

    def values(self, gradient_bytes: int) -> tuple[float, ...]:
        """Returns the ladder for `gradient_bytes` of gradients a step."""
        top_mib = gradient_bytes / MIB
        bottom_mib = max(_SMALLEST_MIB, top_mib / _MOST_BUCKETS)
        exponents = range(math.ceil(math.log2(bottom_mib)), math.floor(math.log2(top_mib)) + 1)
        steps = {2.0**exponent for exponent in exponents}
        if bottom_mib <= _PLAIN_DDP_MIB <= top_mib:
            steps.add(_PLAIN_DDP_MIB)
        return tuple(sorted(steps)) or (top_mib,)


@dataclass(frozen=True)
class BatchLadder:
    """Batches around the baseline's: powers of two and the halves between.

    From a quarter of it to four times it; to twice it where it is small, as on a CPU, whose time
    grows with every sample.
    """

    def values(self, baseline: int) -> list[int]:
        """Returns the ladder around a baseline, its own value among them."""
        most = 4 if baseline >= _LARGE_BATCH else 2
        return sorted({*batch_ladder(max(1, baseline // 4), most * baseline), baseline})


def bucket_ladder() -> BucketLadder:
    """Returns the bucket sizes that fit the model, resolved once the baseline has run."""
    return BucketLadder()


def batch_ladder(smallest: int, largest: int) -> list[int]:
    """Returns powers of two and the halves between them, from `smallest` to `largest`."""
    powers = itertools.takewhile(lambda step: step <= largest, (2**n for n in itertools.count()))
    steps = {value for power in powers for value in (power, power + power // 2)}
    return sorted(step for step in steps if smallest <= step <= largest)


def coarse(values: tuple[KnobValue, ...], keep: set[KnobValue], most: int) -> list[KnobValue]:
    """Returns at most `most` values spread over the ladder: both ends, and `keep` in any case."""
    if len(values) <= most:
        return list(values)
    chosen = {values[0], values[-1], *(value for value in values if value in keep)}
    wanted = max(2, most)
    spread = [values[round(i * (len(values) - 1) / (wanted - 1))] for i in range(wanted)]
    for value in spread:
        # A neighbour of a value that is kept anyway tells little.
        near = any(abs(values.index(value) - values.index(other)) <= 1 for other in chosen)
        if len(chosen) < most and value not in chosen and not near:
            chosen.add(value)
    for value in spread:
        if len(chosen) < most:
            chosen.add(value)
    return [value for value in values if value in chosen]
