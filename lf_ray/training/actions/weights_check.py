"""Whether loaded weights know the data: their loss on one batch beside that of random ones."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lf_ray.data.loader import BatchLoader
from lf_ray.runtime.draws import step_draws
from lf_ray.runtime.groot import active_slots, build_groot
from lf_ray.settings import SweepConfig

# A checkpoint that was trained on its embodiment stands at 0.05 to 0.5 of a random one's loss.
CLEARLY_BELOW = 0.7
_BATCH = 8
_NUM_DRAWS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightsCheck:
    """Losses on the same batch and draws.

    Attributes:
        zero: of a model that predicts no velocity at all.
        suspects: what to look at, most likely first; empty where the weights know the data.
    """

    loaded: float
    random: float
    zero: float
    suspects: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Returns the verdict in words."""
        said = (
            f"loss {self.loaded:.4g}, x{self.loaded / self.random:.2f} of random weights' "
            f"{self.random:.4g} (no velocity at all: {self.zero:.4g}; "
            f"one batch of {_BATCH}, {_NUM_DRAWS} draws)"
        )
        if not self.suspects:
            return f"The weights know this data: {said}."
        return (
            f"The weights are no better than random ones on this data: {said}. "
            f"Suspects: {'; '.join(self.suspects)}."
        )


def weights_check(config: SweepConfig) -> WeightsCheck:
    """Returns the losses of `model.weights` and of random weights on one batch.

    Raises:
        CheckpointError: the weights can't be loaded.
        DataError: the data can't be trained on.
    """
    device = torch.device(config.cluster.device)
    config = replace(config, cluster=replace(config.cluster, workers=1))
    with BatchLoader(config, 0, 1, config.sweep.seed, _BATCH, device) as loader:
        batch, _ = loader.next()
        slots = active_slots(loader.source, config.model)
    batch = {name: tensor.to(device) for name, tensor in batch.items() if name != "augment_BD"}
    unloaded = replace(config, model=replace(config.model, weights=None))
    random, zero = _losses(build_groot(unloaded, slots, device), batch, config.sweep.seed)
    loaded, _ = _losses(build_groot(config, slots, device), batch, config.sweep.seed)
    is_better = loaded < CLEARLY_BELOW * min(random, zero)
    return WeightsCheck(
        loaded=loaded,
        random=random,
        zero=zero,
        suspects=() if is_better else suspects(config, slots),
    )


def suspects(config: SweepConfig, slots: list[int]) -> tuple[str, ...]:
    """Returns what most often keeps good weights from knowing data."""
    found = [
        f"embodiment: the data acts in slot {', '.join(map(str, slots))}, which the checkpoint may "
        "not have been trained for (data.embodiment)",
        "modality and statistics: order, scaling or meaning of state and action (data.modality)",
        f"image size: model.image_px={config.model.image_px}, the public checkpoint's is 252",
        f"prompt: model.tokenizer={config.model.tokenizer}, the task texts",
    ]
    if config.data.source != "lerobot":
        found.insert(0, f"data={config.data.source} is not the data that it was trained on")
    return tuple(found)


@torch.no_grad()
def _losses(model: Any, batch: Mapping[str, Tensor], seed: int) -> tuple[float, float]:
    """Returns the model's mean loss over some draws, and that of predicting no velocity."""
    model.eval()
    device = batch["action_BTA"].device
    generator = torch.Generator(device)
    features = model.prefix(batch)
    own, zero = [], []
    for number in range(_NUM_DRAWS):
        draws = step_draws(model.draw_shapes(_BATCH), generator, seed, number, 0)
        own.append(float(model.head_loss(features, batch, draws)))
        zero.append(zero_velocity_loss(batch, draws["noise_BTA"]))
    return sum(own) / len(own), sum(zero) / len(zero)


def zero_velocity_loss(batch: Mapping[str, Tensor], noise_BTA: Tensor) -> float:
    """Returns the flow-matching loss of a model that always answers zero."""
    mask_BTA = batch["action_mask_BTA"]
    target_BTA = (batch["action_BTA"] - noise_BTA) * mask_BTA
    return float(target_BTA.square().sum() / mask_BTA.sum())
