"""Binds the runtime to GR00T N1.6: settings to model, data to active embodiment slots."""

from typing import Any

import torch

from lf_ray.data.batches.sizes import groot_config
from lf_ray.data.batches.training_set import BatchSource, TrainingSet
from lf_ray.settings import ModelSettings, SweepConfig
from models.groot_n1_6.config import TuneFlags
from models.groot_n1_6.model import GrootN16, build


def build_groot(config: SweepConfig, source: BatchSource, device: torch.device) -> GrootN16:
    """Returns the model with the data's embodiments active; weights are the same on all ranks."""
    groot = groot_config(config.model)
    model = build(groot, tune=tune_flags(config.model), device=device, seed=config.sweep.seed)
    model.activate_embodiments(active_slots(source, groot))
    return model


def tune_flags(settings: ModelSettings) -> TuneFlags:
    """Returns which parts learn."""
    return TuneFlags(
        tune_llm=settings.tune_llm,
        tune_visual=settings.tune_visual,
        tune_top_llm_layers=settings.tune_top_llm_layers,
        tune_projector=settings.tune_projector,
        tune_diffusion_model=settings.tune_diffusion_model,
        tune_vlln=settings.tune_vlln,
    )


def active_slots(source: BatchSource, groot: Any) -> list[int]:
    """Returns the embodiment slots that occur in the data."""
    if isinstance(source, TrainingSet):
        return sorted({part.embodiment.slot for part in source.parts})
    return [groot.slots[0][1]]
