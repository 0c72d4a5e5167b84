"""In which order a step's pieces run: plain, or with the next batch's prefix beside the update.

Both give the same numbers, because no update touches the prefix.
"""

from typing import Protocol

import torch

from lf_ray.runtime.parts import Features
from lf_ray.runtime.steps.feed import Feed
from lf_ray.runtime.steps.laps import Laps, NoLaps
from lf_ray.runtime.steps.train_step import Probe, StepInputs, TrainStep


class StepOrder(Protocol):
    """Runs whole steps, one after the other, from the first one on."""

    def run(self, step: int, laps: Laps, probe: Probe | None) -> float:
        """Runs a step and returns the seconds that it waited for data."""
        ...


class PlainOrder:
    """Batch, prefix, head, backward, reduce, update; then the next batch."""

    def __init__(self, train_step: TrainStep, feed: Feed, dropout: torch.Generator) -> None:
        self._step, self._feed, self._dropout = train_step, feed, dropout

    def run(self, step: int, laps: Laps, probe: Probe | None) -> float:
        """Runs a step and returns the seconds that it waited for data."""
        inputs, wait_s = self._feed.next(step, laps)
        self._dropout.manual_seed(self._feed.dropout_seed(step))
        features = self._step.prefix(inputs.batches, laps)
        self._step.forward_backward(features, inputs, laps)
        self._step.reduce(laps)
        self._step.update(inputs.num_micro_batches, laps, probe)
        return wait_s


class PipelinedOrder:
    """Head of this batch, then reduce, clip and update beside the prefix of the next one.

    Here the two run one after the other; a captured step runs them on two streams. Data is one
    batch further ahead.
    """

    def __init__(self, train_step: TrainStep, feed: Feed, dropout: torch.Generator) -> None:
        self._step, self._feed, self._dropout = train_step, feed, dropout
        self._ahead: tuple[int, StepInputs, list[Features]] | None = None

    def run(self, step: int, laps: Laps, probe: Probe | None) -> float:
        """Runs a step and returns the seconds that it waited for data."""
        inputs, features, wait_s = self._from_last(step)
        following, next_wait_s = self._feed.next(step + 1, laps)
        self._dropout.manual_seed(self._feed.dropout_seed(step))
        self._step.forward_backward(features, inputs, laps)
        self._step.reduce(laps)
        self._step.update(inputs.num_micro_batches, laps, probe)
        self._ahead = (step + 1, following, self._step.prefix(following.batches, laps))
        return wait_s + next_wait_s

    def _from_last(self, step: int) -> tuple[StepInputs, list[Features], float]:
        if self._ahead is not None and self._ahead[0] == step:
            return self._ahead[1], self._ahead[2], 0.0
        inputs, wait_s = self._feed.next(step, NoLaps())
        return inputs, self._step.prefix(inputs.batches, NoLaps()), wait_s
