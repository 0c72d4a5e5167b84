"""The model's sizes that data is cut to, from the settings. No torch."""

from lf_ray.settings import ModelSettings
from models.groot_n1_6.config import GrootConfig


def groot_config(model: ModelSettings) -> GrootConfig:
    """Returns the sizes of the configured model."""
    config = GrootConfig.of_size(model.size)
    return config if model.image_px == config.image_px else config.with_views(model.image_px)
