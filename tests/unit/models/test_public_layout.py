"""The 3b size against the public checkpoint's layout: keys, shapes, counts, tuning flags, FLOPs."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from models.groot_n1_6 import weights
from models.groot_n1_6.batch import BatchShape, field_shapes
from models.groot_n1_6.config import GrootConfig, TuneFlags
from models.groot_n1_6.flops import Flops, PromptShape, flops_per_sample, total
from models.groot_n1_6.model import GrootN16, build

FACTS = Path(__file__).resolve().parents[4] / "shared" / "facts" / "groot_n1_6_state_dict.json"
# sha256 of the sorted "key:d0,d1" lines of the public file's 1106 tensors
LAYOUT_SHA256 = "0f2f691f4c9e4a0186fec53acca07fe7e2772862d593b3521334959884cd231b"
BRANCHES = {
    "backbone.model.vision_model.": 448,
    "backbone.model.mlp1.": 6,
    "backbone.model.language_model.": 179,
    "action_head.model.": 456,
    "action_head.state_encoder.": 4,
    "action_head.action_encoder.": 6,
    "action_head.action_decoder.": 4,
    "action_head.position_embedding.": 1,
    "action_head.vlln.": 2,
}
LANGUAGE_LAYER = 50_336_000
EMBED = 310_640_640
CATEGORY = 325_324_800
PARTS = {
    "vision": 427_680_704,
    "connector": 13_644_800,
    "dit": 1_091_722_240,
    "position": 1_572_864,
    "vlln": 4_096,
}


@pytest.fixture(scope="module")
def public() -> GrootN16:
    return build(GrootConfig.public_3b(), device="meta")


def trainable(model: GrootN16) -> tuple[int, int]:
    """Returns trainable values and tensors."""
    sizes = [p.numel() for p in model.parameters() if p.requires_grad]
    return sum(sizes), len(sizes)


def layout_lines(model: GrootN16) -> list[str]:
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return sorted(f"{name}:{','.join(map(str, shape))}" for name, shape in shapes.items())


def test_keys_and_shapes_are_those_of_the_public_file(public: GrootN16) -> None:
    if not FACTS.is_file():
        pytest.skip("needs groot_n1_6_state_dict.json in ../shared/facts beside the project")
    stated = json.loads(FACTS.read_text())
    ours = {name: list(tensor.shape) for name, tensor in public.state_dict().items()}
    assert ours == stated


def test_layout_hash_and_counts(public: GrootN16) -> None:
    lines = layout_lines(public)
    assert len(lines) == 1106
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == LAYOUT_SHA256
    for prefix, count in BRANCHES.items():
        assert sum(line.startswith(prefix) for line in lines) == count, prefix
    assert sum(p.numel() for p in public.parameters()) == 3_286_608_832


def test_default_flags_train_what_the_recipe_trains(public: GrootN16) -> None:
    assert trainable(public) == (1_619_968_000, 517)
    names = [name for name, p in public.named_parameters() if p.requires_grad]
    assert sum(name.startswith("action_head.") for name in names) == 473
    assert sum(name.startswith("backbone.") for name in names) == 44


def test_one_active_embodiment_leaves_the_resting_slots_out() -> None:
    model = build(GrootConfig.public_3b(), device="meta")
    model.activate_embodiments([2])
    assert trainable(model) == (1_304_809_600, 517)


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"tune_top_llm_layers": 0}, 1_619_968_000 - 4 * LANGUAGE_LAYER),
        ({"tune_top_llm_layers": 2}, 1_619_968_000 - 2 * LANGUAGE_LAYER),
        ({"tune_llm": True}, 1_619_968_000 + 12 * LANGUAGE_LAYER + EMBED + 2_048),
        ({"tune_visual": True}, 1_619_968_000 + PARTS["vision"] - 15_238_352 + PARTS["connector"]),
        ({"tune_projector": False}, 1_619_968_000 - CATEGORY - PARTS["position"]),
        ({"tune_diffusion_model": False}, 1_619_968_000 - PARTS["dit"]),
        ({"tune_vlln": False}, 1_619_968_000 - PARTS["vlln"]),
    ],
)
def test_tuning_flags(changes: dict[str, bool | int], values: int) -> None:
    tune = TuneFlags(**changes)  # type: ignore[arg-type]
    model = build(GrootConfig.public_3b(), tune=tune, device="meta")
    assert trainable(model)[0] == values
    assert model.frozen_prefix == (not tune.tune_llm and not tune.tune_visual)


def test_state_dropout_adds_one_trainable_token() -> None:
    config = GrootConfig.public_3b().with_state_dropout(0.8)
    model = build(config, device="meta")
    assert trainable(model) == (1_619_968_000 + 1536, 518)
    assert model.state_dict()["action_head.mask_token"].shape == (1, 1, 1536)


def test_keys_command_lists_every_key_without_allocating(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert weights.main(["keys", "3b"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 1106
    assert all(len(row) == 4 for row in rows)
    assert sum(row[3] == "trainable" for row in rows) == 517
    assert ["action_head.vlln.weight", "[2048]", "bfloat16", "trainable"] in rows


def test_flops_equal_the_published_table() -> None:
    """GFLOP of two 252 px views, 220 columns, causal pairs counted half (facts, part 7)."""
    parts = flops_per_sample(GrootConfig.public_3b(), PromptShape(causal_frac=0.5))
    stated = {
        "vision": (559.75, 0.0),
        "connector": (4.42, 0.0),
        "language_prefix": (268.13, 0.0),
        "language_head": (89.38, 178.75),
        "mlps": (0.85, 1.68),
    }
    for name, (forward, backward) in stated.items():
        assert parts[name].forward / 1e9 == pytest.approx(forward, abs=0.006), name
        assert parts[name].backward / 1e9 == pytest.approx(backward, abs=0.006), name


def meta_batch(config: GrootConfig, prompt: PromptShape) -> dict[str, torch.Tensor]:
    """Returns the head's fields of one sample, without storage."""
    shape = BatchShape(batch_size=1, num_views=0, num_text=prompt.num_text)
    fields = field_shapes(config, shape)
    batch = {
        name: torch.empty(size, dtype=dtype, device="meta")
        for name, (size, dtype) in fields.items()
    }
    batch["image_index_BN"] = torch.empty(1, prompt.num_image, dtype=torch.int64, device="meta")
    return batch


