"""What every step reads: batches in the loader's order, on the device, with their draws.

The first steps' batches are held, so that the reference and each trial's first steps see the same
data without decoding it again.
"""

from dataclasses import dataclass
from typing import Any

import torch

from lf_ray.data.batches.skipped import NONE_SKIPPED, Skipped
from lf_ray.runtime.draws import Draws, step_seed
from lf_ray.runtime.parts import Batch, Loader, Parts
from lf_ray.runtime.steps.laps import Laps
from lf_ray.runtime.steps.train_step import StepInputs

_FILL_SHARE = 0.5
"""Share of the first batch's deadline that a visit waits for the frame cache."""


def cache_lag(loader: Loader, limit_s: float) -> str:
    """Waits for the frame cache; returns why a timed step can't be believed, "" where it can.

    What fills the cache takes cores and disk that the step is to be measured with.

    Args:
        loader: that fills it.
        limit_s: deadline of what comes before the first step.
    """
    wait_s = limit_s * _FILL_SHARE
    if loader.fill(wait_s):
        return ""
    return (
        f"the frame cache was still being filled after {wait_s:.0f} s; what is filled stays, so "
        "try again later, or set data.cache=false"
    )


@dataclass(frozen=True, slots=True)
class FeedKey:
    """What a feed's numbers follow from, rank aside."""

    seed: int
    batch_size: int
    accumulation: int


@dataclass(frozen=True, slots=True)
class HostInputs:
    """Batches of one step on the host, one a micro-batch."""

    step: int
    batches: list[Batch]
    wait_s: float


class Feed:
    """The inputs of one rank's steps.

    Args:
        key: seed and batch shape.
        loader: of this rank, for this seed and batch size.
        parts: where draws come from.
        model: says which draws it needs.
        place: rank and number of ranks.
        num_held: steps whose batches are kept.
    """

    def __init__(
        self,
        key: FeedKey,
        loader: Loader,
        parts: Parts,
        model: Any,
        *,
        place: tuple[int, int],
        device: torch.device,
        num_held: int,
    ) -> None:
        self.key = key
        self.loader = loader
        self._parts = parts
        self._draw_shapes = model.draw_shapes(key.batch_size)
        self._rank, num_ranks = place
        self._samples_per_step = key.batch_size * key.accumulation * num_ranks
        self._device = device
        self._generator = torch.Generator(device)
        self._num_held = num_held
        self._held: list[list[Batch]] = []
        self._skipped: dict[int, Skipped] = {}
        self._loader_step = -1

    @property
    def held_tensors(self) -> list[torch.Tensor]:
        """Returns the batches that are kept, tensor by tensor."""
        return [item for batches in self._held for batch in batches for item in batch.values()]

    def rewind(self) -> None:
        """Goes back to the first step; the loader may start on what follows the held ones."""
        self._seek(len(self._held))

    def next(self, step: int, laps: Laps) -> tuple[StepInputs, float]:
        """Returns the inputs of a step and the seconds that were waited for its data."""
        inputs = self.on_host(step)
        laps.lap("data_wait")
        on_device = [
            {name: tensor.to(self._device, non_blocking=True) for name, tensor in batch.items()}
            for batch in inputs.batches
        ]
        draws = self.draws(step)
        laps.lap("host_to_device")
        return StepInputs(on_device, draws), inputs.wait_s

    def on_host(self, step: int) -> HostInputs:
        """Returns the batches of a step as the loader gives them."""
        if step < len(self._held):
            return HostInputs(step, self._held[step], 0.0)
        self._seek(step)
        batches, waited_s = [], 0.0
        for _ in range(self.key.accumulation):
            batch, wait_s = self.loader.next()
            batches.append(batch)
            waited_s += wait_s
        self._loader_step += 1
        skipped = self.loader.take_skipped()
        if skipped.num_samples:
            self._skipped[step] = skipped
        if step < self._num_held:
            self._held.append(batches)
        return HostInputs(step, batches, waited_s)

    def skipped(self, step: int) -> Skipped:
        """Returns what the batches of a step lack; every visit of the step meets the same."""
        return self._skipped.get(step, NONE_SKIPPED)

    def draws(self, step: int) -> list[Draws]:
        """Returns the draws of a step's micro-batches, on the device."""
        return [
            self._parts.draws(
                self._draw_shapes, self._generator, self.key.seed, step, self._rank, micro_batch
            )
            for micro_batch in range(self.key.accumulation)
        ]

    def dropout_seed(self, step: int) -> int:
        """Returns what the model's dropout generator is set to before a step."""
        return step_seed("dropout", self.key.seed, step, self._rank)

    def close(self) -> None:
        """Ends the loader and lets go of the held batches."""
        self.loader.close()
        self._held.clear()

    def _seek(self, step: int) -> None:
        if self._loader_step != step:
            self.loader.seek(step * self._samples_per_step)
            self._loader_step = step
