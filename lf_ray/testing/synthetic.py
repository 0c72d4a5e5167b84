"""GR00T N1.6 on batches made in memory, without the data package: for GPU tests and benchmarks."""

import dataclasses
from typing import Any

import torch

from lf_ray.data.batches.skipped import NONE_SKIPPED, Skipped
from lf_ray.protocol import KnobValue
from lf_ray.runtime.groot import build_groot, fuse, sized
from lf_ray.runtime.parts import Batch, Loader, Parts
from lf_ray.settings import SweepConfig
from models.groot_n1_6.batch import BatchShape, synthetic_batch
from models.groot_n1_6.config import GrootConfig

_NUM_BATCHES = 4
_NUM_COLUMNS = 220


class SyntheticLoader:
    """A few pinned batches, again and again; which one follows from the position."""

    def __init__(
        self, groot: GrootConfig, shape: BatchShape, rank: int, seed: int, *, pinned: bool
    ) -> None:
        self.data_id = "synthetic"
        self._rank, self._samples_per_batch = rank, shape.batch_size
        self._batches = [
            {name: item.pin_memory() if pinned else item for name, item in made.items()}
            for number in range(_NUM_BATCHES)
            for made in [synthetic_batch(groot, shape, seed=seed * 1009 + 64 * number + rank)]
        ]
        self._next = 0
        self.num_ranks = 1

    def next(self) -> tuple[Batch, float]:
        """Returns the next batch at once."""
        batch = self._batches[self._next % _NUM_BATCHES]
        self._next += 1
        return batch, 0.0

    def news(self) -> list[str]:
        """Returns nothing: nothing can go wrong here."""
        return []

    def seek(self, sample_index: int) -> None:
        """Goes to the batch that starts at this sample, counted over all ranks."""
        self._next = sample_index // (self._samples_per_batch * self.num_ranks)

    def set(
        self,
        workers: int | None = None,
        prefetch: int | None = None,
        *,
        cache: bool | None = None,
        decode_threads: int | None = None,
    ) -> None:
        """Has nothing to set."""

    def fill(self, deadline_s: float) -> bool:
        """Returns at once."""
        return True

    def in_force(self) -> dict[str, KnobValue]:
        """Returns that there is no frame to decode."""
        return {"data_cache": "no_frames"}

    def take_skipped(self) -> Skipped:
        """Returns that every sample could be had."""
        return NONE_SKIPPED

    def close(self) -> None:
        """Has nothing to end."""


class SyntheticParts(Parts):
    """The real model; two views of `frame_px` and prompts up to 220 columns at public size.

    Args:
        frame_px: side of the square frames; None takes the model's own.
        fused: run it on fused kernels, as the settings say.
    """

    def __init__(self, frame_px: int | None = None, *, fused: bool = False) -> None:
        super().__init__()
        self._frame_px, self._fused = frame_px, fused

    def model(self, config: SweepConfig, device: torch.device) -> Any:
        """Returns the model with its first embodiment active."""
        model = build_groot(config, [sized(config.model).slots[0][1]], device)
        if self._fused:
            self.kernels = fuse(model, config.model)
        return model

    def loader(
        self, config: SweepConfig, rank: int, seed: int, batch_size: int, device: torch.device
    ) -> Loader:
        """Returns the synthetic loader."""
        groot = sized(config.model)
        edge_px = self._frame_px or groot.shortest_edge_px
        shape = BatchShape(
            batch_size=batch_size, frame_height=edge_px, frame_width=edge_px, num_text=24
        )
        if groot.size == "3b":
            num_text = _NUM_COLUMNS - shape.num_image(groot)
            shape = dataclasses.replace(shape, num_text=num_text)
        loader = SyntheticLoader(groot, shape, rank, seed, pinned=device.type == "cuda")
        loader.num_ranks = config.num_workers
        return loader
