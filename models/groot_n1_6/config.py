"""The sizes of a GR00T N1.6: one frozen description that every part is built from.

Plain data without torch, so that data workers, checks and planners can read it. `public_3b` is the
public checkpoint's architecture; `nano` is the same architecture, small enough for a CPU core.
"""

from dataclasses import dataclass, field, replace

PUBLIC_SLOTS = (
    ("oxe_google", 0),
    ("oxe_widowx", 1),
    ("libero_panda", 2),
    ("unitree_g1", 8),
    ("new_embodiment", 10),
    ("robocasa_panda_omron", 13),
    ("oxe_droid", 16),
    ("gr1", 20),
    ("behavior_r1_pro", 24),
)


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """The SigLIP2 tower: a plain pre-norm ViT with full attention in each image.

    Attributes:
        table_side: side of the square table of learned positions, in patches.
    """

    width: int = 1152
    num_layers: int = 27
    num_heads: int = 16
    mlp_width: int = 4304
    patch_px: int = 14
    table_side: int = 16
    eps: float = 1e-6

    @property
    def patch_width(self) -> int:
        """Returns the values of one patch."""
        return 3 * self.patch_px**2


@dataclass(frozen=True, kw_only=True)
class LanguageConfig:
    """The lower layers of Qwen3.

    Attributes:
        image_token_id: the placeholder whose embedding rows are replaced by image features.
    """

    vocab_size: int = 151_680
    width: int = 2048
    num_layers: int = 16
    num_heads: int = 16
    num_kv_heads: int = 8
    head_width: int = 128
    mlp_width: int = 6144
    rope_theta: float = 1e6
    eps: float = 1e-6
    image_token_id: int = 151_669


@dataclass(frozen=True, kw_only=True)
class DitConfig:
    """The AlternateVLDiT: even blocks attend to text or image tokens, odd blocks to themselves.

    Attributes:
        max_positions: rows of the table of action positions; the first `action_horizon` are used.
    """

    num_layers: int = 32
    num_heads: int = 32
    head_width: int = 48
    output_width: int = 1024
    dropout_prob: float = 0.2
    time_width: int = 256
    max_positions: int = 1024

    @property
    def width(self) -> int:
        """Returns the width of the residual stream."""
        return self.num_heads * self.head_width

    @property
    def mlp_width(self) -> int:
        """Returns the width of the hidden layer."""
        return 4 * self.width


@dataclass(frozen=True, kw_only=True)
class TuneFlags:
    """Which parts learn; names and defaults are those of the public recipe."""

    tune_llm: bool = False
    tune_visual: bool = False
    tune_top_llm_layers: int = 4
    tune_projector: bool = True
    tune_diffusion_model: bool = True
    tune_vlln: bool = True


@dataclass(frozen=True, kw_only=True)
class GrootConfig:
    """A whole GR00T N1.6.

    Attributes:
        image_px: side in pixels of a square view as the tower sees it.
        shortest_edge_px: shortest side of a view before and after the crop.
        crop_frac: share of each side that the crop keeps.
        hidden_width: of the state encoder and the action decoder.
        num_slots: embodiments that the category-specific layers have weights for.
        slots: embodiment tags and their slots.
        prompt_step: columns that the fixed length of prompts is a multiple of.
        state_dropout_prob: chance that a sample's state is replaced by the mask token.
    """

    size: str = "3b"
    vision: VisionConfig = field(default_factory=VisionConfig)
    language: LanguageConfig = field(default_factory=LanguageConfig)
    dit: DitConfig = field(default_factory=DitConfig)
    image_px: int = 252
    shortest_edge_px: int = 256
    crop_frac: float = 0.95
    action_horizon: int = 50
    max_action_dim: int = 128
    max_state_dim: int = 128
    hidden_width: int = 1024
    num_slots: int = 32
    slots: tuple[tuple[str, int], ...] = PUBLIC_SLOTS
    num_time_buckets: int = 1000
    prompt_step: int = 20
    state_dropout_prob: float = 0.0

    @classmethod
    def public_3b(cls) -> "GrootConfig":
        """Returns the architecture of the public checkpoint."""
        return cls()

    @classmethod
    def nano(cls) -> "GrootConfig":
        """Returns the size for a CPU core: the same parts, eight million values that learn."""
        return cls(
            size="nano",
            vision=VisionConfig(width=96, num_layers=2, num_heads=3, mlp_width=256, table_side=4),
            language=LanguageConfig(
                vocab_size=512,
                width=96,
                num_layers=5,
                num_heads=4,
                num_kv_heads=2,
                head_width=24,
                mlp_width=320,
                image_token_id=3,
            ),
            dit=DitConfig(
                num_layers=8,
                num_heads=5,
                output_width=128,
                time_width=1024,
                max_positions=2048,
            ),
            image_px=56,
            shortest_edge_px=56,
            action_horizon=16,
            max_action_dim=64,
            max_state_dim=64,
            hidden_width=512,
            num_slots=4,
            prompt_step=4,
            slots=(("new_embodiment", 0), ("libero_panda", 1), ("gr1", 2), ("oxe_droid", 3)),
        )

    @classmethod
    def of_size(cls, size: str) -> "GrootConfig":
        """Returns the configuration called `size`.

        Raises:
            ValueError: there is none of that name.
        """
        known = {"nano": cls.nano, "3b": cls.public_3b}
        if size not in known:
            raise ValueError(f"model size is one of {', '.join(known)}, but got {size!r}")
        return known[size]()

    def with_views(self, image_px: int) -> "GrootConfig":
        """Returns a copy whose square views have another side.

        The public geometry resizes to 256 px and lands on 252; other sides keep the two equal.
        """
        edge_px = 256 if image_px == 252 else image_px
        return replace(self, image_px=image_px, shortest_edge_px=edge_px)

    def with_state_dropout(self, prob: float) -> "GrootConfig":
        """Returns a copy that hides each sample's state with this chance in training."""
        return replace(self, state_dropout_prob=prob)

    def slot(self, tag: str) -> int:
        """Returns the slot of an embodiment tag.

        Raises:
            ValueError: the tag has no slot; the known tags are listed.
        """
        slots = dict(self.slots)
        if tag not in slots:
            raise ValueError(
                f"an embodiment of model size {self.size} is one of {', '.join(slots)}, "
                f"but got {tag!r}"
            )
        return slots[tag]

    @property
    def token_px(self) -> int:
        """Returns the side in pixels of the square that one image token stands for."""
        return 2 * self.vision.patch_px

    @property
    def square_view_tokens(self) -> int:
        """Returns the image tokens of one square view."""
        return (self.image_px // self.token_px) ** 2

    def num_frozen_layers(self, tune: TuneFlags) -> int:
        """Returns how many of the lowest language layers no update touches."""
        if tune.tune_llm:
            return 0
        return max(self.language.num_layers - tune.tune_top_llm_layers, 0)
