"""GR00T N1.6 whole: a frozen prefix and a head that learns, apart.

`prefix(batch)` runs everything that no update touches (tower, connector, the language layers below
the tuned ones); `head_loss(features, batch, draws)` runs the rest. Noise and time are inputs;
dropout draws from the generator that the caller sets. No data-dependent shape, no host
synchronisation.
Letters: B batch, L sequence, C language width, N image tokens, X text tokens, T horizon, A actions.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from models.groot_n1_6.batch import HEAD_FIELDS, PREFIX_FIELDS
from models.groot_n1_6.config import GrootConfig, TuneFlags
from models.groot_n1_6.connector import Connector
from models.groot_n1_6.head.action_head import ActionHead, flow_loss, noisy_actions
from models.groot_n1_6.head.dit import Keys
from models.groot_n1_6.head.embodiment import CategorySpecificLinear
from models.groot_n1_6.language import LanguageModel, gather_tokens, place_image_tokens
from models.groot_n1_6.views.preprocess import preprocess_views
from models.groot_n1_6.vision import VisionTransformer, patchify

BRANCH_ENDS = ("o_proj", "down_proj", "out_proj", "fc2", "to_out.0", "net.2")


class VisionModel(nn.Module):
    """The checkpoint's name for the tower's place."""

    def __init__(self, config: GrootConfig) -> None:
        super().__init__()
        self.vision_model = VisionTransformer(config.vision)


class Eagle(nn.Module):
    """Tower, connector and language model."""

    def __init__(self, config: GrootConfig) -> None:
        super().__init__()
        self.vision_model = VisionModel(config)
        self.mlp1 = Connector(config.vision.width, config.language.width)
        self.language_model = LanguageModel(config.language)


class Backbone(nn.Module):
    """The checkpoint's name for Eagle's place."""

    def __init__(self, config: GrootConfig) -> None:
        super().__init__()
        self.model = Eagle(config)


class GrootN16(nn.Module):
    """The model that the runtime trains; see the module's docstring."""

    prefix_fields = PREFIX_FIELDS
    head_fields = HEAD_FIELDS

    def __init__(self, config: GrootConfig, tune: TuneFlags | None = None) -> None:
        super().__init__()
        self.config = config
        self.tune = tune or TuneFlags()
        self.backbone = Backbone(config)
        self.action_head = ActionHead(config)
        self.generator: torch.Generator | None = None
        self.register_buffer("row_of_slot", None, persistent=False)
        self._freeze()

    @property
    def frozen_prefix(self) -> bool:
        """Returns whether no update touches the prefix, so that it may run ahead of one."""
        return not (self.tune.tune_visual or self.tune.tune_llm)

    def draw_shapes(self, batch_size: int) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the random inputs of `head_loss`."""
        horizon, width = self.config.action_horizon, self.config.max_action_dim
        return {"noise_BTA": (batch_size, horizon, width), "time_B": (batch_size,)}

    def set_generator(self, generator: torch.Generator | None) -> None:
        """Sets where dropout draws from; None is torch's default generator."""
        self.generator = generator

    def train(self, mode: bool = True) -> "GrootN16":
        """Sets training mode; a frozen DiT stays without dropout, as in the public recipe."""
        super().train(mode)
        if not self.tune.tune_diffusion_model:
            self.action_head.model.eval()
        return self

    def activate_embodiments(self, slots: Sequence[int]) -> None:
        """Keeps only these slots' weights as parameters of the category-specific layers.

        Raises:
            ValueError: a slot is out of range or named twice, or there is none.
        """
        num_slots = self.config.num_slots
        if not slots or len(set(slots)) < len(slots) or not set(slots) <= set(range(num_slots)):
            raise ValueError(
                f"active embodiment slots are different numbers from 0 to {num_slots - 1}, "
                f"but got {list(slots)}; known tags: {dict(self.config.slots)}"
            )
        for layer in self.category_layers().values():
            layer.activate(slots)
        row_of_slot = torch.full((num_slots,), num_slots)
        row_of_slot[list(slots)] = torch.arange(len(slots))
        self.row_of_slot = row_of_slot.to(self.action_head.vlln.weight.device)

    def category_layers(self) -> dict[str, CategorySpecificLinear]:
        """Returns the layers that hold weights for each embodiment, by name."""
        return {
            name: layer
            for name, layer in self.named_modules()
            if isinstance(layer, CategorySpecificLinear)
        }

    def prefix(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the residual stream [B, L, C] below the first language layer that learns."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen_prefix):
            eagle = self.backbone.model
            images_BKHWC = batch["images_BKHWC"]
            pixels_VCHW = preprocess_views(images_BKHWC, batch.get("augment_BD"), self.config)
            tokens_VNC = self.encode_views(pixels_VCHW)
            image_BNC = tokens_VNC.reshape(len(images_BKHWC), -1, tokens_VNC.shape[-1])
            language = eagle.language_model.model
            x_BLC = language.embed_tokens(batch["input_ids_BL"])
            x_BLC = place_image_tokens(x_BLC, image_BNC, batch["image_index_BN"])
            return language.run(x_BLC, 0, self.config.num_frozen_layers(self.tune))

    def encode_views(self, pixels_VCHW: Tensor) -> Tensor:
        """Returns the image tokens [V, N, C] of views in [-1, 1]."""
        eagle, patch_px = self.backbone.model, self.config.vision.patch_px
        grid = (pixels_VCHW.shape[2] // patch_px, pixels_VCHW.shape[3] // patch_px)
        patches = eagle.vision_model.vision_model(patchify(pixels_VCHW, patch_px), grid)
        return eagle.mlp1.encode(patches, grid)

    def head_loss(
        self, features_BLC: Tensor, batch: Mapping[str, Tensor], draws: Mapping[str, Tensor]
    ) -> Tensor:
        """Returns the flow-matching loss of the local batch, a float32 scalar."""
        head = self.action_head
        keys = self._keys(features_BLC, batch)
        row_B = self._rows(batch)
        state_B1D = head.encode_state(batch["state_B1W"], row_B, self.generator)
        action_BTA, noise_BTA, time_B = batch["action_BTA"], draws["noise_BTA"], draws["time_B"]
        bucket_B = (time_B * self.config.num_time_buckets).long()
        noisy_BTA = noisy_actions(action_BTA, noise_BTA, time_B)
        velocity_BTA = head.velocity(state_B1D, noisy_BTA, bucket_B, row_B, keys, self.generator)
        return flow_loss(velocity_BTA, action_BTA - noise_BTA, batch["action_mask_BTA"])

    @torch.no_grad()
    def sample_actions(
        self,
        features_BLC: Tensor,
        batch: Mapping[str, Tensor],
        noise_BTA: Tensor,
        num_steps: int = 4,
    ) -> Tensor:
        """Returns normalised actions [B, T, A] by `num_steps` Euler steps from the noise."""
        head = self.action_head
        keys = self._keys(features_BLC, batch)
        row_B = self._rows(batch)
        state_B1D = head.encode_state(batch["state_B1W"], row_B, self.generator)
        action_BTA = noise_BTA.float()
        for step in range(num_steps):
            bucket = int(step / num_steps * self.config.num_time_buckets)
            bucket_B = torch.full_like(row_B, bucket)
            velocity = head.velocity(state_B1D, action_BTA, bucket_B, row_B, keys, self.generator)
            action_BTA = action_BTA + velocity / num_steps
        return action_BTA

    def forward(self, batch: Mapping[str, Tensor], draws: Mapping[str, Tensor]) -> Tensor:
        """Returns the loss of a whole step."""
        return self.head_loss(self.prefix(batch), batch, draws)

    def _keys(self, features_BLC: Tensor, batch: Mapping[str, Tensor]) -> tuple[Keys, Keys]:
        """Returns text and image keys of the DiT."""
        language = self.backbone.model.language_model.model
        first, last = self.config.num_frozen_layers(self.tune), self.config.language.num_layers
        vl_BLC = self.action_head.norm_features(
            language.norm(language.run(features_BLC, first, last))
        )
        text = Keys(gather_tokens(vl_BLC, batch["text_index_BX"]), batch["text_valid_BX"])
        return text, Keys(gather_tokens(vl_BLC, batch["image_index_BN"]), None)

    def _rows(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each sample's place among the active slots."""
        slot_B = batch["embodiment_B"]
        return slot_B if self.row_of_slot is None else self.row_of_slot[slot_B]

    def _freeze(self) -> None:
        """Applies the tuning flags; what is never run never learns."""
        tune, eagle, head = self.tune, self.backbone.model, self.action_head
        language = eagle.language_model.model
        self.requires_grad_(False)
        eagle.vision_model.requires_grad_(tune.tune_visual)
        eagle.vision_model.vision_model.head.requires_grad_(False)
        eagle.mlp1.requires_grad_(tune.tune_visual)
        language.requires_grad_(tune.tune_llm)
        for layer in language.layers[self.config.num_frozen_layers(tune) :]:
            layer.requires_grad_(True)
        for part in (head.state_encoder, head.action_encoder, head.action_decoder):
            part.requires_grad_(tune.tune_projector)
        head.position_embedding.requires_grad_(tune.tune_projector)
        if head.mask_token is not None:
            head.mask_token.requires_grad_(tune.tune_projector)
        head.model.requires_grad_(tune.tune_diffusion_model)
        head.vlln.requires_grad_(tune.tune_vlln)


def build(
    config: GrootConfig,
    *,
    tune: TuneFlags | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    seed: int = 0,
) -> GrootN16:
    """Returns a model with random weights, the same on every rank that gives the same seed.

    All parameters are of one dtype: by default bfloat16 on a GPU, float32 elsewhere. The device
    "meta" allocates nothing.
    """
    device = torch.device(device)
    with torch.device("meta"):
        model = GrootN16(config, tune)
    model = model.to(dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32))
    if device.type == "meta":
        return model
    model.to_empty(device=device)
    initialize(model, seed)
    for part in unrun_parts(model):
        _rest_on_host(part)
    return model


def unrun_parts(model: GrootN16) -> tuple[nn.Module, ...]:
    """Returns what the checkpoint holds and nothing runs; it stays in host memory."""
    eagle = model.backbone.model
    return eagle.language_model.lm_head, eagle.vision_model.vision_model.head


@torch.no_grad()
def _rest_on_host(part: nn.Module) -> None:
    part.to_empty(device="cpu")
    for parameter in part.parameters():
        parameter.zero_()


@torch.no_grad()
def initialize(model: nn.Module, seed: int) -> None:
    """Fills every parameter: norms one, biases zero, matrices normal by their input width.

    What writes to a residual stream starts smaller by the depth of its stack, so that the stream
    neither grows with depth nor multiplies rounding errors.
    """
    depth = _stack_depths(model)
    generators: dict[str, torch.Generator] = {}
    for name, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            device = str(parameter.device)
            if device not in generators:
                generators[device] = torch.Generator(device).manual_seed(seed)
            is_norm = "norm" in name.rsplit(".", 1)[-1] or name.endswith(("mlp1.0", "vlln"))
            if is_norm and key == "weight":
                parameter.fill_(1.0)
            elif key in ("weight", "W", "in_proj_weight", "probe", "mask_token"):
                axis = -2 if key == "W" else -1
                std = parameter.shape[axis] ** -0.5 * depth.get(name, 1) ** -0.5
                parameter.normal_(0.0, std, generator=generators[device])
            else:
                parameter.zero_()


def _stack_depths(model: nn.Module) -> dict[str, int]:
    """Returns, for each linear that ends a residual branch, the branches of its stack."""
    depths = {}
    for name, stack in model.named_modules():
        if isinstance(stack, nn.ModuleList) and name.endswith(("layers", "transformer_blocks")):
            for inner, _ in stack.named_modules():
                if inner.endswith(BRANCH_ENDS):
                    depths[f"{name}.{inner}"] = 2 * len(stack)
    return depths
