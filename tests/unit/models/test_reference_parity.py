"""Our layers against transformers' own, and gathered keys against masked ones, with gradients."""

import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.groot_n1_6.config import DitConfig, LanguageConfig, VisionConfig
from models.groot_n1_6.head.dit import AlternateVLDiT, Keys, dit_time_embedding
from models.groot_n1_6.language import LanguageLayers, gather_tokens
from models.groot_n1_6.model import initialize
from models.groot_n1_6.vision import VisionTransformer

LANGUAGE = LanguageConfig(
    vocab_size=64, width=48, num_layers=3, num_heads=4, num_kv_heads=2, head_width=16, mlp_width=80
)
VISION = VisionConfig(width=48, num_layers=3, num_heads=4, mlp_width=80, table_side=4)
LENGTHS = (11, 7, 9)


@pytest.fixture
def qwen3() -> nn.Module:
    """Returns transformers' Qwen3 at our small size, with random weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import Qwen3Config, Qwen3Model

        config = Qwen3Config(
            vocab_size=64,
            hidden_size=48,
            intermediate_size=80,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            rope_theta=1e6,
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
            attn_implementation="eager",
        )
        model: nn.Module = Qwen3Model(config).float().eval()
    perturb_norms(model)
    return model


@pytest.fixture
def siglip2() -> nn.Module:
    """Returns transformers' SigLIP2 tower at our small size, with random weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import Siglip2VisionConfig, Siglip2VisionModel

        config = Siglip2VisionConfig(
            hidden_size=48,
            intermediate_size=80,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_patches=16,
            patch_size=14,
            attn_implementation="eager",
        )
        model: nn.Module = Siglip2VisionModel(config).float().eval()
    perturb_norms(model)
    return model


def perturb_norms(model: nn.Module) -> None:
    """Moves every one-dimensional parameter off its neutral start, so that it is tested too."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)


def assert_same_gradients(ours: nn.Module, theirs: dict[str, Tensor]) -> None:
    compared = 0
    for name, parameter in ours.named_parameters():
        if parameter.grad is not None:
            # Sums round by their largest terms, however small the sum: processors differ there.
            atol = 2e-5 + 2e-6 * float(theirs[name].abs().max())
            torch.testing.assert_close(parameter.grad, theirs[name], rtol=2e-4, atol=atol)
            compared += 1
    assert compared > 20


def right_padded(lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Returns ids and the mask of valid columns."""
    ids = torch.randint(1, 64, (len(lengths), max(lengths)))
    valid = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return ids.masked_fill(~valid, 0), valid


