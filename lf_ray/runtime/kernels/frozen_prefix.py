"""The frozen prefix on fewer, larger kernels: applied to a finished model from outside.

Neighbouring projections run as one product (their weights become views of one packed tensor, so the
model's own names and values stay), and what stands between products is one pass over memory. No
gradient passes through; with any other call the model's own code runs.
V views, P patches, C width, B batch, L sequence, D language width, H heads, E head width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lf_ray.runtime.kernels.compiling import compiled
from lf_ray.runtime.kernels.head_blocks import rotation
from lf_ray.runtime.kernels.update import kernel_refusal
from models.groot_n1_6.language import place_image_tokens
from models.groot_n1_6.views.preprocess import preprocess_views


def fuse_prefix(model: Any, *, compile_views: bool = False) -> str | None:
    """Replaces the prefix's two stacks by fused ones; returns why not, None where it did.

    Args:
        model: a GR00T N1.6 on its device, weights loaded, embodiments active, tuning flags set.
        compile_views: the views' preprocessing by torch.compile, once a batch size.
    """
    eagle = model.backbone.model
    vision, language = eagle.vision_model.vision_model, eagle.language_model.model
    refusal = kernel_refusal(vision.post_layernorm.weight.device)
    if refusal is not None:
        return refusal
    if not model.frozen_prefix:
        return "the tuning flags leave no frozen prefix"
    if vision.post_layernorm.weight.dtype != torch.bfloat16:
        return "the prefix computes in float32"
    head_width = model.config.language.head_width
    if head_width & (head_width - 1):
        return f"the rotation kernel needs a power of two as head width, not {head_width}"
    vision.forward = FusedVision(vision).forward
    language.run = FusedLanguage(language, model.config.num_frozen_layers(model.tune)).run
    if compile_views:
        model.prefix = CompiledViews(model).prefix
    return None


class CompiledViews:
    """The prefix with its preprocessing compiled; stands in for `GrootN16.prefix`."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._preprocess: Callable[..., Tensor] = compiled(preprocess_views, wanted=True)

    def prefix(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the residual stream [B, L, D] below the first language layer that learns."""
        model = self._model
        language = model.backbone.model.language_model.model
        images_BKHWC = batch["images_BKHWC"]
        with torch.no_grad():
            pixels = self._preprocess(images_BKHWC, batch.get("augment_BD"), model.config)
            tokens_VND = model.encode_views(pixels)
            image_BND = tokens_VND.reshape(len(images_BKHWC), -1, tokens_VND.shape[-1])
            x_BLD = language.embed_tokens(batch["input_ids_BL"])
            x_BLD = place_image_tokens(x_BLD, image_BND, batch["image_index_BN"])
            out: Tensor = language.run(x_BLD, 0, model.config.num_frozen_layers(model.tune))
            return out


def pack(linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Returns the weights and biases as one each; the linears' parameters become views of them."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    bias = None
    if linears[0].bias is not None:
        bias = torch.cat([linear.bias.detach() for linear in linears])
    first = 0
    for linear in linears:
        last = first + linear.out_features
        linear.weight.data = weight[first:last]
        if bias is not None:
            linear.bias.data = bias[first:last]
        first = last
    return weight, bias


@dataclass(frozen=True, slots=True)
class _VisionLayer:
    layer: Any
    qkv_weight: Tensor
    qkv_bias: Tensor


class FusedVision:
    """The tower's layers between embeddings and last norm."""

    def __init__(self, vision: Any) -> None:
        self._vision = vision
        self._layers = []
        for layer in vision.encoder.layers:
            attention = layer.self_attn
            weight, bias = pack([attention.q_proj, attention.k_proj, attention.v_proj])
            assert bias is not None
            self._layers.append(_VisionLayer(layer, weight, bias))

    def forward(self, patches_VPD: Tensor, grid: tuple[int, int]) -> Tensor:
        """Returns one vector a patch, as [V, P, C]."""
        from lf_ray.runtime.kernels.layer_ops import add_norm

        x_VPC = self._vision.embeddings(patches_VPD, grid).contiguous()
        delta_VPC = None
        for packed in self._layers:
            layer = packed.layer
            norm = layer.layer_norm1
            x_VPC, normed_VPC = add_norm(x_VPC, delta_VPC, norm.weight, norm.bias, norm.eps)
            delta_VPC = self._attend(packed, normed_VPC)
            norm = layer.layer_norm2
            x_VPC, normed_VPC = add_norm(x_VPC, delta_VPC, norm.weight, norm.bias, norm.eps)
            delta_VPC = _gelu_mlp(layer.mlp, normed_VPC)
        norm = self._vision.post_layernorm
        _, out_VPC = add_norm(x_VPC, delta_VPC, norm.weight, norm.bias, norm.eps)
        return out_VPC

    def _attend(self, packed: _VisionLayer, normed_VPC: Tensor) -> Tensor:
        attention = packed.layer.self_attn
        qkv = functional.linear(normed_VPC, packed.qkv_weight, packed.qkv_bias)
        split = qkv.view(*qkv.shape[:2], 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
        mixed_VHPE = functional.scaled_dot_product_attention(split[0], split[1], split[2])
        out_VPC: Tensor = attention.out_proj(mixed_VHPE.transpose(1, 2).flatten(2))
        return out_VPC


@dataclass(frozen=True, slots=True)
class _LanguageLayer:
    layer: Any
    qkv_weight: Tensor
    norm_weight_HE: Tensor
    gate_up_weight: Tensor


class FusedLanguage:
    """The language layers that no update touches."""

    def __init__(self, language: Any, num_frozen: int) -> None:
        self._language = language
        self._own_run = language.run
        self._num_frozen = num_frozen
        config = language.config
        self._heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self._layers = [self._packed(layer) for layer in language.layers[:num_frozen]]

    def run(self, x_BLD: Tensor, first: int, last: int, mask: Tensor | None = None) -> Tensor:
        """Returns the residual stream after layers first .. last - 1."""
        whole = (first, last) == (0, self._num_frozen)
        if not whole or mask is not None or torch.is_grad_enabled():
            out: Tensor = self._own_run(x_BLD, first, last, mask)
            return out
        return self._run_fused(x_BLD.to(torch.bfloat16).contiguous())

    def _run_fused(self, x_BLD: Tensor) -> Tensor:
        from lf_ray.runtime.kernels.layer_ops import add_norm, swiglu

        config = self._language.config
        cos_LE, sin_LE = rotation(config, x_BLD.shape[1], x_BLD.device, x_BLD.dtype)
        delta_BLD = None
        for packed in self._layers:
            layer = packed.layer
            norm = layer.input_layernorm
            x_BLD, normed_BLD = add_norm(x_BLD, delta_BLD, norm.weight, None, norm.eps)
            delta_BLD = self._attend(packed, normed_BLD, cos_LE, sin_LE)
            norm = layer.post_attention_layernorm
            x_BLD, normed_BLD = add_norm(x_BLD, delta_BLD, norm.weight, None, norm.eps)
            hidden = swiglu(functional.linear(normed_BLD, packed.gate_up_weight))
            delta_BLD = layer.mlp.down_proj(hidden)
        return x_BLD if delta_BLD is None else x_BLD + delta_BLD

    def _attend(
        self, packed: _LanguageLayer, normed_BLD: Tensor, cos_LE: Tensor, sin_LE: Tensor
    ) -> Tensor:
        from lf_ray.runtime.kernels.layer_ops import norm_rotate_

        attention = packed.layer.self_attn
        qkv_BLD = functional.linear(normed_BLD, packed.qkv_weight)
        norm_rotate_(qkv_BLD, packed.norm_weight_HE, cos_LE, sin_LE, attention.q_norm.eps)
        heads_BHLE = qkv_BLD.view(*qkv_BLD.shape[:2], -1, attention.head_width).transpose(1, 2)
        q_BHLE, k_BGLE, v_BGLE = torch.split(heads_BHLE, list(self._heads), dim=1)
        mixed_BHLE = functional.scaled_dot_product_attention(
            q_BHLE, k_BGLE, v_BGLE, is_causal=True, enable_gqa=True
        )
        out_BLD: Tensor = attention.o_proj(mixed_BHLE.transpose(1, 2).flatten(2))
        return out_BLD

    def _packed(self, layer: Any) -> _LanguageLayer:
        attention, mlp = layer.self_attn, layer.mlp
        qkv_weight, _ = pack([attention.q_proj, attention.k_proj, attention.v_proj])
        gate_up_weight, _ = pack([mlp.gate_proj, mlp.up_proj])
        num_heads, num_kv_heads, _ = self._heads
        norms = [attention.q_norm.weight] * num_heads + [attention.k_norm.weight] * num_kv_heads
        return _LanguageLayer(layer, qkv_weight, torch.stack(norms).detach(), gate_up_weight)


def _gelu_mlp(mlp: Any, normed_VPC: Tensor) -> Tensor:
    """Returns the tower's MLP with bias and tanh-GELU inside the first product."""
    rows = normed_VPC.flatten(0, -2)
    hidden = torch._addmm_activation(mlp.fc1.bias, rows, mlp.fc1.weight.T, use_gelu=True)
    out: Tensor = mlp.fc2(hidden).view(normed_VPC.shape)
    return out
