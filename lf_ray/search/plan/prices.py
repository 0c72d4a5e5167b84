"""What a visit costs in seconds, learnt from the visits so far: a change of knobs, then steps."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lf_ray.protocol import ChangeCost, Knobs, OutcomeKind, TrialRecord, change_cost

_CLASSES = ("restart", "reset", "prepare", "compile", "capture")
_STEPS = ("warmup", "measured")
_SHORT_VISIT_STEPS = 12
"""Steps of a visit that is raced or hardly more; what few visits have taken yet."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of visits from where the group stands now.

    Attributes:
        previous: knobs of the last request; None before the first.
        change_s: seconds of each class of change.
        samples_per_step: of one rank's sample a micro-batch, over all ranks.
    """

    previous: Knobs | None
    change_s: dict[ChangeCost, float]
    samples_per_step: float

    def price(self, knobs: Knobs) -> tuple[float, float]:
        """Returns the seconds until a visit's first step, and the samples that it takes."""
        samples = self.samples_per_step * _samples_per_rank(knobs)
        return self.change_s[change_cost(self.previous, knobs)], _SHORT_VISIT_STEPS * samples


def prices_of(records: Sequence[TrialRecord], previous: Knobs | None) -> Prices:
    """Returns prices by the medians of what changes have cost so far.

    A class that has not happened costs at least what the next cheaper one does, a restart what
    the first start took.
    """
    seen: dict[ChangeCost, list[float]] = {change: [] for change in ChangeCost}
    before: Knobs | None = None
    ranks = 1.0
    for record in records:
        costs_s = record.outcome.costs_s
        change = change_cost(before, record.request.knobs)
        if costs_s.get("restart", 0.0) > 0:
            change = ChangeCost.RESTART
        seen[change].append(sum(costs_s.get(name, 0.0) for name in _CLASSES))
        before = None if record.outcome.group_lost else record.request.knobs
        if record.outcome.kind is OutcomeKind.COMPLETED and record.samples_per_step:
            ranks = record.samples_per_step / _samples_per_rank(record.request.knobs)
    change_s: dict[ChangeCost, float] = {}
    cheapest_s = 0.0
    for change, costs in seen.items():
        cheapest_s = max(statistics.median(costs), cheapest_s) if costs else cheapest_s
        change_s[change] = cheapest_s
    return Prices(previous, change_s, ranks)


def _samples_per_rank(knobs: Knobs) -> float:
    return float(knobs["batch.per_gpu"]) * float(knobs["batch.accumulation"])
