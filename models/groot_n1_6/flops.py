"""Arithmetic of one sample by formula: what the model executes, part by part. No torch.

Two operations a multiply-add, matrix products only, as torch's counter counts them. A product's
backward costs its forward once for the weights' gradient and once for the input's, where each is
wanted. Resizing of views and of the table of positions is left out (below 0.1 %).
"""

from dataclasses import dataclass

from models.groot_n1_6.config import GrootConfig, TuneFlags


@dataclass(frozen=True, kw_only=True)
class Flops:
    """Operations of one part, a sample."""

    forward: int = 0
    backward: int = 0

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(forward=self.forward + other.forward, backward=self.backward + other.backward)


@dataclass(frozen=True, kw_only=True)
class PromptShape:
    """The tokens of a sample: views of `view_tokens` each, in a prompt of `length` columns.

    `causal_frac` is the share of causal attention that counts: 1 as torch counts and as masked
    kernels work, 0.5 for what is needed.
    """

    num_views: int = 2
    view_tokens: int = 81
    length: int = 220
    causal_frac: float = 1.0

    @property
    def num_image(self) -> int:
        """Returns the image tokens."""
        return self.num_views * self.view_tokens

    @property
    def num_text(self) -> int:
        """Returns the columns that are not image tokens."""
        return self.length - self.num_image


def flops_per_sample(
    config: GrootConfig, prompt: PromptShape, tune: TuneFlags | None = None
) -> dict[str, Flops]:
    """Returns operations by part: vision, connector, language_prefix, language_head, dit, mlps."""
    tune = tune or TuneFlags()
    num_frozen = config.num_frozen_layers(tune)
    num_tuned = config.language.num_layers - num_frozen
    layer = _language_layer(config, prompt)
    below = tune.tune_visual or tune.tune_llm
    prefix = _cost(layer * num_frozen, tune.tune_llm, below)
    head = _cost(layer * num_tuned, num_tuned > 0, below or num_tuned > 0)
    return {
        "vision": _vision(config, prompt, tune.tune_visual),
        "connector": _connector(config, prompt, tune.tune_visual),
        "language_prefix": prefix + _causal(config, prompt, num_frozen, below),
        "language_head": head + _causal(config, prompt, num_tuned, below or num_tuned > 0),
        "dit": _dit(config, prompt, tune),
        "mlps": _mlps(config, tune),
    }


def total(parts: dict[str, Flops]) -> Flops:
    """Returns the sum over all parts."""
    return sum(parts.values(), Flops())


def _cost(forward: int, learns: bool, passes: bool) -> Flops:
    """Returns a product's cost: its weights learn, its input passes a gradient on."""
    return Flops(forward=forward, backward=forward * (int(learns) + int(passes)))


def _attention(forward: int, passes: bool) -> Flops:
    return Flops(forward=forward, backward=2 * forward * int(passes))


def _vision(config: GrootConfig, prompt: PromptShape, learns: bool) -> Flops:
    vision = config.vision
    patches = 4 * prompt.view_tokens
    embed = 2 * patches * vision.patch_width * vision.width
    layer = 2 * patches * (4 * vision.width**2 + 2 * vision.width * vision.mlp_width)
    pairs = 4 * patches**2 * vision.width
    views, depth = prompt.num_views, vision.num_layers
    return (
        _cost(views * embed, learns, False)
        + _cost(views * depth * layer, learns, learns)
        + _attention(views * depth * pairs, learns)
    )


def _connector(config: GrootConfig, prompt: PromptShape, learns: bool) -> Flops:
    width = config.language.width
    return _cost(2 * prompt.num_image * (4 * config.vision.width + width) * width, learns, learns)


def _language_layer(config: GrootConfig, prompt: PromptShape) -> int:
    language = config.language
    heads = 2 * language.num_heads + 2 * language.num_kv_heads
    weights = language.width * (heads * language.head_width + 3 * language.mlp_width)
    return 2 * prompt.length * weights


def _causal(config: GrootConfig, prompt: PromptShape, num_layers: int, passes: bool) -> Flops:
    language = config.language
    pairs = 4 * prompt.length**2 * language.num_heads * language.head_width
    return _attention(int(pairs * num_layers * prompt.causal_frac), passes)


def _dit(config: GrootConfig, prompt: PromptShape, tune: TuneFlags) -> Flops:
    dit, tokens, width = config.dit, 1 + config.action_horizon, config.dit.width
    learns, square = tune.tune_diffusion_model, config.dit.width**2
    keys_pass = tune.tune_vlln or tune.tune_visual or tune.tune_llm or tune.tune_top_llm_layers > 0
    passes = learns or tune.tune_projector or keys_pass
    num_self = dit.num_layers // 2
    num_cross = dit.num_layers - num_self
    num_image_blocks = num_cross // 2
    num_text_blocks = num_cross - num_image_blocks
    keys = num_text_blocks * prompt.num_text + num_image_blocks * prompt.num_image
    modulation = 4 * square * (dit.num_layers + 1)
    tokenwise = 2 * tokens * (dit.num_layers * 10 * square + num_self * 2 * square)
    return (
        _cost(2 * dit.time_width * width, learns, False)
        + _cost(2 * square + modulation, learns, learns)
        + _cost(tokenwise + 2 * tokens * width * dit.output_width, learns, passes)
        + _cost(4 * keys * config.language.width * width, learns, keys_pass)
        + _attention(4 * tokens * width * (keys + num_self * tokens), passes)
    )


def _mlps(config: GrootConfig, tune: TuneFlags) -> Flops:
    """Returns the cost of the embodiment's encoders and decoder."""
    width, hidden, steps = config.dit.width, config.hidden_width, config.action_horizon
    learns = tune.tune_projector
    outside = config.max_state_dim * hidden + steps * config.max_action_dim * width
    inside = hidden * width + steps * 3 * width**2
    decoder = steps * hidden * (config.dit.output_width + config.max_action_dim)
    passes = learns or tune.tune_diffusion_model
    return (
        _cost(2 * outside, learns, False)
        + _cost(2 * inside, learns, learns)
        + _cost(2 * decoder, learns, passes)
    )