def count(step: Callable[[], torch.Tensor]) -> Flops:
    """Returns what torch counts for a computation and its gradient."""
    counter = FlopCounterMode(display=False)
    with counter:
        out = step()
    forward = counter.get_total_flops()
    with counter:
        if out.requires_grad:
            torch.autograd.backward(out.sum())
    return Flops(forward=forward, backward=counter.get_total_flops())


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        pytest.param("3b", {}, marks=pytest.mark.slow),
        ("nano", {}),
        ("nano", {"tune_visual": True, "tune_llm": True}),
        ("nano", {"tune_top_llm_layers": 0, "tune_vlln": False}),
        ("nano", {"tune_diffusion_model": False}),
        ("nano", {"tune_projector": False}),
    ],
)
def test_flops_equal_torchs_counter(size: str, changes: dict[str, bool | int]) -> None:
    """At 16 x 16 patches (4 x 4 for nano) the table of positions needs no resizing."""
    tune = TuneFlags(**changes)  # type: ignore[arg-type]
    config = GrootConfig.of_size(size).with_views(224 if size == "3b" else 56)
    prompt = PromptShape(num_views=2, view_tokens=config.square_view_tokens, length=180)
    model = build(config, tune=tune, device="meta")
    model.activate_embodiments([0])
    draws = {
        name: torch.empty(shape, device="meta") for name, shape in model.draw_shapes(1).items()
    }
    batch = meta_batch(config, prompt)
    pixels = torch.empty(2, 3, config.image_px, config.image_px, device="meta")
    embedded = torch.empty(1, prompt.length, config.language.width, device="meta")
    embedded.requires_grad_(not model.frozen_prefix)

    def after_vision() -> torch.Tensor:
        language, num_layers = (
            model.backbone.model.language_model.model,
            config.num_frozen_layers(tune),
        )
        with torch.set_grad_enabled(not model.frozen_prefix):
            features = language.run(embedded, 0, num_layers)
        return model.head_loss(features, batch, draws)

    parts = flops_per_sample(config, prompt, tune)
    vision = parts.pop("vision") + parts.pop("connector")
    assert vision == count(lambda: model.encode_views(pixels))
    assert total(parts) == count(after_vision)