def left_padded(ids: Tensor, lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Returns the same prompts padded on the left, and where each right-padded column went."""
    column = torch.arange(ids.shape[1])
    pad = ids.shape[1] - torch.tensor(lengths)[:, None]
    source = (column - pad).clamp_min(0)
    return ids.gather(1, source).masked_fill(column < pad, 0), (column + pad).clamp_max(
        ids.shape[1] - 1
    )


def our_language(theirs: nn.Module) -> LanguageLayers:
    ours = LanguageLayers(LANGUAGE)
    ours.load_state_dict(theirs.state_dict())
    return ours


def test_language_layers_equal_qwen3_forward_and_backward(qwen3: nn.Module) -> None:
    torch.manual_seed(0)
    ids, valid = right_padded(LENGTHS)
    ours = our_language(qwen3)
    out = ours.norm(ours.run(ours.embed_tokens(ids), 0, 3))
    stated = qwen3(input_ids=ids, attention_mask=valid.long()).last_hidden_state
    torch.testing.assert_close(out[valid], stated[valid], rtol=1e-4, atol=1e-5)
    weight = torch.randn(out.shape) * valid[..., None]
    torch.autograd.backward((out * weight).sum())
    torch.autograd.backward((stated * weight).sum())
    assert_same_gradients(
        ours, {k: p.grad for k, p in qwen3.named_parameters() if p.grad is not None}
    )


def test_half_a_stack_equals_qwen3s_hidden_state(qwen3: nn.Module) -> None:
    ids, valid = right_padded(LENGTHS)
    ours = our_language(qwen3)
    states = qwen3(input_ids=ids, attention_mask=valid.long(), output_hidden_states=True)
    half = ours.run(ours.embed_tokens(ids), 0, 2)
    torch.testing.assert_close(half[valid], states.hidden_states[2][valid], rtol=1e-4, atol=1e-5)
    whole = ours.norm(ours.run(half, 2, 3))
    torch.testing.assert_close(whole[valid], states.hidden_states[-1][valid], rtol=1e-4, atol=1e-5)


def left_mask(lengths: tuple[int, ...]) -> Tensor:
    """Returns allowed pairs [B, 1, L, L] of left-padded prompts; padding rows see themselves."""
    size = max(lengths)
    column = torch.arange(size)
    valid = column >= size - torch.tensor(lengths)[:, None]
    causal = column[:, None] >= column
    return (causal & valid[:, None] | torch.eye(size, dtype=torch.bool))[:, None]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2 * 2.0**-8)])
def test_left_and_right_padding_agree_on_valid_tokens(
    qwen3: nn.Module, dtype: torch.dtype, bound: float
) -> None:
    ids, valid = right_padded(LENGTHS)
    ours = our_language(qwen3).to(dtype)
    left_ids, place = left_padded(ids, LENGTHS)
    right = ours.norm(ours.run(ours.embed_tokens(ids), 0, 3)).float()
    left = ours.norm(ours.run(ours.embed_tokens(left_ids), 0, 3, left_mask(LENGTHS))).float()
    moved = gather_tokens(left, place)
    error = (moved - right)[valid].norm() / right[valid].norm()
    assert error < bound


@pytest.mark.parametrize("grid", [(4, 4), (6, 6), (2, 8)])
def test_tower_equals_siglip2_forward_and_backward(
    siglip2: nn.Module, grid: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    patches = torch.randn(3, grid[0] * grid[1], 588)
    ours = VisionTransformer(VISION)
    ours.load_state_dict(
        {name.removeprefix("vision_model."): t for name, t in siglip2.state_dict().items()}
    )
    out = ours(patches, grid)
    stated = siglip2(
        pixel_values=patches,
        pixel_attention_mask=torch.ones(patches.shape[:2], dtype=torch.long),
        spatial_shapes=torch.tensor([grid] * 3),
    ).last_hidden_state
    torch.testing.assert_close(out, stated, rtol=1e-4, atol=1e-5)
    weight = torch.randn(out.shape)
    torch.autograd.backward((out * weight).sum())
    torch.autograd.backward((stated * weight).sum())
    theirs = {
        name.removeprefix("vision_model."): parameter.grad
        for name, parameter in siglip2.named_parameters()
        if parameter.grad is not None
    }
    assert_same_gradients(ours, theirs)


def masked_dit(
    dit: AlternateVLDiT, x: Tensor, bucket: Tensor, vl: Tensor, masks: list[Tensor]
) -> Tensor:
    """Restates the DiT plainly as the public code runs it: all keys, boolean masks, no gather."""
    config, weight = dit.config, dict(dit.named_parameters())

    def linear(value: Tensor, name: str) -> Tensor:
        return functional.linear(value, weight[f"{name}.weight"], weight[f"{name}.bias"])

    def heads(value: Tensor) -> Tensor:
        return value.reshape(*value.shape[:2], config.num_heads, -1).transpose(1, 2)

    wave = dit_time_embedding(bucket, config.time_width)
    embedder = "timestep_encoder.timestep_embedder"
    time = linear(functional.silu(linear(wave, f"{embedder}.linear_1")), f"{embedder}.linear_2")
    width = (config.width,)
    for index in range(config.num_layers):
        block = f"transformer_blocks.{index}"
        scale, shift = linear(functional.silu(time), f"{block}.norm1.linear")[:, None].chunk(2, -1)
        normed = functional.layer_norm(x, width, eps=1e-5) * (1 + scale) + shift
        keys = normed if index % 2 else vl
        query = heads(linear(normed, f"{block}.attn1.to_q"))
        key, value = (heads(linear(keys, f"{block}.attn1.to_{kind}")) for kind in "kv")
        logits = query @ key.transpose(-1, -2) / math.sqrt(config.head_width)
        if index % 2 == 0:
            logits = logits.masked_fill(~masks[index % 4 // 2][:, None, None], -torch.inf)
        mixed = (logits.softmax(-1) @ value).transpose(1, 2).flatten(2)
        x = x + linear(mixed, f"{block}.attn1.to_out.0")
        hidden = linear(functional.layer_norm(x, width, eps=1e-5), f"{block}.ff.net.0.proj")
        x = x + linear(functional.gelu(hidden, approximate="tanh"), f"{block}.ff.net.2")
    shift, scale = linear(functional.silu(time), "proj_out_1")[:, None].chunk(2, -1)
    normed = functional.layer_norm(x, width, eps=1e-6) * (1 + scale) + shift
    return linear(normed, "proj_out_2")


def test_gathered_keys_equal_masked_keys_forward_and_backward() -> None:
    torch.manual_seed(0)
    config = DitConfig(num_layers=8, num_heads=2, head_width=16, output_width=12, time_width=32)
    dit = AlternateVLDiT(config, key_width=24).eval()
    initialize(dit, seed=0)
    x, bucket = torch.randn(2, 5, 32), torch.tensor([3, 700])
    # columns: text, image, image, text, text, padding (second sample: one text less)
    image = torch.tensor([[1, 2], [1, 2]])
    text = torch.tensor([[0, 3, 4], [0, 3, 0]])
    text_valid = torch.tensor([[True, True, True], [True, True, False]])
    is_image = torch.zeros(2, 6, dtype=torch.bool).scatter(1, image, True)
    is_text = torch.zeros(2, 6, dtype=torch.bool)
    is_text[0, [0, 3, 4]] = True
    is_text[1, [0, 3]] = True
    vl = torch.randn(2, 6, 24)
    weight = torch.randn(2, 5, 12)

    def gradients(run: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, list[Tensor]]:
        leaves = [x.clone().requires_grad_(), vl.clone().requires_grad_()]
        out = run(*leaves)
        wanted = [*leaves, *dit.parameters()]
        return out, list(torch.autograd.grad((out * weight).sum(), wanted))

    def gathered(x: Tensor, vl: Tensor) -> Tensor:
        keys = Keys(gather_tokens(vl, text), text_valid), Keys(gather_tokens(vl, image), None)
        out: Tensor = dit(x, bucket, *keys)
        return out

    out, ours = gradients(gathered)
    stated, theirs = gradients(lambda x, vl: masked_dit(dit, x, bucket, vl, [is_text, is_image]))
    torch.testing.assert_close(out, stated, rtol=1e-4, atol=1e-5)
    for mine, other in zip(ours, theirs):
        torch.testing.assert_close(mine, other, rtol=2e-4, atol=2e-5)
