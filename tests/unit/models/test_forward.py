"""The forward pass: dtypes, sampling, several embodiments, no value-dependent shape."""

from collections.abc import Mapping
from copy import deepcopy
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from models.groot_n1_6.batch import (
    Batch,
    BatchShape,
    Draws,
    field_shapes,
    synthetic_batch,
    synthetic_draws,
)
from models.groot_n1_6.config import GrootConfig, TuneFlags
from models.groot_n1_6.head.action_head import flow_loss, noisy_actions
from models.groot_n1_6.model import GrootN16, build
from models.groot_n1_6.weights import cast_parameters

NANO = GrootConfig.nano()
SHAPE = BatchShape(batch_size=3, frame_height=64, frame_width=64, num_text=20)


@cache
def _drawn(dtype: torch.dtype, seed: int) -> GrootN16:
    return build(NANO, dtype=dtype, seed=seed)


def nano(dtype: torch.dtype = torch.float32, seed: int = 0) -> GrootN16:
    """Returns a nano model of its own: a copy takes a quarter of what drawing its weights does."""
    return deepcopy(_drawn(dtype, seed))


@pytest.fixture(scope="module")
def batch() -> Batch:
    return synthetic_batch(NANO, SHAPE)


@pytest.fixture(scope="module")
def draws() -> Draws:
    return synthetic_draws(NANO, 3)


