"""Views on the device: resizing, crop, jitter and normalisation against plain references."""

import colorsys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from models.groot_n1_6.config import GrootConfig
from models.groot_n1_6.views.augmentation import AUGMENT_WIDTH, CROP_X, CROP_Y, draw_augment
from models.groot_n1_6.views.preprocess import jitter_colours, preprocess_views
from models.groot_n1_6.views.resampling import area_matrix, cubic, resize_matrix, triangle

CPU = torch.device("cpu")
PUBLIC = GrootConfig.public_3b()
NANO = GrootConfig.nano()


def photo(height: int, width: int) -> np.ndarray:
    """Returns a smooth picture with some noise, uint8."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    smooth = np.stack([np.sin(7 * x + 2), np.cos(9 * y), np.sin(5 * x * y + 1)], axis=-1)
    noisy = 128 + 90 * smooth + rng.normal(0, 12, (height, width, 3))
    return noisy.clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize(("num_out", "num_in"), [(252, 256), (56, 64), (18, 16), (10, 37), (9, 9)])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_resizing_equals_torchs_antialiased_one(num_out: int, num_in: int, mode: str) -> None:
    x = torch.randn(1, 1, num_in, num_in)
    matrix = resize_matrix(num_out, num_in, cubic if mode == "bicubic" else triangle, CPU)
    expected = functional.interpolate(
        x, (num_out, num_out), mode=mode, align_corners=False, antialias=True
    )
    torch.testing.assert_close(matrix @ x @ matrix.T, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("num_out", "num_in"), [(4, 12), (256, 480), (256, 243), (7, 7)])
def test_area_resizing_averages_what_each_pixel_covers(num_out: int, num_in: int) -> None:
    fine = num_out * num_in
    signal = np.random.default_rng(0).normal(size=num_in)
    expected = signal.repeat(fine // num_in).reshape(num_out, -1).mean(axis=1)
    got = area_matrix(num_out, num_in, CPU).double() @ torch.from_numpy(signal)
    np.testing.assert_allclose(got.numpy(), expected, atol=2e-4)


def public_chain(picture: np.ndarray) -> np.ndarray:
    """Returns what the public code makes of a 256 px picture: uint8 after each stage."""
    kept = picture[6:249, 6:249].astype(np.float64)
    enlarge = area_matrix(256, 243, CPU).double().numpy()
    channels = [enlarge @ kept[..., channel] @ enlarge.T for channel in range(3)]
    enlarged = np.stack(channels, axis=-1).round().astype(np.uint8)
    resized = Image.fromarray(enlarged).resize((252, 252), Image.Resampling.BICUBIC)
    return np.asarray(resized)


def test_true_colour_view_equals_the_public_chain_within_rounding() -> None:
    picture = photo(256, 256)
    pixels = preprocess_views(torch.from_numpy(picture)[None, None], None, PUBLIC)
    assert pixels.shape == (1, 3, 252, 252)
    assert pixels.dtype == torch.float32
    got = (pixels[0].permute(1, 2, 0).numpy() + 1) * 127.5
    difference = np.abs(got - public_chain(picture))
    assert difference.max() <= 2.0
    assert difference.mean() <= 0.5


def test_non_square_views_keep_their_shape() -> None:
    picture = torch.from_numpy(photo(96, 128))[None, None]
    assert preprocess_views(picture, None, PUBLIC).shape == (1, 3, 252, 336)
    assert preprocess_views(picture, None, NANO).shape == (1, 3, 56, 84)


def neutral(num_samples: int, y: float, x: float) -> Tensor:
    """Returns draws that crop and leave colours alone."""
    return torch.tensor([[y, x, 1.0, 1.0, 1.0, 0.0]] * num_samples)


def test_crops_reach_every_edge_and_no_further() -> None:
    """A ramp's ends show where the crop was: 256 px keep 243, so offsets are 0 to 13."""
    ramp = torch.arange(256, dtype=torch.uint8)
    picture = ramp[:, None, None].expand(256, 256, 3)[None, None]
    for place, first in ((0.0, 0), (0.5, 7), (0.999, 13)):
        pixels = preprocess_views(picture, neutral(1, place, 0.0), PUBLIC)
        levels = (pixels[0, 0, :, 0] + 1) * 127.5
        assert levels[0].item() == pytest.approx(first, abs=0.6)
        assert levels[-1].item() == pytest.approx(first + 242, abs=0.6)


