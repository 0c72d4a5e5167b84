"""Resizing as two small matrix products, one a side.

A matrix made from an index grid has no data-dependent shape and no table to copy, so it works while
a graph is being captured, and its rows can be shifted by a tensor: that is how each sample gets its
own crop. Kernels are normalised and widened when shrinking, as Pillow and torch's antialias do.
Letters: O output side, I input side, B sample.
"""

from collections.abc import Callable

import torch
from torch import Tensor

BICUBIC_SHARPNESS = -0.5  # Pillow's and torch's antialiased bicubic


def triangle(distance: Tensor) -> Tensor:
    """Returns the bilinear kernel."""
    return (1 - distance.abs()).clamp_min(0)


def cubic(distance: Tensor) -> Tensor:
    """Returns the bicubic kernel."""
    x = distance.abs()
    a = BICUBIC_SHARPNESS
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def resize_matrix(
    num_out: int, num_in: int, kernel: Callable[[Tensor], Tensor], device: torch.device
) -> Tensor:
    """Returns the matrix that resizes a side of num_in pixels to num_out, as [O, I] float32."""
    scale = num_in / num_out
    filter_scale = max(scale, 1.0)
    centre_O1 = (torch.arange(num_out, device=device, dtype=torch.float32)[:, None] + 0.5) * scale
    pixel_I = torch.arange(num_in, device=device, dtype=torch.float32) + 0.5
    weight_OI = kernel((pixel_I - centre_O1) / filter_scale)
    return weight_OI / weight_OI.sum(dim=1, keepdim=True)


def area_matrix(num_out: int, num_in: int, device: torch.device) -> Tensor:
    """Returns the matrix that averages what each output pixel covers, [O, I] float32.

    This is OpenCV's INTER_AREA, which covers less than one pixel when enlarging.
    """
    scale = num_in / num_out
    first_O1 = torch.arange(num_out, device=device, dtype=torch.float32)[:, None] * scale
    pixel_I = torch.arange(num_in, device=device, dtype=torch.float32)
    covered_OI = torch.minimum(pixel_I + 1, first_O1 + scale) - torch.maximum(pixel_I, first_O1)
    return covered_OI.clamp_min(0) / scale
