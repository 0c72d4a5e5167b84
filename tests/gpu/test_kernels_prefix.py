"""The fused prefix against the model's own: as near to float32 as bf16 layers are."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lf_ray.runtime.kernels.frozen_prefix import fuse_prefix
from models.groot_n1_6.batch import BatchShape, synthetic_batch
from models.groot_n1_6.config import GrootConfig, TuneFlags
from models.groot_n1_6.model import GrootN16, build

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = torch.device("cuda")


def small_config() -> GrootConfig:
    """Returns public widths of the heads, few layers."""
    config = GrootConfig.public_3b().with_views(112)
    return replace(
        config,
        vision=replace(config.vision, num_layers=3),
        language=replace(config.language, num_layers=5, vocab_size=2000, image_token_id=1990),
        dit=replace(config.dit, num_layers=4),
    )


def model_and_batch(dtype: torch.dtype) -> tuple[GrootN16, dict[str, Tensor]]:
    config = small_config()
    model = build(
        config, device=DEVICE, dtype=torch.bfloat16, tune=TuneFlags(tune_top_llm_layers=2)
    )
    model.activate_embodiments([2])
    generator = torch.Generator(DEVICE).manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.is_cuda and ("norm" in name or name.endswith("bias")):
                noise = torch.randn(parameter.shape, device=DEVICE, generator=generator)
                parameter.add_(0.1 * noise)
    shape = BatchShape(batch_size=3, num_text=21)
    batch = synthetic_batch(config, shape, slot=2)
    return model.to(dtype), {name: tensor.to(DEVICE) for name, tensor in batch.items()}


def distance(value: Tensor, exact: Tensor) -> float:
    return float((value.float() - exact).norm() / exact.norm())


def test_the_fused_prefix_is_as_exact_as_the_models_own() -> None:
    exact_model, batch = model_and_batch(torch.float32)
    model, _ = model_and_batch(torch.bfloat16)
    with torch.no_grad():
        exact = exact_model.prefix(batch)
        own = model.prefix(batch)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        assert fuse_prefix(model) is None
        fused = model.prefix(batch)
        again = model.prefix(batch)
    assert torch.equal(fused, again)
    assert distance(fused, exact) <= 1.1 * distance(own, exact)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_the_layers_that_learn_still_run_the_models_own_code() -> None:
    model, batch = model_and_batch(torch.bfloat16)
    language = model.backbone.model.language_model.model
    x = torch.randn(3, 53, 2048, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    own = language.run(x, 3, 5)
    fuse_prefix(model)
    assert torch.equal(language.run(x, 3, 5), own)
    assert language.run(x, 0, 3).requires_grad
    assert batch


def test_without_a_frozen_prefix_nothing_is_replaced() -> None:
    model = build(small_config(), device=DEVICE, tune=TuneFlags(tune_visual=True))
    reason = fuse_prefix(model)
    assert reason is not None
    assert "frozen prefix" in reason


@pytest.mark.parametrize("width", [96, 1152, 2048])
@pytest.mark.parametrize("with_bias", [False, True])
def test_adding_and_norming_in_one_pass(width: int, with_bias: bool) -> None:
    from lf_ray.runtime.kernels.layer_ops import add_norm

    stream, delta = torch.randn(2, 77, width, device=DEVICE).bfloat16().unbind(0)
    weight = torch.rand(width, device=DEVICE).bfloat16()
    bias = torch.randn(width, device=DEVICE).bfloat16() if with_bias else None
    summed, normed = add_norm(stream, delta, weight, bias, 1e-6)
    assert torch.equal(summed, stream + delta)
    plain = (stream + delta).float()
    if bias is None:
        expected = functional.rms_norm(plain, (width,), weight.float(), 1e-6)
    else:
        expected = functional.layer_norm(plain, (width,), weight.float(), bias.float(), 1e-6)
    torch.testing.assert_close(normed.float(), expected, rtol=2**-8, atol=2**-8)