def test_one_draw_serves_all_views_and_each_sample_has_its_own() -> None:
    picture = torch.from_numpy(photo(64, 64))
    images = picture.expand(2, 3, 64, 64, 3)
    draws = torch.from_numpy(draw_augment(np.random.default_rng(0), 2))
    pixels = preprocess_views(images, draws, NANO).reshape(2, 3, 3, 56, 56)
    assert torch.equal(pixels[:, 0], pixels[:, 1])
    assert torch.equal(pixels[:, 0], pixels[:, 2])
    assert (pixels[0] - pixels[1]).abs().mean() > 0.01
    alone = preprocess_views(images[1:], draws[1:], NANO)
    torch.testing.assert_close(alone, pixels[1])


def test_pixels_are_between_minus_one_and_one() -> None:
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (4, 2, 64, 64, 3), dtype=np.uint8))
    pixels = preprocess_views(images, torch.from_numpy(draw_augment(rng, 4)), NANO)
    assert pixels.min() >= -1
    assert pixels.max() <= 1
    assert pixels.min() < -0.9
    assert pixels.max() > 0.9


def reference_jitter(picture: np.ndarray, draw: np.ndarray) -> np.ndarray:
    """Returns the four colour moves one after the other, pixel by pixel."""
    _, _, brightness, contrast, saturation, hue = draw
    grey_weights = np.array([0.299, 0.587, 0.114])
    out = (picture * brightness).clip(0, 1)
    mean = (out @ grey_weights).mean()
    out = (mean + contrast * (out - mean)).clip(0, 1)
    grey = (out @ grey_weights)[..., None]
    out = (grey + saturation * (out - grey)).clip(0, 1)
    shifted = []
    for pixel in out.reshape(-1, 3):
        h, s, v = colorsys.rgb_to_hsv(*pixel)
        shifted.append(colorsys.hsv_to_rgb((h + hue) % 1.0, s, v))
    return np.array(shifted).reshape(picture.shape)


@pytest.mark.parametrize("seed", range(4))
def test_jitter_equals_the_pixelwise_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    picture = rng.random((12, 10, 3))
    picture[0, 0] = 0.4  # grey has no hue
    picture[0, 1] = (0.2, 0.9, 0.9)  # two channels tie for the largest
    draw = draw_augment(rng, 1)
    image = torch.from_numpy(picture.astype(np.float32)).permute(2, 0, 1)[None, None]
    got = jitter_colours(image, torch.from_numpy(draw))[0, 0].permute(1, 2, 0).numpy()
    np.testing.assert_allclose(got, reference_jitter(picture, draw[0]), atol=2e-5)


def test_a_neutral_draw_changes_no_colour() -> None:
    image = torch.rand(2, 1, 3, 8, 8)
    torch.testing.assert_close(jitter_colours(image, neutral(2, 0, 0)), image, rtol=0, atol=1e-6)


def test_draws_are_seeded_and_stay_in_the_recipes_ranges() -> None:
    draws = draw_augment(np.random.default_rng(3), 5000)
    assert np.array_equal(draws, draw_augment(np.random.default_rng(3), 5000))
    assert draws.shape == (5000, AUGMENT_WIDTH)
    assert draws.dtype == np.float32
    low, high = draws.min(axis=0), draws.max(axis=0)
    np.testing.assert_allclose(low, [0, 0, 0.7, 0.6, 0.5, -0.08], atol=5e-3)
    np.testing.assert_allclose(high, [1, 1, 1.3, 1.4, 1.5, 0.08], atol=5e-3)
    assert abs(np.corrcoef(draws[:, CROP_Y], draws[:, CROP_X])[0, 1]) < 0.05
