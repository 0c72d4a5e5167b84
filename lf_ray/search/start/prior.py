"""What a simulated cluster like the real one would choose: a first suggestion, never a reading.

Only where there is a profile for the GPUs; where the sweep itself runs on a simulated cluster it
would be told its own answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lf_ray.protocol import Knobs, KnobValue
from lf_ray.search.plan.boundary import gradient_bytes
from lf_ray.search.space import Space
from lf_ray.settings import SweepConfig
from lf_ray.testing.sim.cluster import Truth
from lf_ray.testing.sim.profiles import GIB, PROFILES

_PROFILE_OF = {"H200": "sim_8xh200", "A100": "sim_8xa100"}
_MAX_SWEEPS = 4


@dataclass(frozen=True, slots=True)
class Prior:
    """A suggestion and where it comes from.

    Attributes:
        knobs: those varied, at values of the space.
        words: one line for people.
    """

    knobs: Knobs
    words: str


def prior_of(config: SweepConfig, space: Space, gpus: Sequence[str]) -> Prior | None:
    """Returns the point that a simulated cluster of these GPUs finds best; None without a profile.

    `sweep.suggest` says whether to ask: None asks on real GPUs only.
    """
    simulated = config.cluster.kind.startswith("sim_")
    wanted = config.sweep.suggest
    if wanted is False or simulated or config.cluster.device != "cuda" or not space.choices:
        return None
    name = next((found for word, found in _PROFILE_OF.items() if any(word in g for g in gpus)), "")
    if not name:
        return None
    profile = replace(PROFILES[name], num_ranks=config.num_workers)
    if config.memory.limit_gb is not None:
        capacity = min(profile.memory.capacity, config.memory.limit_gb * GIB)
        profile = replace(profile, memory=replace(profile.memory, capacity=capacity))
    truth = Truth(profile)
    sent = gradient_bytes(profile.workload.gradients, space.baseline["overlap.comm_dtype"])
    best = _climbed(truth, space.resolved(sent))
    knobs = {knob: best[knob] for knob in space.choices}
    words = ", ".join(f"{knob}={value}" for knob, value in knobs.items())
    return Prior(
        knobs, f"suggested by {name} with {config.num_workers} ranks (simulated, not read): {words}"
    )


def _climbed(truth: Truth, space: Space) -> dict[str, KnobValue]:
    """Returns the best point that one knob after the other, or two at once, leads to."""
    best = space.canonical({})
    rate = truth.samples_per_s(best)
    for _ in range(_MAX_SWEEPS):
        before = rate
        for knob, values in space.choices.items():
            for value in values:
                point = space.canonical({**best, knob: value})
                for relieved in _relieved(truth, space, point):
                    found = truth.samples_per_s(relieved)
                    if found > rate:
                        best, rate = relieved, found
        if rate <= before:
            break
    return best


def _relieved(
    truth: Truth, space: Space, point: dict[str, KnobValue]
) -> list[dict[str, KnobValue]]:
    """Returns the point, and where it does not fit, what might make room for it."""
    if truth.samples_per_s(point) > 0:
        return [point]
    changes = [
        (knob, value)
        for knob in ("memory.backend", "pipeline.prefix", "graph.scope")
        for value in space.choices.get(knob, ())
    ]
    return [space.canonical({**point, knob: value}) for knob, value in changes]