def gradients(model: GrootN16, batch: Batch, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns loss and gradients, without dropout."""
    model.eval().zero_grad()
    loss = model(batch, draws)
    torch.autograd.backward(loss)
    named = {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), named


def relative_error(value: Tensor, exact: Tensor) -> float:
    return float((value - exact).norm() / exact.norm())


@pytest.mark.parametrize(
    "trainable", [torch.bfloat16, torch.float32], ids=["all_bf16", "fp32_where_it_learns"]
)
def test_bfloat16_stays_near_float32(batch: Batch, draws: Draws, trainable: torch.dtype) -> None:
    """An error s before the decoder's ReLU flips s / pi of its units: 0.5 % there is 4 % here."""
    exact, reduced = nano(), nano()
    for model in (exact, reduced):
        model.activate_embodiments([0])
        cast_parameters(model, frozen=torch.bfloat16, trainable=torch.bfloat16)
    cast_parameters(exact, frozen=torch.float32, trainable=torch.float32)
    cast_parameters(reduced, frozen=torch.bfloat16, trainable=trainable)
    loss, grads = gradients(exact, batch, draws)
    rough_loss, rough_grads = gradients(reduced, batch, draws)
    assert rough_loss.dtype == torch.float32
    torch.testing.assert_close(rough_loss, loss, rtol=1e-2, atol=0)
    assert set(grads) == set(rough_grads)
    for name, grad in grads.items():
        if name.endswith("attn1.to_k.bias"):  # zero but for rounding: softmax ignores a shift
            assert rough_grads[name].norm() < 0.05 * grads[name.replace("to_k", "to_q")].norm()
            continue
        assert relative_error(rough_grads[name], grad) < 0.2, name
    whole, rough_whole = (
        torch.cat([g.flatten() for g in all_.values()]) for all_ in (grads, rough_grads)
    )
    assert relative_error(rough_whole, whole) < 0.06


@pytest.mark.parametrize("seed", [0, 1])
def test_each_gradient_is_near_float32_given_the_prefix_and_what_the_relus_let_pass(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is beyond 3e-2 comes from the frozen prefix's features and from flipped ReLUs alone."""
    batch, draws = synthetic_batch(NANO, SHAPE, seed=seed), synthetic_draws(NANO, 3, seed=seed)
    exact, rough = nano(seed=seed).eval(), nano(seed=seed).eval()
    for model in (exact, rough):
        model.activate_embodiments([0])
        cast_parameters(model, frozen=torch.bfloat16, trainable=torch.bfloat16)
    cast_parameters(exact, frozen=torch.float32, trainable=torch.float32)
    passed: list[Tensor] = []
    relu = functional.relu

    def recorded(x: Tensor) -> Tensor:
        passed.append(x > 0)
        return relu(x)

    monkeypatch.setattr(functional, "relu", recorded)
    features = exact.prefix(batch)
    loss = exact.head_loss(features, batch, draws)
    monkeypatch.setattr(functional, "relu", lambda x: x * passed.pop(0))
    rough_loss = rough.head_loss(features.bfloat16(), batch, draws)
    torch.autograd.backward([loss, rough_loss])
    assert float(rough_loss.detach()) == pytest.approx(float(loss.detach()), rel=1e-2)
    rough_of = dict(rough.named_parameters())
    for name, parameter in exact.named_parameters():
        grad, rough_grad = parameter.grad, rough_of[name].grad
        if grad is None or name.endswith("attn1.to_k.bias"):  # zero but for rounding
            continue
        assert rough_grad is not None
        assert relative_error(rough_grad.float(), grad) < 3e-2, name


def test_the_dits_residual_stream_is_float32_under_bfloat16(batch: Batch, draws: Draws) -> None:
    model = nano(dtype=torch.bfloat16)
    seen: set[torch.dtype] = set()
    for block in model.action_head.model.transformer_blocks:
        block.register_forward_hook(lambda _, __, out: seen.add(out.dtype))
    features = model.prefix(batch)
    model.head_loss(features, batch, draws)
    assert features.dtype == torch.bfloat16
    assert seen == {torch.float32}


def test_loss_is_the_masked_mean_of_the_squared_velocity_error() -> None:
    action, noise = torch.randn(2, 4, 3), torch.randn(2, 4, 3)
    mask = torch.zeros(2, 4, 3)
    mask[:, :2, :2] = 1
    predicted = torch.randn(2, 4, 3)
    expected = (predicted - (action - noise)).square()[mask.bool()].mean()
    torch.testing.assert_close(flow_loss(predicted, action - noise, mask), expected)


def test_noisy_actions_run_from_noise_to_actions() -> None:
    action, noise = torch.randn(3, 4, 2), torch.randn(3, 4, 2)
    time = torch.tensor([0.0, 0.25, 0.999])
    expected = (1 - time[:, None, None]) * noise + time[:, None, None] * action
    torch.testing.assert_close(noisy_actions(action, noise, time), expected)


def test_time_reaches_the_head_as_a_truncated_bucket(
    batch: Batch, draws: Draws, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nano()
    seen: list[Tensor] = []
    encoder = model.action_head.model.timestep_encoder
    encoder.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    times = torch.tensor([0.0, 0.5006, 0.9989])
    model.head_loss(model.prefix(batch), batch, {**draws, "time_B": times})
    assert seen[0].tolist() == [0, 500, 998]


def test_sampling_takes_four_euler_steps_at_the_public_buckets(batch: Batch) -> None:
    model = nano().eval()
    buckets: list[int] = []
    velocities: list[Tensor] = []
    head = model.action_head
    head.model.timestep_encoder.register_forward_pre_hook(
        lambda _, args: buckets.append(int(args[0][0]))
    )
    noise = torch.randn(3, 16, 64)
    predict = head.velocity

    def recorded(*args: object) -> Tensor:
        velocities.append(predict(*args))  # type: ignore[arg-type]
        return velocities[-1]

    head.velocity = recorded  # type: ignore[method-assign, assignment]
    actions = model.sample_actions(model.prefix(batch), batch, noise)
    assert buckets == [0, 250, 500, 750]
    torch.testing.assert_close(actions, noise + sum(velocities) / 4)
    assert not actions.requires_grad


def test_a_mixed_batch_gives_each_sample_its_own_slot(batch: Batch, draws: Draws) -> None:
    slots = torch.tensor([3, 1, 3])
    mixed = {**batch, "embodiment_B": slots}
    whole, several = nano().eval(), nano().eval()
    several.activate_embodiments([1, 3])
    expected = whole(mixed, draws)
    torch.testing.assert_close(several(mixed, draws), expected, rtol=1e-6, atol=1e-6)
    numerator = torch.zeros(())
    for row in range(3):
        single = nano().eval()
        single.activate_embodiments([int(slots[row])])
        own = {name: field[row : row + 1] for name, field in mixed.items()}
        own_draws = {name: draw[row : row + 1] for name, draw in draws.items()}
        numerator = numerator + single(own, own_draws)
    torch.testing.assert_close(numerator / 3, expected, rtol=1e-5, atol=1e-6)


def test_resting_slots_get_no_gradient_and_one_slot_no_gather(batch: Batch, draws: Draws) -> None:
    model = nano()
    model.activate_embodiments([1])
    layer = model.action_head.action_encoder.W2
    assert layer.W.shape == (1, 480, 240)
    assert layer.resting["W"].shape == (4, 480, 240)
    model(batch, draws).backward()
    assert layer.W.grad is not None
    assert layer.W.grad.shape == (1, 480, 240)


@pytest.mark.parametrize("slots", [[], [4], [1, 1], [-1]])
def test_slots_that_are_not_there_are_refused(slots: list[int]) -> None:
    with pytest.raises(ValueError, match=r"0 to 3.*known tags"):
        nano().activate_embodiments(slots)


def test_hidden_states_are_drawn_in_training_only(batch: Batch, draws: Draws) -> None:
    model = build(NANO.with_state_dropout(0.999999))
    other = {**batch, "state_B1W": batch["state_B1W"] + 1}
    model.action_head.model.eval()
    assert torch.equal(model(batch, draws), model(other, draws))
    model.eval()
    assert not torch.equal(model(batch, draws), model(other, draws))


@pytest.mark.parametrize("size", ["nano", pytest.param("3b", marks=pytest.mark.slow)])
@pytest.mark.parametrize("tune", [TuneFlags(), TuneFlags(tune_visual=True, tune_llm=True)])
def test_no_step_looks_at_a_value(size: str, tune: TuneFlags) -> None:
    """Tensors without storage have no values: what runs on them can be captured."""
    config = GrootConfig.of_size(size)
    model = build(config, tune=tune, device="meta").train()
    model.activate_embodiments([0])
    fields = field_shapes(config, BatchShape(batch_size=2))
    batch = empty(fields)
    shapes = model.draw_shapes(2)
    draws = empty({name: (shape, torch.float32) for name, shape in shapes.items()})
    model(batch, draws).backward()


def empty(fields: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> dict[str, Tensor]:
    return {
        name: torch.empty(shape, dtype=dtype, device="meta")
        for name, (shape, dtype) in fields.items()
    }


def test_tuning_the_whole_prefix_gives_it_gradients(batch: Batch, draws: Draws) -> None:
    model = build(NANO, tune=TuneFlags(tune_visual=True, tune_llm=True))
    assert not model.frozen_prefix
    _, grads = gradients(model, batch, draws)
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    assert set(grads) == learning
    assert "backbone.model.vision_model.vision_model.embeddings.patch_embedding.weight" in grads
    assert not any(".head." in name or "lm_head" in name for name in grads)


@pytest.mark.slow
def test_thirty_steps_fit_one_batch(batch: Batch, draws: Draws) -> None:
    model = nano().train()
    model.activate_embodiments([0])
    model.set_generator(torch.Generator().manual_seed(0))
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=1e-3)
    features = model.prefix(batch)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = model.head_loss(features, batch, draws)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.4 * losses[0]
