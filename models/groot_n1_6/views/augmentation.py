"""The random part of a view: one draw a sample, shared by all its views. numpy only.

The draw is data (field `augment_BD`), made on the host from the sample's own random stream;
`models.groot_n1_6.views.preprocess` applies it on the device.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

AUGMENT_WIDTH = 6
CROP_Y, CROP_X, BRIGHTNESS, CONTRAST, SATURATION, HUE = range(AUGMENT_WIDTH)


@dataclass(frozen=True, kw_only=True)
class ColourJitter:
    """How far the public recipe moves each property of the colours."""

    brightness: float = 0.3
    contrast: float = 0.4
    saturation: float = 0.5
    hue: float = 0.08


def draw_augment(
    rng: np.random.Generator, num_samples: int = 1, jitter: ColourJitter | None = None
) -> NDArray[np.float32]:
    """Returns crop positions in [0, 1), colour factors near 1, a hue shift in turns: [B, 6]."""
    jitter = jitter or ColourJitter()
    spread = np.array([jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue])
    middle = np.array([1.0, 1.0, 1.0, 0.0])
    crop = rng.random((num_samples, 2))
    colour = middle + spread * rng.uniform(-1.0, 1.0, (num_samples, 4))
    return np.concatenate((crop, colour), axis=1).astype(np.float32)
