"""The head's blocks as functions: the model's own numbers, gradients and dropout rates."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lf_ray.runtime.kernels.fused_head import FusedDit, TunedLanguage, fuse_head
from lf_ray.runtime.kernels.head_blocks import drop, random_bits
from models.groot_n1_6.batch import BatchShape, synthetic_batch, synthetic_draws
from models.groot_n1_6.config import GrootConfig
from models.groot_n1_6.model import GrootN16, build

Gradients = dict[str, Tensor]


def nano() -> tuple[GrootN16, Callable[[], tuple[float, Gradients]]]:
    config = GrootConfig.nano()
    model = build(config)
    model.activate_embodiments([1])
    frames = {"frame_height": 56, "frame_width": 56}
    batch = synthetic_batch(config, BatchShape(batch_size=2, num_text=20, **frames), slot=1)
    draws = synthetic_draws(config, 2)

    def loss_and_gradients() -> tuple[float, Gradients]:
        model.zero_grad(set_to_none=True)
        model.set_generator(torch.Generator().manual_seed(3))
        loss = model.head_loss(model.prefix(batch), batch, draws)
        loss.backward()  # type: ignore[no-untyped-call]
        named = model.named_parameters()
        return float(loss.detach()), {
            name: parameter.grad.clone() for name, parameter in named if parameter.grad is not None
        }

    return model, loss_and_gradients


def fuse(model: GrootN16) -> None:
    """Fuses without the check for a GPU, and without compiling."""
    dit, language = model.action_head.model, model.backbone.model.language_model.model
    num_frozen = model.config.num_frozen_layers(model.tune)
    dit.forward = FusedDit(dit, compile_blocks=False).forward  # type: ignore[method-assign]
    language.run = TunedLanguage(language, num_frozen, compile_blocks=False).run  # type: ignore[method-assign]


def test_without_dropout_loss_and_gradients_are_the_models_own() -> None:
    model, run = nano()
    model.eval()
    own_loss, own = run()
    fuse(model)
    loss, gradients = run()
    assert loss == pytest.approx(own_loss, rel=1e-6)
    assert gradients.keys() == own.keys()
    for name, gradient in gradients.items():
        # a key bias moves all scores of a query alike: its gradient is zero but for rounding
        if not name.endswith("to_k.bias"):
            torch.testing.assert_close(gradient, own[name], rtol=1e-3, atol=1e-6, msg=name)


def test_dropout_follows_the_generator_and_changes_the_loss() -> None:
    model, run = nano()
    fuse(model)
    model.train()
    first, _ = run()
    second, _ = run()
    model.eval()
    without, _ = run()
    assert first == second
    assert first != without


@pytest.mark.parametrize("keep", [0.8, 0.64])
def test_bits_keep_the_asked_share_and_the_mean(keep: float) -> None:
    x = torch.ones(64, 100, 1001)
    bits = random_bits(x, 1001, torch.Generator().manual_seed(0))
    assert bits.shape == (64, 100, 1004)
    kept = drop(x, bits[..., :1001], keep)
    assert float((kept != 0).float().mean()) == pytest.approx(keep, abs=1e-3)
    assert float(kept.mean()) == pytest.approx(1.0, abs=2e-3)


def test_a_cpu_keeps_the_models_own_code_and_says_why() -> None:
    model, _ = nano()
    before = model.action_head.model.forward
    reason = fuse_head(model)
    assert reason is not None
    assert "cpu" in reason
    assert model.action_head.model.forward == before
