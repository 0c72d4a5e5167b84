"""The nano size: what the foundation and its budget ask of it."""

import pytest
import torch
from torch import nn

from models.groot_n1_6.batch import (
    BatchShape,
    check_batch,
    field_shapes,
    synthetic_batch,
    synthetic_draws,
)
from models.groot_n1_6.config import GrootConfig, TuneFlags
from models.groot_n1_6.model import GrootN16, build

SHAPE = BatchShape(batch_size=3, frame_height=64, frame_width=64, num_text=20)
MAX_TENSOR_BYTES = 2 * 2**20


@pytest.fixture(scope="module")
def nano() -> GrootN16:
    model = build(GrootConfig.nano())
    model.activate_embodiments([0])
    return model


def test_trainable_parameters_fit_the_budget(nano: GrootN16) -> None:
    sizes = [p.numel() for p in nano.parameters() if p.requires_grad]
    assert 8_000_000 <= sum(sizes) <= 12_000_000
    assert len(sizes) >= 100


def test_no_tensor_is_over_two_mebibytes_before_activation_either() -> None:
    model = build(GrootConfig.nano(), device="meta")
    assert max(p.numel() * 4 for p in model.parameters()) <= MAX_TENSOR_BYTES


def test_every_trainable_tensor_and_no_other_gets_a_finite_gradient(nano: GrootN16) -> None:
    batch, draws = synthetic_batch(nano.config, SHAPE), synthetic_draws(nano.config, 3)
    nano.zero_grad()
    loss = nano.head_loss(nano.prefix(batch), batch, draws)
    torch.autograd.backward(loss)
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss)
    for name, parameter in nano.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name
            assert parameter.grad.abs().max() > 0, name
        else:
            assert parameter.grad is None, name


def test_prefix_holds_no_autograd_graph(nano: GrootN16) -> None:
    assert nano.frozen_prefix
    features = nano.prefix(synthetic_batch(nano.config, SHAPE))
    assert not features.requires_grad


def test_the_methods_read_only_the_fields_they_declare(nano: GrootN16) -> None:
    batch, draws = synthetic_batch(nano.config, SHAPE), synthetic_draws(nano.config, 3)
    features = nano.prefix({name: batch[name] for name in nano.prefix_fields})
    loss = nano.head_loss(features, {name: batch[name] for name in nano.head_fields}, draws)
    assert torch.isfinite(loss)
    assert {name: tuple(draw.shape) for name, draw in draws.items()} == nano.draw_shapes(3)


def test_synthetic_batch_matches_the_declared_fields() -> None:
    config = GrootConfig.nano()
    batch = synthetic_batch(config, SHAPE)
    check_batch(batch, config, SHAPE)
    assert set(batch) == set(field_shapes(config, SHAPE))
    image = batch["input_ids_BL"].gather(1, batch["image_index_BN"])
    assert (image == config.language.image_token_id).all()
    text = batch["input_ids_BL"].gather(1, batch["text_index_BX"])
    assert (text[batch["text_valid_BX"]] != config.language.image_token_id).all()
    num_text = batch["text_valid_BX"].sum(1)
    assert torch.equal(num_text + batch["image_index_BN"].shape[1], batch["valid_len_B"])


def test_check_batch_names_the_field_that_does_not_fit() -> None:
    config = GrootConfig.nano()
    batch = synthetic_batch(config, SHAPE)
    batch["state_B1W"] = batch["state_B1W"][..., :7]
    with pytest.raises(ValueError, match=r"state_B1W .* \[3, 1, 64\].* \[3, 1, 7\]"):
        check_batch(batch, config, SHAPE)


def test_one_seed_gives_one_model_and_one_loss() -> None:
    config = GrootConfig.nano()
    batch, draws = synthetic_batch(config, SHAPE), synthetic_draws(config, 3)
    losses = []
    for _ in range(2):
        model = build(config, seed=3).train()
        model.set_generator(torch.Generator().manual_seed(5))
        losses.append(model(batch, draws))
    assert torch.equal(losses[0], losses[1])


def test_dropout_follows_the_session_generator_and_stops_in_eval(nano: GrootN16) -> None:
    batch, draws = synthetic_batch(nano.config, SHAPE), synthetic_draws(nano.config, 3)
    features = nano.prefix(batch)
    generator = torch.Generator()
    nano.set_generator(generator)

    def loss(seed: int) -> float:
        generator.manual_seed(seed)
        return nano.head_loss(features, batch, draws).item()

    nano.train()
    assert loss(1) == loss(1)
    assert loss(1) != loss(2)
    nano.eval()
    assert loss(1) == loss(2)
    nano.train()
    nano.set_generator(None)


def test_padding_columns_and_masked_cells_do_not_matter(nano: GrootN16) -> None:
    batch, draws = synthetic_batch(nano.config, SHAPE), synthetic_draws(nano.config, 3)
    nano.eval()
    before = nano(batch, draws)
    columns = torch.arange(batch["input_ids_BL"].shape[1])
    padding = columns >= batch["valid_len_B"][:, None]
    assert padding.any()
    batch["input_ids_BL"] = batch["input_ids_BL"].masked_fill(padding, 7)
    batch["text_index_BX"] = batch["text_index_BX"].masked_fill(~batch["text_valid_BX"], 5)
    torch.testing.assert_close(nano(batch, draws), before, rtol=1e-6, atol=1e-6)
    nano.train()


def test_a_frozen_dit_has_no_dropout() -> None:
    model = build(GrootConfig.nano(), tune=TuneFlags(tune_diffusion_model=False)).train()
    assert not model.action_head.model.training
    assert model.action_head.training


def test_an_unknown_embodiment_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"new_embodiment, libero_panda, gr1.*'spot'"):
        GrootConfig.nano().slot("spot")


def test_nothing_is_drawn_before_it_has_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A normal draw on the meta device makes torch import its compiler, for three seconds."""

    def refuse(*values: object, **options: object) -> None:
        raise AssertionError("drawn on the meta device")

    monkeypatch.setattr(nn.init, "normal_", refuse)
    monkeypatch.setattr(torch, "randn", refuse)
    build(GrootConfig.nano(), device="meta")
