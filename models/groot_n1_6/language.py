"""The lower layers of Qwen3 as an encoder: no logits, no cache.

Prompts are padded on the right. Under causal attention no valid token then sees padding, so no mask
is needed and the fast grouped-query kernel runs; what padding columns hold is never read. Rotary
positions are relative, so this equals the public left padding on every valid token.
Letters: B batch, L sequence, D width, H query heads, G key heads, E head width.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.groot_n1_6.config import LanguageConfig
from models.groot_n1_6.embedding import embedding


class Rotary(NamedTuple):
    """Cosine and sine of every position, [L, E] float32."""

    cos: Tensor
    sin: Tensor


def rotary(config: LanguageConfig, num_positions: int, device: torch.device) -> Rotary:
    """Returns the rotation of positions 0 .. num_positions - 1."""
    even = torch.arange(0, config.head_width, 2, device=device, dtype=torch.float32)
    frequency = 1.0 / (config.rope_theta ** (even / config.head_width))
    position_L = torch.arange(num_positions, device=device, dtype=torch.float32)
    angle_LE = torch.outer(position_L, frequency).repeat(1, 2)
    return Rotary(angle_LE.cos(), angle_LE.sin())


def rotate(x_BHLE: Tensor, rotation: Rotary) -> Tensor:
    """Returns queries or keys turned by their position, halves paired."""
    first, second = x_BHLE.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    cos_LE, sin_LE = rotation.cos.to(x_BHLE.dtype), rotation.sin.to(x_BHLE.dtype)
    return x_BHLE * cos_LE + turned * sin_LE


class RmsNorm(nn.Module):
    """Root-mean-square norm, in float32 whatever the input is."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the normalised input in its own dtype."""
        x = x.to(self.weight.dtype)
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class LanguageAttention(nn.Module):
    """Causal grouped-query attention with normed queries and keys."""

    def __init__(self, config: LanguageConfig) -> None:
        super().__init__()
        self.head_width = config.head_width
        query_width = config.num_heads * config.head_width
        key_width = config.num_kv_heads * config.head_width
        self.q_proj = nn.Linear(config.width, query_width, bias=False)
        self.k_proj = nn.Linear(config.width, key_width, bias=False)
        self.v_proj = nn.Linear(config.width, key_width, bias=False)
        self.o_proj = nn.Linear(query_width, config.width, bias=False)
        self.q_norm = RmsNorm(config.head_width, config.eps)
        self.k_norm = RmsNorm(config.head_width, config.eps)

    def forward(self, x_BLD: Tensor, rotation: Rotary, mask: Tensor | None) -> Tensor:
        """Returns the mixed tokens; `mask` replaces plain causal attention."""
        q_BLHE, k_BLGE, v_BLGE = (
            proj(x_BLD).unflatten(-1, (-1, self.head_width))
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        q_BHLE = rotate(self.q_norm(q_BLHE).transpose(1, 2), rotation)
        k_BGLE = rotate(self.k_norm(k_BLGE).transpose(1, 2), rotation)
        mixed_BHLE = functional.scaled_dot_product_attention(
            q_BHLE,
            k_BGLE,
            v_BLGE.transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=True,
        )
        out_BLD: Tensor = self.o_proj(mixed_BHLE.transpose(1, 2).flatten(2))
        return out_BLD


class LanguageMlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: LanguageConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.mlp_width, bias=False)
        self.up_proj = nn.Linear(config.width, config.mlp_width, bias=False)
        self.down_proj = nn.Linear(config.mlp_width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the transformed tokens."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class LanguageLayer(nn.Module):
    """One pre-norm layer."""

    def __init__(self, config: LanguageConfig) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.width, config.eps)
        self.self_attn = LanguageAttention(config)
        self.post_attention_layernorm = RmsNorm(config.width, config.eps)
        self.mlp = LanguageMlp(config)

    def forward(self, x_BLD: Tensor, rotation: Rotary, mask: Tensor | None = None) -> Tensor:
        """Returns the residual stream after this layer."""
        x_BLD = x_BLD.to(self.mlp.down_proj.weight.dtype)
        x_BLD = x_BLD + self.self_attn(self.input_layernorm(x_BLD), rotation, mask)
        out_BLD: Tensor = x_BLD + self.mlp(self.post_attention_layernorm(x_BLD))
        return out_BLD


class LanguageLayers(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, config: LanguageConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(LanguageLayer(config) for _ in range(config.num_layers))
        self.norm = RmsNorm(config.width, config.eps)

    def run(self, x_BLD: Tensor, first: int, last: int, mask: Tensor | None = None) -> Tensor:
        """Returns the residual stream after layers first .. last - 1.

        `mask` names the allowed pairs [B, 1, L, L] of left-padded prompts; None is causal.
        """
        rotation = rotary(self.config, x_BLD.shape[1], x_BLD.device)
        for layer in self.layers[first:last]:
            x_BLD = layer(x_BLD, rotation, mask)
        return x_BLD


class LanguageModel(nn.Module):
    """The language model as the checkpoint names it; `lm_head` is held, never run."""

    def __init__(self, config: LanguageConfig) -> None:
        super().__init__()
        self.model = LanguageLayers(config)
        self.lm_head = nn.Linear(config.width, config.vocab_size, bias=False)


def place_image_tokens(x_BLD: Tensor, image_BND: Tensor, image_index_BN: Tensor) -> Tensor:
    """Returns the embedded prompt with its image columns replaced."""
    index_BND = image_index_BN[..., None].expand(-1, -1, x_BLD.shape[-1])
    return x_BLD.scatter(1, index_BND, image_BND.to(x_BLD.dtype))


def gather_tokens(x_BLD: Tensor, index_BN: Tensor) -> Tensor:
    """Returns the columns of each sample that its row of the index names, as [B, N, D]."""
    return x_BLD.gather(1, index_BN[..., None].expand(-1, -1, x_BLD.shape[-1]))
