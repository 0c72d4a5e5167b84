"""What a session is made of, as protocols, and the real parts.

The runtime knows the model by two methods and the data by three; tests hand in small ones. Faults
are injected here too: a part that misbehaves, never a patched private name.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from lf_ray.data.batches.skipped import Skipped
from lf_ray.protocol import KnobValue
from lf_ray.runtime.draws import Draws, step_draws
from lf_ray.runtime.update.collectives import Collective, collective_for
from lf_ray.settings import SweepConfig

Batch = dict[str, Tensor]
Features = Tensor | dict[str, Tensor]


class StepModel(Protocol):
    """A module that returns a loss in two parts: the frozen prefix, and the head that learns."""

    @property
    def prefix_fields(self) -> tuple[str, ...]:
        """Returns the batch fields that `prefix` reads."""
        ...

    @property
    def head_fields(self) -> tuple[str, ...]:
        """Returns the batch fields that `head_loss` reads."""
        ...

    def draw_shapes(self, batch_size: int) -> dict[str, tuple[int, ...]]:
        """Returns the shape of every draw that `head_loss` needs, by name."""
        ...

    def prefix(self, batch: Batch) -> Features:
        """Returns the features that the head starts from."""
        ...

    def head_loss(self, features: Features, batch: Batch, draws: Draws) -> Tensor:
        """Returns the scalar loss of one micro-batch."""
        ...


class Loader(Protocol):
    """Batches of one rank in an order that follows from (seed, epoch, rank, world size)."""

    @property
    def data_id(self) -> str:
        """Returns the content hash of what is trained on."""
        ...

    def next(self) -> tuple[Batch, float]:
        """Returns the next batch, on the host, and the seconds that were waited for it."""
        ...

    def seek(self, sample_index: int) -> None:
        """Makes the next batch start at this sample, counted over all ranks."""
        ...

    def set(
        self,
        workers: int | None = None,
        prefetch: int | None = None,
        *,
        cache: bool | None = None,
        decode_threads: int | None = None,
    ) -> None:
        """Changes who decodes, what is kept, and how many batches are ready; never their order."""
        ...

    def fill(self, deadline_s: float) -> bool:
        """Waits until frames are cached; returns whether they are, in time.

        While they are not, a timed step competes with what fills the cache.
        """
        ...

    def in_force(self) -> Mapping[str, KnobValue]:
        """Returns what feeds the step now, by name."""
        ...

    def take_skipped(self) -> Skipped:
        """Returns what the batches that were taken since the last call lack."""
        ...

    def news(self) -> list[str]:
        """Returns in words what went wrong since it was asked last, and was got over."""
        ...

    def close(self) -> None:
        """Ends its worker processes."""
        ...


class Parts:
    """The real parts: GR00T N1.6, the batch loader, the process group's collectives.

    Attributes:
        kernels: in a word, which kernels the model runs on; known once it is built.
    """

    def __init__(self) -> None:
        self.kernels = "plain"
        self._source: Any = None

    def model(self, config: SweepConfig, device: torch.device) -> Any:
        """Returns the model on its device: an nn.Module that is a `StepModel`."""
        from lf_ray.runtime.groot import active_slots, build_groot, fuse

        model = build_groot(config, active_slots(self._open(config), config.model), device)
        self.kernels = fuse(model, config.model)
        return model

    def loader(
        self, config: SweepConfig, rank: int, seed: int, batch_size: int, device: torch.device
    ) -> Loader:
        """Returns the rank's loader for micro-batches of `batch_size`."""
        from lf_ray.data.loader import BatchLoader

        return BatchLoader(
            config, rank, config.num_workers, seed, batch_size, device, self._open(config)
        )

    def collective(self, work_group: Any, device: torch.device) -> Collective:
        """Returns how slices of the flat buffers travel between the ranks."""
        return collective_for(work_group, device)

    def draws(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        generator: torch.Generator,
        seed: int,
        step: int,
        rank: int,
        micro_batch: int,
    ) -> Draws:
        """Returns the draws of a micro-batch."""
        return step_draws(shapes, generator, seed, step, rank, micro_batch)

    def _open(self, config: SweepConfig) -> Any:
        """Returns the opened data, one for all loaders of a session."""
        from lf_ray.data.loader import open_batch_source

        if self._source is None:
            self._source = open_batch_source(config)
        return self._source
