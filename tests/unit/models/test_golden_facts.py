"""Facts of GR00T N1.6 that a rewrite gets wrong silently: orders, epsilons, embeddings, kinds."""

import math

import pytest
import torch
from torch.nn import functional

from models.groot_n1_6.config import DitConfig, GrootConfig, VisionConfig
from models.groot_n1_6.connector import pixel_unshuffle
from models.groot_n1_6.head.dit import (
    AdaNorm,
    AlternateVLDiT,
    Keys,
    dit_time_embedding,
    draw_dropout,
    drop,
)
from models.groot_n1_6.head.embodiment import action_time_embedding
from models.groot_n1_6.model import initialize
from models.groot_n1_6.views.geometry import view_geometry, view_tokens
from models.groot_n1_6.vision import VisionTransformer, patchify

SMALL = DitConfig(num_layers=4, num_heads=2, head_width=8, output_width=12, time_width=32)


def test_patch_vector_is_row_major_with_channels_fastest() -> None:
    pixels = torch.arange(2 * 3 * 28 * 42).reshape(2, 3, 28, 42)
    patches = patchify(pixels, 14)
    assert patches.shape == (2, 6, 588)
    row, column, dy, dx, channel = 1, 2, 3, 5, 2
    index = (dy * 14 + dx) * 3 + channel
    expected = pixels[1, channel, row * 14 + dy, column * 14 + dx]
    assert patches[1, row * 3 + column, index] == expected


def test_unshuffled_feature_index_is_channel_then_dy_then_dx() -> None:
    grid = (4, 6)
    patches = torch.arange(24.0 * 5).reshape(1, 24, 5)
    tokens = pixel_unshuffle(patches, grid)
    image = patches.reshape(1, 4, 6, 5).permute(0, 3, 1, 2)
    expected = functional.pixel_unshuffle(image, 2).flatten(2).transpose(1, 2)
    assert torch.equal(tokens, expected)
    y, x, channel, dy, dx = 1, 2, 3, 1, 0
    assert (
        tokens[0, y * 3 + x, channel * 4 + dy * 2 + dx] == image[0, channel, 2 * y + dy, 2 * x + dx]
    )


def test_dit_time_embedding_is_cosine_first_and_divides_by_one_less() -> None:
    wave = dit_time_embedding(torch.tensor([0, 250]), 256)
    assert wave.shape == (2, 256)
    for k in (0, 1, 64, 127):
        angle = 250 * math.exp(-k * math.log(1e4) / 127)
        assert wave[1, k].item() == pytest.approx(math.cos(angle), abs=2e-5)
        assert wave[1, 128 + k].item() == pytest.approx(math.sin(angle), abs=2e-5)


def test_action_time_embedding_is_sine_first_and_divides_by_half_the_width() -> None:
    wave = action_time_embedding(torch.tensor([0, 750]), 1536)
    assert wave.shape == (2, 1536)
    for k in (0, 1, 400, 767):
        angle = 750 * math.exp(-k * math.log(1e4) / 768)
        assert wave[1, k].item() == pytest.approx(math.sin(angle), abs=2e-4)
        assert wave[1, 768 + k].item() == pytest.approx(math.cos(angle), abs=2e-4)


def test_block_norm_takes_scale_then_shift_at_1e_5() -> None:
    norm = AdaNorm(16)
    initialize(norm, seed=0)
    x, time = torch.randn(2, 3, 16) * 1e-3, torch.randn(2, 16)
    scale, shift = norm.linear(time).chunk(2, dim=-1)
    expected = functional.layer_norm(x, (16,), eps=1e-5) * (1 + scale[:, None]) + shift[:, None]
    torch.testing.assert_close(norm(x, time), expected)


def test_output_norm_takes_shift_then_scale_at_1e_6() -> None:
    dit = small_dit().eval()
    captured: dict[str, torch.Tensor] = {}
    dit.proj_out_2.register_forward_pre_hook(lambda _, args: captured.update(x=args[0]))
    dit.transformer_blocks[-1].register_forward_hook(lambda *call: captured.update(last=call[2]))
    bucket = torch.tensor([10, 900])
    run_small(dit, bucket)
    time = functional.silu(dit.timestep_encoder(bucket))
    shift, scale = dit.proj_out_1(time).chunk(2, dim=-1)
    normed = functional.layer_norm(captured["last"], (16,), eps=1e-6)
    torch.testing.assert_close(captured["x"], normed * (1 + scale[:, None]) + shift[:, None])


def small_dit() -> AlternateVLDiT:
    dit = AlternateVLDiT(SMALL, key_width=20)
    initialize(dit, seed=0)
    return dit


def run_small(
    dit: AlternateVLDiT, bucket: torch.Tensor, text: float = 0.0, image: float = 0.0
) -> torch.Tensor:
    """Returns the output after text and image keys moved by the two numbers."""
    generator = torch.Generator().manual_seed(1)
    x, text_keys, image_keys = (
        torch.randn(2, n, w, generator=generator) for n, w in ((5, 16), (4, 20), (6, 20))
    )
    valid = torch.tensor([[True] * 4, [True, True, False, False]])
    out: torch.Tensor = dit(
        x, bucket, Keys(text_keys + text, valid), Keys(image_keys + image, None)
    )
    return out


