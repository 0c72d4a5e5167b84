"""How likely a point is to fit in memory, from what fitted, what did not, and how full it was.

Never certain but for what is dominated: a point that ran out of memory rules out all that need
more; one that ran makes room for all that need less.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lf_ray.protocol import Knobs, OutcomeKind
from lf_ray.search.plan.boundary import demand, dominated, memory_key, same_allocator
from lf_ray.search.plan.decisions import Told

Floats = NDArray[np.float64]

_HARDLY_LARGER = 0.95
_RELIEF = 0.6
"""Chance that another allocator makes room for what did not fit, beside what its fill says."""
_FILL_ERROR = 0.02
_EXTRAPOLATION_ERROR = 0.04


def fit_probs(told: Sequence[Told], candidates: Sequence[Knobs]) -> Floats:
    """Returns each candidate's probability to fit."""
    ran = [item for item in told if item.kind is OutcomeKind.COMPLETED]
    lost = [item for item in told if item.kind is OutcomeKind.INFEASIBLE]
    known: dict[tuple[object, ...], float] = {}
    for knobs in candidates:
        need = memory_key(knobs)
        if need not in known:
            known[need] = _fit_prob(knobs, ran, lost)
    return np.array([known[memory_key(knobs)] for knobs in candidates])


def _fit_prob(knobs: Knobs, ran: Sequence[Told], lost: Sequence[Told]) -> float:
    if any(dominated(knobs, item.knobs, item.error_kind) for item in lost):
        return 0.0
    own = [item for item in ran if same_allocator(item.knobs, knobs)]
    if any(dominated(item.knobs, knobs, "oom") for item in own):
        return 1.0
    prob = _by_fill(demand(knobs), own, reserved=True) if own else 1.0
    if not own and ran:
        # What tensors need is the same whoever hands it out; how much is lost beside is not known.
        prob = _by_fill(demand(knobs), ran, reserved=False)
    if any(_larger_elsewhere(knobs, item) for item in lost):
        prob *= _RELIEF
    return prob


def _larger_elsewhere(knobs: Knobs, item: Told) -> bool:
    """Returns whether the point needs at least what did not fit with another allocator."""
    moved = {**knobs, **{n: v for n, v in item.knobs.items() if n.startswith("memory.")}}
    return dominated(moved, item.knobs, item.error_kind)


def _by_fill(wanted: float, ran: Sequence[Told], *, reserved: bool) -> float:
    """Returns the chance that `wanted` samples at once fit beside what is known of others.

    With two different batches the fill is a straight line; with one, between a tenth and all of
    what was held grows with the batch, as likely as not.
    """
    largest = max(ran, key=lambda item: demand(item.knobs))
    most = demand(largest.knobs)
    if wanted <= most:
        return _HARDLY_LARGER
    known = [
        (demand(item.knobs), fill)
        for item in ran
        if (fill := item.reserved_frac if reserved else item.peak_frac) is not None
    ]
    if not known:
        return most / wanted
    batches, fills = (np.array(column) for column in zip(*known))
    ratio = wanted / most
    if len(set(batches)) > 1:
        slope, fixed = np.polyfit(batches, fills, 1)
        error = _FILL_ERROR + _EXTRAPOLATION_ERROR * (ratio - 1)
        return _normal((1 - fixed - slope * wanted) / error)
    room = 1 / float(fills.max()) - 1
    return float(np.clip(room / (ratio - 1), 0.0, 1.0))


def _normal(score: float) -> float:
    return 0.5 * (1 + math.erf(score / math.sqrt(2)))
