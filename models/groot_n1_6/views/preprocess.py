"""uint8 frames to the pixels of the tower, on whatever device the frames are.

One code path for CPU and GPU, no data-dependent shape: the public chain (resize, crop, resize,
jitter, resize to the token grid) is one matrix a side, whose rows each sample's crop shifts,
followed by the jitter. Unlike the public chain nothing is rounded to uint8 between the stages, and
the jitter's four parts come in one fixed order, at the final size.
Letters: B batch, K views, V = B * K, C colours, H x W source, Y x X final size.
"""

import torch
from torch import Tensor

from models.groot_n1_6.config import GrootConfig
from models.groot_n1_6.views.augmentation import (
    BRIGHTNESS,
    CONTRAST,
    CROP_X,
    CROP_Y,
    HUE,
    SATURATION,
)
from models.groot_n1_6.views.geometry import ViewGeometry, view_geometry
from models.groot_n1_6.views.resampling import area_matrix, cubic, resize_matrix

GREY_WEIGHTS = (0.299, 0.587, 0.114)


def preprocess_views(
    images_BKHWC: Tensor, augment_BD: Tensor | None, config: GrootConfig
) -> Tensor:
    """Returns pixels [V, C, Y, X] in [-1, 1], float32.

    `augment_BD` is a draw of `views.augmentation`; None takes the centre crop and true colours.
    """
    num_samples, num_views, height, width, _ = images_BKHWC.shape
    geometry = view_geometry(config, height, width)
    image_BKCHW = images_BKHWC.permute(0, 1, 4, 2, 3).contiguous().float()
    place_y = None if augment_BD is None else augment_BD[:, CROP_Y]
    place_x = None if augment_BD is None else augment_BD[:, CROP_X]
    rows_BYH = _side_matrix(geometry, 0, place_y, images_BKHWC.device)
    columns_BXW = _side_matrix(geometry, 1, place_x, images_BKHWC.device)
    across = image_BKCHW.flatten(1, 3) @ (columns_BXW.mT * (1 / 255))
    across_BKCHX = across.reshape(num_samples, num_views, 3, height, -1)
    pixels_BKCYX = (rows_BYH[:, None, None] @ across_BKCHX).clamp(0, 1)
    if augment_BD is not None:
        pixels_BKCYX = jitter_colours(pixels_BKCYX, augment_BD)
    return pixels_BKCYX.flatten(0, 1) * 2 - 1


def jitter_colours(image_BKCYX: Tensor, augment_BD: Tensor) -> Tensor:
    """Returns the image in [0, 1] with brightness, contrast, saturation and hue moved."""
    factor = augment_BD[:, :, None, None, None, None].unbind(1)
    image = (image_BKCYX * factor[BRIGHTNESS]).clamp(0, 1)
    mean = _grey(image).mean(dim=(-2, -1), keepdim=True)
    image = torch.lerp(mean, image, factor[CONTRAST]).clamp(0, 1)
    image = torch.lerp(_grey(image), image, factor[SATURATION]).clamp(0, 1)
    return _shift_hue(image, factor[HUE].squeeze(2))


def _side_matrix(
    geometry: ViewGeometry, side: int, place_B: Tensor | None, device: torch.device
) -> Tensor:
    """Returns the whole chain for one side, [B or 1, final, source]."""
    source, resized, cropped, enlarged, final = (size[side] for size in geometry)
    shrink = area_matrix(resized, source, device)
    spare = resized - cropped
    if place_B is None:
        first_B = torch.full((1,), spare // 2, device=device, dtype=torch.int64)
    else:
        first_B = (place_B * (spare + 1)).long().clamp(0, spare)
    kept_BC = first_B[:, None] + torch.arange(cropped, device=device)
    after_crop = resize_matrix(final, enlarged, cubic, device) @ area_matrix(
        enlarged, cropped, device
    )
    return after_crop @ shrink[kept_BC]


def _grey(image_BKCYX: Tensor) -> Tensor:
    red, green, blue = torch.split(image_BKCYX, 1, dim=2)
    grey: Tensor = red * GREY_WEIGHTS[0] + green * GREY_WEIGHTS[1] + blue * GREY_WEIGHTS[2]
    return grey


def _shift_hue(image_BKCYX: Tensor, turns_B111: Tensor) -> Tensor:
    """Returns the image with its hue moved by a share of the colour wheel, by way of HSV."""
    red, green, blue = image_BKCYX.unbind(2)
    value = image_BKCYX.amax(dim=2)
    chroma = value - image_BKCYX.amin(dim=2)
    safe = chroma.clamp_min(1e-8)
    sixth = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    sixth = sixth + turns_B111 * 6
    channels = []
    for offset in (5.0, 3.0, 1.0):
        distance = torch.remainder(sixth + offset, 6.0)
        channels.append(value - chroma * torch.minimum(distance, 4 - distance).clamp(0, 1))
    return torch.stack(channels, dim=2)
