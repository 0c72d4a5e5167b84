"""A small model, loader and parts with the runtime's seams, for tests of the runtime and trials.

Letters: B batch, W width.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lf_ray.data.batches.skipped import NONE_SKIPPED, Skipped
from lf_ray.protocol import KnobValue, Purpose, TrialRequest
from lf_ray.runtime.draws import Draws
from lf_ray.runtime.parts import Batch, Loader, Parts
from lf_ray.settings import SweepConfig, knobs_of


class ToyBlock(nn.Module):
    """A residual block whose dropout draws from the model's generator."""

    def __init__(self, width: int, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x_BW: Tensor, generator: torch.Generator | None) -> Tensor:
        """Returns the block's output."""
        hidden = self.up(x_BW).tanh()
        keep = torch.rand(hidden.shape, device=hidden.device, generator=generator) >= self.drop_prob
        out: Tensor = x_BW + self.down(hidden * keep)
        return out


class ToyModel(nn.Module):
    """Frozen prefix, residual blocks, and a parameter that never receives a gradient."""

    prefix_fields = ("x_BW",)
    head_fields = ("y_BW",)

    def __init__(
        self,
        width: int = 24,
        num_blocks: int = 4,
        *,
        frozen_prefix: bool = True,
        drop_prob: float = 0.1,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.width = width
        self.frozen = nn.Linear(width, width).requires_grad_(not frozen_prefix)
        self.blocks = nn.ModuleList([ToyBlock(width, drop_prob) for _ in range(num_blocks)])
        self.out = nn.Linear(width, width)
        self.unused = nn.Parameter(torch.zeros(width))
        self.generator: torch.Generator | None = None

    def set_generator(self, generator: torch.Generator | None) -> None:
        """Sets where dropout draws from."""
        self.generator = generator

    def draw_shapes(self, batch_size: int) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the random inputs."""
        return {"noise_BW": (batch_size, self.width), "time_B": (batch_size,)}

    def prefix(self, batch: Batch) -> Tensor:
        """Returns the features."""
        features: Tensor = self.frozen(batch["x_BW"]).relu()
        return features

    def head_loss(self, features: Tensor, batch: Batch, draws: Draws) -> Tensor:
        """Returns the mean squared error from a noisy start."""
        x_BW = features + draws["time_B"][:, None] * draws["noise_BW"]
        for block in self.blocks:
            x_BW = block(x_BW, self.generator)
        loss: Tensor = (self.out(x_BW) - batch["y_BW"]).square().mean()
        return loss


class ToyLoader:
    """Random batches that follow from the seed and the sample's place in the order."""

    def __init__(self, rank: int, num_ranks: int, seed: int, batch_size: int, width: int) -> None:
        self.data_id = "toy"
        self.settings: dict[str, KnobValue | None] = {}
        self.fills = True
        self.is_closed = False
        self._rank, self._num_ranks = rank, num_ranks
        self._seed, self._batch_size, self._width = seed, batch_size, width
        self._position = 0

    def next(self) -> tuple[Batch, float]:
        """Returns the next batch."""
        first = self._position + self._rank * self._batch_size
        self._position += self._num_ranks * self._batch_size
        rows = [self._sample(first + index) for index in range(self._batch_size)]
        x_BW, y_BW = torch.stack(rows).chunk(2, dim=1)
        return {"x_BW": x_BW, "y_BW": y_BW}, 0.0

    def news(self) -> list[str]:
        """Returns nothing: nothing can go wrong here."""
        return []

    def seek(self, sample_index: int) -> None:
        """Goes to a sample, counted over all ranks."""
        self._position = sample_index

    def set(
        self,
        workers: int | None = None,
        prefetch: int | None = None,
        *,
        cache: bool | None = None,
        decode_threads: int | None = None,
    ) -> None:
        """Notes the settings."""
        self.settings = {
            "workers": workers,
            "prefetch": prefetch,
            "cache": cache,
            "decode_threads": decode_threads,
        }

    def fill(self, deadline_s: float) -> bool:
        """Returns at once what `fills` says."""
        return self.fills

    def in_force(self) -> dict[str, KnobValue]:
        """Returns that there is no frame to decode."""
        return {"data_cache": "no_frames"}

    def take_skipped(self) -> Skipped:
        """Returns that every sample could be had."""
        return NONE_SKIPPED

    def close(self) -> None:
        """Notes the end."""
        self.is_closed = True

    def _sample(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
        return torch.randn(2 * self._width, generator=generator)


class ToyParts(Parts):
    """Toy model and loader over the real process group."""

    def __init__(self, *, width: int = 24, num_blocks: int = 4, frozen_prefix: bool = True) -> None:
        super().__init__()
        self._width, self._num_blocks = width, num_blocks
        self._frozen_prefix = frozen_prefix

    def model(self, config: SweepConfig, device: torch.device) -> Any:
        """Returns the toy model."""
        model = ToyModel(self._width, self._num_blocks, frozen_prefix=self._frozen_prefix)
        return model.to(device)

    def loader(
        self, config: SweepConfig, rank: int, seed: int, batch_size: int, device: torch.device
    ) -> Loader:
        """Returns the toy loader."""
        return ToyLoader(rank, config.num_workers, seed, batch_size, self._width)


def toy_config(num_ranks: int) -> SweepConfig:
    """Returns settings for a group of toy workers, at a rate at which steps differ visibly."""
    config = SweepConfig()
    config.cluster.workers = num_ranks
    config.train.lr = 1e-2
    config.train.warmup_ratio = 0.0
    return config


def toy_request(
    config: SweepConfig,
    knobs: Mapping[str, KnobValue] | None = None,
    *,
    seed: int = 0,
    name: str = "t000",
) -> TrialRequest:
    """Returns a request for the settings' own knobs with some of them changed."""
    return TrialRequest(
        id=name, knobs={**knobs_of(config), **(knobs or {})}, seed=seed, purpose=Purpose.SEARCH
    )
