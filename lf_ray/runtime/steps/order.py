"""How one step follows the other: eagerly from fresh inputs, or through a captured one.

Both give the same numbers; so does the pipelined order, because no update touches the prefix.
"""

from typing import Protocol

import torch

from lf_ray.runtime.steps.feed import Feed, HostInputs
from lf_ray.runtime.steps.laps import Laps
from lf_ray.runtime.steps.step_graph import StepGraph
from lf_ray.runtime.steps.train_step import Probe, TrainStep


class StepOrder(Protocol):
    """Runs whole steps, one after the other."""

    def run(self, step: int, laps: Laps, probe: Probe | None) -> float:
        """Runs a step and returns the seconds that it waited for data.

        `probe` looks at the reduced gradient where the update will overwrite it.
        """
        ...

    def phases_s(self) -> dict[str, float]:
        """Returns phases of the last step that laps could not see."""
        ...

    def release(self) -> None:
        """Frees what is captured."""
        ...


class EagerOrder:
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

    def phases_s(self) -> dict[str, float]:
        """Returns nothing: laps saw everything."""
        return {}

    def release(self) -> None:
        """Holds nothing."""


class StaticOrder:
    """Copies each step's inputs to fixed addresses and plays the step from there.

    Pipelined, data is one batch ahead: a step's head works on its batch, its prefix on the next.
    """

    def __init__(
        self, graph: StepGraph, train_step: TrainStep, feed: Feed, dropout: torch.Generator
    ) -> None:
        self._graph, self._step = graph, train_step
        self._feed, self._dropout = feed, dropout
        self._ahead: HostInputs | None = None

    def run(self, step: int, laps: Laps, probe: Probe | None) -> float:
        """Runs a step and returns the seconds that it waited for data."""
        waited_s = self._fill(step, laps)
        self._dropout.manual_seed(self._feed.dropout_seed(step))
        self._graph.play(laps, probe)
        if not self._graph.with_update:
            self._step.update(self._feed.key.accumulation, laps, probe)
        return waited_s

    def phases_s(self) -> dict[str, float]:
        """Returns the phases inside the graph at its last replay."""
        return self._graph.phases_s()

    def release(self) -> None:
        """Frees the graph."""
        self._graph.release()
        self._ahead = None

    def _fill(self, step: int, laps: Laps) -> float:
        if not self._graph.pipelined:
            inputs = self._feed.on_host(step)
            laps.lap("data_wait")
            self._graph.set_prefix(inputs.batches)
            self._graph.set_head(inputs.batches, self._feed.draws(step))
            laps.lap("host_to_device")
            return inputs.wait_s
        waited_s = 0.0
        if self._ahead is None or self._ahead.step != step:
            self._ahead = self._feed.on_host(step)
            waited_s = self._ahead.wait_s
            self._graph.leave_features(self._ahead.batches)
        following = self._feed.on_host(step + 1)
        laps.lap("data_wait")
        self._graph.set_head(self._ahead.batches, self._feed.draws(step))
        self._graph.set_prefix(following.batches)
        laps.lap("host_to_device")
        self._ahead = following
        return waited_s + following.wait_s
