"""The part that learns on fewer kernels: applied to a finished model from outside.

The arithmetic is the model's own (`head_blocks`); blocks are compiled one by one.
B batch, T state and action tokens, D width, L sequence.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional

from lf_ray.runtime.kernels.compiling import compiled
from lf_ray.runtime.kernels.head_blocks import (
    block_weights,
    dit_block,
    language_layer,
    layer_weights,
    random_bits,
    rotation,
)
from lf_ray.runtime.kernels.update import kernel_refusal


def fuse_head(model: Any, *, compile_blocks: bool = True) -> str | None:
    """Replaces DiT and tuned language layers by functions; returns why not, None where it did.

    Args:
        model: a GR00T N1.6 on its device, tuning flags set.
        compile_blocks: by torch.compile, once a block kind and batch size.
    """
    language = model.backbone.model.language_model.model
    refusal = kernel_refusal(language.norm.weight.device)
    if refusal is not None:
        return refusal
    dit = model.action_head.model
    dit.forward = FusedDit(dit, compile_blocks=compile_blocks).forward
    num_frozen = model.config.num_frozen_layers(model.tune)
    language.run = TunedLanguage(language, num_frozen, compile_blocks=compile_blocks).run
    return None


class FusedDit:
    """The DiT's stack; stands in for `AlternateVLDiT.forward`."""

    def __init__(self, dit: Any, *, compile_blocks: bool) -> None:
        self._dit = dit
        self._block: Callable[..., Tensor] = compiled(dit_block, wanted=compile_blocks)

    def forward(
        self, x_BTD: Tensor, bucket_B: Tensor, text: Any, image: Any, generator: Any = None
    ) -> Tensor:
        """Returns [B, T, output width]; dropout acts in training mode only."""
        dit, config = self._dit, self._dit.config
        x_BTD = x_BTD.float()
        time_BD = functional.silu(dit.timestep_encoder(bucket_B))
        kinds = (text, None, image, None)
        for index, block in enumerate(dit.transformer_blocks):
            bits = None
            if dit.training and config.dropout_prob > 0:
                bits = random_bits(x_BTD, 2 * config.width + config.mlp_width, generator)
            keys = kinds[index % 4]
            x_BTD = self._block(
                x_BTD,
                time_BD,
                None if keys is None else keys.tokens,
                None if keys is None else keys.valid,
                bits,
                block_weights(block),
                (config.head_width, 1 - config.dropout_prob),
            )
        out: Tensor = dit._project(x_BTD, time_BD)
        return out


class TunedLanguage:
    """The language layers that learn; stands in for `LanguageLayers.run`."""

    def __init__(self, language: Any, num_frozen: int, *, compile_blocks: bool) -> None:
        self._language = language
        self._own_run = language.run
        self._num_frozen = num_frozen
        self._layer: Callable[..., Tensor] = compiled(language_layer, wanted=compile_blocks)

    def run(self, x_BLD: Tensor, first: int, last: int, mask: Tensor | None = None) -> Tensor:
        """Returns the residual stream after layers first .. last - 1."""
        if first < self._num_frozen or mask is not None:
            out: Tensor = self._own_run(x_BLD, first, last, mask)
            return out
        config = self._language.config
        layers = self._language.layers[first:last]
        dtype = layers[0].mlp.down_proj.weight.dtype
        cos_LE, sin_LE = rotation(config, x_BLD.shape[1], x_BLD.device, dtype)
        x_BLD = x_BLD.to(dtype)
        for layer in layers:
            x_BLD = self._layer(
                x_BLD, cos_LE, sin_LE, layer_weights(layer), (config.head_width, config.eps)
            )
        return x_BLD