def test_block_kinds_by_index_modulo_four() -> None:
    dit = small_dit().eval()
    seen: list[int | None] = []
    for block in dit.transformer_blocks:
        block.register_forward_pre_hook(
            lambda _, args: seen.append(None if args[2] is None else args[2].tokens.shape[1])
        )
    run_small(dit, torch.tensor([1, 2]))
    assert seen == [4, None, 6, None]
    shapes = {name: parameter.shape for name, parameter in dit.named_parameters()}
    widths = [shapes[f"transformer_blocks.{index}.attn1.to_k.weight"][1] for index in range(4)]
    assert widths == [20, 16, 20, 16]


def test_padded_text_keys_do_not_matter() -> None:
    dit = small_dit().eval()
    x = torch.randn(1, 5, 16)
    image = Keys(torch.randn(1, 6, 20), None)
    text = torch.randn(1, 4, 20)
    valid = torch.tensor([[True, True, False, False]])
    bucket = torch.tensor([7])
    masked = dit(x, bucket, Keys(text, valid), image)
    short = dit(x, bucket, Keys(text[:, :2], None), image)
    torch.testing.assert_close(masked, short)


def test_the_two_attention_dropouts_are_one_draw_of_the_squared_keep_chance() -> None:
    generator = torch.Generator().manual_seed(0)
    masks = draw_dropout((64, 51), DitConfig(), torch.device("cpu"), generator)
    shares = [mask.float().mean().item() for mask in masks]
    assert shares == pytest.approx([0.64, 0.8, 0.8], abs=2e-3)
    kept = drop(torch.ones(64, 51, 1536), masks.attention, 0.64)
    assert kept.mean().item() == pytest.approx(1.0, abs=2e-3)
    assert kept.max().item() == pytest.approx(1 / 0.64)


def test_patch_order_inside_a_view_does_not_matter_to_the_layers() -> None:
    """The public tower sorts patches into windows and back, which full attention undoes."""
    tower = VisionTransformer(VisionConfig(width=32, num_layers=2, num_heads=2, mlp_width=48))
    initialize(tower, seed=0)
    x = torch.randn(2, 24, 32)
    order = torch.randperm(24)
    out, mixed = x, x[:, order]
    for layer in tower.encoder.layers:
        out, mixed = layer(out), layer(mixed)
    torch.testing.assert_close(mixed, out[:, order], rtol=1e-5, atol=1e-5)


def test_views_do_not_see_each_other() -> None:
    tower = VisionTransformer(VisionConfig(width=32, num_layers=2, num_heads=2, mlp_width=48))
    initialize(tower, seed=0)
    patches = torch.randn(2, 16, 588)
    changed = patches.clone()
    changed[1] += 1
    assert torch.equal(tower(patches, (4, 4))[0], tower(changed, (4, 4))[0])


@pytest.mark.parametrize(("weight_decay", "stays"), [(1e-5, True), (1e-2, False)])
def test_resting_embodiments_stay_bit_identical_under_the_recipes_adamw(
    weight_decay: float, stays: bool
) -> None:
    """True while lr x weight decay is below 2^-25; the recipe's is 1e-9."""
    table = torch.nn.Parameter(torch.randn(32, 8, 8))
    before = table.detach().clone()
    optimizer = torch.optim.AdamW([table], lr=1e-4, weight_decay=weight_decay)
    for _ in range(20):
        table.grad = torch.zeros_like(table)
        table.grad[2] = torch.randn(8, 8)
        optimizer.step()
    rest = [slot for slot in range(32) if slot != 2]
    assert torch.equal(table.detach()[rest], before[rest]) is stays
    assert (1e-4 * weight_decay < 2**-25) is stays
    assert not torch.equal(table.detach()[2], before[2])


def test_a_256_px_view_ends_at_252_px_and_81_tokens() -> None:
    config = GrootConfig.public_3b()
    geometry = view_geometry(config, 256, 256)
    assert geometry.resized == (256, 256)
    assert geometry.cropped == (243, 243)
    assert geometry.enlarged == (256, 256)
    assert geometry.final == (252, 252)
    assert geometry.num_tokens(config.token_px) == config.square_view_tokens == 81


@pytest.mark.parametrize(
    ("height", "width", "final", "tokens"),
    [
        (480, 640, (252, 336), 108),
        (800, 1280, (252, 420), 135),
        (1280, 800, (420, 252), 135),
        (64, 64, (252, 252), 81),
    ],
)
def test_other_views_keep_their_public_geometry(
    height: int, width: int, final: tuple[int, int], tokens: int
) -> None:
    config = GrootConfig.public_3b()
    assert view_geometry(config, height, width).final == final
    assert view_tokens(config, height, width) == tokens


def test_nano_views_are_four_tokens() -> None:
    assert view_tokens(GrootConfig.nano(), 256, 256) == 4
