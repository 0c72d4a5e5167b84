"""The points around a point: one knob changed, or two at once."""

import itertools
import random
from collections.abc import Iterator, Sequence

from lf_ray.protocol import Knobs, KnobValue
from lf_ray.search.space import Space

MAX_PAIRS = 150


def neighbours(space: Space, centres: Sequence[Knobs], seed: int) -> Iterator[dict[str, KnobValue]]:
    """Yields canonical points one and two knobs away; of the pairs a share where there are many.

    A pair is what a single step can't do: a larger batch that needs another allocator.
    """
    rng = random.Random(seed)
    for centre in centres:
        changes = [
            (name, value)
            for name, values in space.choices.items()
            for value in values
            if value != centre[name]
        ]
        for name, value in changes:
            yield space.canonical({**centre, name: value})
        pairs = [two for two in itertools.combinations(changes, 2) if two[0][0] != two[1][0]]
        for two in rng.sample(pairs, min(MAX_PAIRS, len(pairs))):
            yield space.canonical({**centre, **dict(two)})
