"""One optimizer step on one rank: forward-backward, reduce, clip, update.

The same code runs eagerly and under capture: it reads its inputs from tensors, writes its results
into tensors, and never waits for the device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lf_ray.runtime.draws import Draws
from lf_ray.runtime.overlap import GradientReducer
from lf_ray.runtime.parts import Batch, Features
from lf_ray.runtime.steps.laps import Laps
from lf_ray.runtime.update.optimizer import StepOptimizer

Probe = Callable[[], None]


@dataclass(slots=True)
class StepInputs:
    """What a step reads, one item a micro-batch, on the device."""

    batches: list[Batch]
    draws: list[Draws]

    @property
    def num_micro_batches(self) -> int:
        """Returns how many micro-batches the step accumulates over."""
        return len(self.batches)


class TrainStep:
    """The pieces of a step, in the order in which they are called.

    Args:
        model: an nn.Module that is a `StepModel`.
        prefix_is_frozen: the prefix needs no backward.
        num_ranks: ranks that gradients are summed over.
    """

    def __init__(
        self,
        model: Any,
        reducer: GradientReducer,
        optimizer: StepOptimizer,
        *,
        prefix_is_frozen: bool,
        num_ranks: int,
    ) -> None:
        self.model = model
        self.reducer = reducer
        self.optimizer = optimizer
        self.prefix_is_frozen = prefix_is_frozen
        self.num_ranks = num_ranks
        self.loss = torch.zeros((), device=optimizer.grad_norm.device)

    def prefix(self, batches: list[Batch], laps: Laps) -> list[Features]:
        """Returns the features of every micro-batch."""
        with torch.set_grad_enabled(not self.prefix_is_frozen):
            features = [self.model.prefix(batch) for batch in batches]
        laps.lap("prefix")
        return features

    def forward_backward(
        self,
        features: list[Features],
        inputs: StepInputs,
        laps: Laps,
        after_micro_batch: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Computes the mean loss and collects gradients; the last micro-batch issues buckets."""
        self.loss.zero_()
        last = inputs.num_micro_batches - 1
        for index, (batch, draws) in enumerate(zip(inputs.batches, inputs.draws)):
            loss = self.model.head_loss(features[index], batch, draws)
            laps.lap("forward")
            self.reducer.expect(first=index == 0, last=index == last)
            loss.backward()
            self.reducer.end_micro_batch()
            after_micro_batch(index)
            self.loss.add_(loss.detach(), alpha=1 / inputs.num_micro_batches)
            laps.lap("backward")

    def reduce(self, laps: Laps) -> None:
        """Sends what is left and waits for all of it."""
        self.reducer.finish()
        laps.lap("exposed_comm")

    def update(self, num_micro_batches: int, laps: Laps, probe: Probe | None) -> None:
        """Clips and updates; `probe` looks at a gradient that the update is about to overwrite."""
        self.optimizer.clip(self.reducer.reduced_N, self.num_ranks * num_micro_batches)
        laps.lap("clip")
        if probe is not None and self.optimizer.overwrites_gradient:
            probe()
            laps.skip()
        self.optimizer.update(self.reducer.reduced_N)
        laps.lap("optimizer")
        self.optimizer.wait_for_shares()
        laps.lap("exposed_comm")


def requires_backward(features: Features) -> bool:
    """Returns whether anything that learns went into the features."""
    tensors = features.values() if isinstance(features, dict) else [features]
    return any(isinstance(tensor, Tensor) and tensor.requires_grad for tensor in tensors)
