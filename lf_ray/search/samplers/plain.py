"""Samplers that need no history: random order and grid order, and the choice among samplers."""

import itertools
import random
from collections.abc import Callable, Sequence

from lf_ray.protocol import Knobs, KnobValue
from lf_ray.search.plan.decisions import PriceOf, Proposer, Told, alike
from lf_ray.search.space import Space, point_key
from lf_ray.settings import SamplerKind

# Spaces up to this many points are listed; larger ones are drawn from.
MAX_LISTED = 3_000
MAX_DRAWS = 2_000

Allowed = Callable[[Knobs], bool]


class GridProposer:
    """Every point in the order of the literal."""

    def propose(
        self,
        space: Space,
        told: Sequence[Told],
        count: int,
        seed: int,
        allowed: Allowed,
        price: PriceOf = alike,
    ) -> list[dict[str, KnobValue]]:
        """Returns the next `count` points that were not tried."""
        found: list[dict[str, KnobValue]] = []
        for point in space.points():
            if len(found) == count:
                break
            if allowed(point):
                found.append(point)
        return found


class RandomProposer:
    """Points drawn evenly from those not tried."""

    def propose(
        self,
        space: Space,
        told: Sequence[Told],
        count: int,
        seed: int,
        allowed: Allowed,
        price: PriceOf = alike,
    ) -> list[dict[str, KnobValue]]:
        """Returns `count` different points; `seed` alone decides which."""
        rng = random.Random(seed)
        if space.num_points() <= MAX_LISTED:
            points = list(space.points())
            rng.shuffle(points)
            return list(itertools.islice(filter(allowed, points), count))
        found: dict[str, dict[str, KnobValue]] = {}
        for _ in range(MAX_DRAWS):
            if len(found) == count:
                break
            drawn = {name: rng.choice(values) for name, values in space.choices.items()}
            point = space.canonical(drawn)
            if allowed(point):
                found.setdefault(point_key(point), point)
        return list(found.values())


def proposer_of(kind: SamplerKind) -> Proposer:
    """Returns the sampler that the settings name."""
    if kind is SamplerKind.grid:
        return GridProposer()
    if kind is SamplerKind.random:
        return RandomProposer()
    from lf_ray.search.samplers.optuna_study import TpeProposer

    return TpeProposer()
