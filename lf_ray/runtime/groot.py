"""Binds the runtime to GR00T N1.6: settings to model, data to active embodiment slots."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from lf_ray.errors import CheckpointError
from lf_ray.runtime.kernels import fuse_head, fuse_prefix
from lf_ray.settings import ModelSettings, SweepConfig
from models.groot_n1_6.checkpoint.errors import CheckpointFormatError
from models.groot_n1_6.config import GrootConfig, TuneFlags
from models.groot_n1_6.model import GrootN16, build
from models.groot_n1_6.weights import load_weights


def build_groot(config: SweepConfig, slots: Sequence[int], device: torch.device) -> GrootN16:
    """Returns the model with these embodiments active; weights are the same on all ranks.

    Raises:
        CheckpointError: model.weights can't be loaded.
    """
    settings = config.model
    groot = sized(settings)
    model = build(groot, tune=tune_flags(settings), device=device, seed=config.sweep.seed)
    if settings.weights is not None:
        try:
            load_weights(model, settings.weights)
        except CheckpointFormatError as error:
            raise CheckpointError(str(error)) from error
    model.activate_embodiments(slots)
    return model


def fuse(model: GrootN16, settings: ModelSettings) -> str:
    """Puts the model on fused kernels where it can be; returns in a word what runs.

    Must come before anything is compiled, captured or hooked.
    """
    if not settings.fused_kernels:
        return "plain"
    refused = {
        "prefix": fuse_prefix(model, compile_views=settings.compile_blocks),
        "head": fuse_head(model, compile_blocks=settings.compile_blocks),
    }
    plain = [f"{part} plain ({reason})" for part, reason in refused.items() if reason]
    return ", ".join(plain) or "fused"


def sized(settings: ModelSettings) -> GrootConfig:
    """Returns the configured architecture."""
    groot = GrootConfig.of_size(settings.size)
    if settings.image_px != groot.image_px:
        groot = groot.with_views(settings.image_px)
    return replace(groot, state_dropout_prob=settings.state_dropout_prob)


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


def active_slots(source: Any, settings: ModelSettings) -> list[int]:
    """Returns the embodiment slots that occur in opened data."""
    from lf_ray.data.batches.training_set import TrainingSet

    if isinstance(source, TrainingSet):
        return sorted({part.embodiment.slot for part in source.parts})
    return [sized(settings).slots[0][1]]
