"""GR00T N1.6 on a GPU: capturable whole, fast kernels, bfloat16 near float32, cost at full size.

Each measuring test prints one JSON line (what, n, median and interval), so that a run leaves
evidence.
"""

import gc
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from models.groot_n1_6.batch import Batch, BatchShape, Draws, synthetic_batch, synthetic_draws
from models.groot_n1_6.config import GrootConfig
from models.groot_n1_6.flops import PromptShape, flops_per_sample
from models.groot_n1_6.model import GrootN16, build
from models.groot_n1_6.views.preprocess import preprocess_views
from models.groot_n1_6.vision import patchify
from models.groot_n1_6.weights import cast_parameters

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
NANO, PUBLIC = GrootConfig.nano(), GrootConfig.public_3b()
NUM_REPLAYS = 12
WARM_UPS = 3


@pytest.fixture(autouse=True)
def free_memory() -> Iterator[None]:
    """Gives device memory back between tests."""
    yield
    gc.collect()
    torch.cuda.empty_cache()


def inputs(config: GrootConfig, batch_size: int, frame_px: int = 256) -> tuple[Batch, Draws]:
    """Returns a synthetic batch and draws on the GPU, 220 columns for the public size."""
    num_text = 58 if config.size == "3b" else 24
    shape = BatchShape(
        batch_size=batch_size, frame_height=frame_px, frame_width=frame_px, num_text=num_text
    )
    batch = {name: t.cuda() for name, t in synthetic_batch(config, shape).items()}
    return batch, {name: t.cuda() for name, t in synthetic_draws(config, batch_size).items()}


def active_model(config: GrootConfig, dtype: torch.dtype = torch.bfloat16) -> GrootN16:
    model = build(config, device="cuda", dtype=dtype)
    model.activate_embodiments([config.slots[0][1]])
    return model


def gradients(model: GrootN16) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def relative_error(value: Tensor, exact: Tensor) -> float:
    return float((value.float() - exact.float()).norm() / exact.float().norm())


class Captured:
    """A computation as a CUDA graph, warmed up and captured on one side stream."""

    def __init__(
        self, run: Callable[[], Tensor], generator: torch.Generator | None, model: GrootN16
    ) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                run()
        model.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        if generator is not None:
            self.graph.register_generator_state(generator)
        with torch.cuda.graph(self.graph, stream=stream):
            self.out = run()

    def replay(self) -> Tensor:
        """Runs the graph; the result is overwritten by the next replay."""
        self.graph.replay()
        return self.out

    def median_ms(self) -> tuple[float, float, float]:
        """Returns the median of some replays, and the second smallest and largest."""
        times = []
        for _ in range(NUM_REPLAYS):
            start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            start.record()
            self.graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        times.sort()
        return times[len(times) // 2], times[1], times[-2]


def test_a_whole_step_is_captured_and_equals_the_eager_one() -> None:
    model = active_model(NANO).train()
    generator = torch.Generator("cuda")
    model.set_generator(generator)
    batch, draws = inputs(NANO, 4, 64)

    def step() -> Tensor:
        loss: Tensor = model(batch, draws)
        torch.autograd.backward(loss)
        return loss.detach()

    eager = {}
    for seed in (1, 2):
        model.zero_grad(set_to_none=True)
        generator.manual_seed(seed)
        loss = step()
        eager[seed] = loss.clone(), {name: g.clone() for name, g in gradients(model).items()}
    assert not torch.equal(eager[1][0], eager[2][0])
    captured = Captured(step, generator, model)
    held = gradients(model)
    for seed in (2, 1, 2):
        for grad in held.values():
            grad.zero_()
        generator.manual_seed(seed)
        loss, grads = eager[seed]
        assert torch.equal(captured.replay(), loss)
        for name, grad in held.items():
            if not name.endswith("to_k.bias"):  # zero but for rounding
                assert relative_error(grad, grads[name]) < 1e-3, name
    captured.graph.reset()


def test_a_replay_follows_new_inputs() -> None:
    model = active_model(NANO).eval()
    batch, draws = inputs(NANO, 4, 64)
    other_batch, other_draws = inputs(NANO, 4, 64)
    other_batch["images_BKHWC"] = 255 - other_batch["images_BKHWC"]
    other_batch["augment_BD"] = other_batch["augment_BD"].flip(0)
    other_draws["time_B"] = other_draws["time_B"].flip(0)
    with torch.no_grad():
        captured = Captured(lambda: model(batch, draws), None, model)
        expected = model(other_batch, other_draws)
        for name, tensor in other_batch.items():
            batch[name].copy_(tensor)
        for name, tensor in other_draws.items():
            draws[name].copy_(tensor)
        assert torch.equal(captured.replay(), expected)
    captured.graph.reset()


@pytest.mark.parametrize("config", [NANO, PUBLIC], ids=["nano", "3b"])
def test_fast_attention_kernels_serve_everything(config: GrootConfig) -> None:
    """Flash runs the prefix and the unmasked blocks; short masked text keys need another kernel."""
    model = active_model(config)
    batch, draws = inputs(config, 2)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        features = model.prefix(batch)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        torch.autograd.backward(model.head_loss(features, batch, draws))
    everything_valid = {**batch, "text_valid_BX": torch.ones_like(batch["text_valid_BX"])}
    assert torch.isfinite(model.head_loss(features, everything_valid, draws))


def test_views_are_the_same_on_gpu_and_cpu() -> None:
    batch, _ = inputs(PUBLIC, 3, 320)
    images, augment = batch["images_BKHWC"], batch["augment_BD"]
    for draw in (augment, None):
        on_gpu = preprocess_views(images, draw, PUBLIC).cpu()
        on_cpu = preprocess_views(images.cpu(), None if draw is None else draw.cpu(), PUBLIC)
        assert (on_gpu - on_cpu).abs().max() < 1 / 127.5
        assert (on_gpu - on_cpu).abs().mean() < 1e-4


def exact_and_rough(batch_size: int) -> tuple[GrootN16, GrootN16, Batch, Draws]:
    """Returns the public size in float32 and bfloat16 with equal weights, without dropout."""
    rough = active_model(PUBLIC).eval()
    exact = active_model(PUBLIC, torch.bfloat16).eval()
    cast_parameters(exact, frozen=torch.float32, trainable=torch.float32)
    return exact, rough, *inputs(PUBLIC, batch_size)


@pytest.mark.parametrize("activation", ["relu", "smooth"])
def test_bfloat16_against_float32_at_full_size(
    activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss within 1e-2; gradients within 3e-2 where the embodiment layers' ReLU is made smooth.

    With the ReLU, an error s of the DiT's output flips s / pi of the decoder's units, and every
    gradient upstream is off by the square root of that: about 4 % at s = 0.5 %.
    """
    if activation == "smooth":
        monkeypatch.setattr(functional, "relu", functional.silu)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    exact, rough, batch, draws = exact_and_rough(2)
    losses = []
    for model in (exact, rough):
        loss = model(batch, draws)
        torch.autograd.backward(loss)
        losses.append(float(loss.detach()))
    exact_grads, rough_grads = gradients(exact), gradients(rough)
    errors = sorted(
        (relative_error(rough_grads[name], grad), name)
        for name, grad in exact_grads.items()
        if not name.endswith("attn1.to_k.bias")  # zero but for rounding
    )
    median, worst = errors[len(errors) // 2][0], errors[-3:]
    within = sum(error < 3e-2 for error, _ in errors) / len(errors)
    report("bf16_against_fp32", activation=activation, loss=losses, n=len(errors),
           median=median, worst=worst, within_3e_2_frac=within)  # fmt: skip
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    assert median < (1e-1 if activation == "relu" else 3e-2)
    if within < 1:
        pytest.xfail(
            "each gradient within 3e-2 does not hold in bf16 on random weights: "
            f"{within:.1%} of {len(errors)} do (docs/log.md, 2026-11-29)"
        )


def test_each_gradient_at_full_size_given_the_prefix_and_what_the_relus_let_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the float32 run's features and ReLU pattern in both runs, what bf16 itself costs.

    At nano size each gradient is then within 3e-2 (tests/unit/models/test_forward.py); 32 blocks
    deep a few queries and keys, whose gradients nearly cancel, are not: 3.7 % was seen on a CPU.
    """
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    exact, rough, batch, draws = exact_and_rough(2)
    passed: list[Tensor] = []
    relu = functional.relu

    def recorded(x: Tensor) -> Tensor:
        passed.append(x > 0)
        return relu(x)

    monkeypatch.setattr(functional, "relu", recorded)
    features = exact.prefix(batch)
    torch.autograd.backward(exact.head_loss(features, batch, draws))
    monkeypatch.setattr(functional, "relu", lambda x: x * passed.pop(0))
    torch.autograd.backward(rough.head_loss(features.bfloat16(), batch, draws))
    exact_grads, rough_grads = gradients(exact), gradients(rough)
    errors = sorted(
        (relative_error(rough_grads[name], grad), name)
        for name, grad in exact_grads.items()
        if not name.endswith("attn1.to_k.bias")  # zero but for rounding
    )
    median = errors[len(errors) // 2][0]
    within = sum(error < 3e-2 for error, _ in errors) / len(errors)
    report("bf16_given_prefix_and_relus", n=len(errors), median=median, worst=errors[-3:],
           within_3e_2_frac=within)  # fmt: skip
    assert median < 1.5e-2
    assert within > 0.95
    assert errors[-1][0] < 6e-2


@torch.no_grad()
def frozen_parts_ms(model: GrootN16, batch: Batch) -> dict[str, tuple[float, float, float]]:
    """Returns what tower and connector cost, each captured alone: median and bounds."""
    eagle, patch_px = model.backbone.model, PUBLIC.vision.patch_px
    pixels = preprocess_views(batch["images_BKHWC"], batch["augment_BD"], PUBLIC)
    grid = (pixels.shape[2] // patch_px, pixels.shape[3] // patch_px)
    tower = partial(eagle.vision_model.vision_model, patchify(pixels, patch_px), grid)
    connector = partial(eagle.mlp1.encode, tower(), grid)
    return {
        "vision": Captured(tower, None, model).median_ms(),
        "connector": Captured(connector, None, model).median_ms(),
    }


@pytest.mark.parametrize("batch_size", [16, 64])
def test_cost_at_full_size(batch_size: int) -> None:
    """Random weights, synthetic data: finite, and what each part costs, captured."""
    torch.cuda.reset_peak_memory_stats()
    model = active_model(PUBLIC).train()
    generator = torch.Generator("cuda").manual_seed(0)
    model.set_generator(generator)
    batch, draws = inputs(PUBLIC, batch_size)
    features = model.prefix(batch)

    def head() -> Tensor:
        loss = model.head_loss(features, batch, draws)
        torch.autograd.backward(loss)
        return loss.detach()

    loss = head()
    assert torch.isfinite(loss)
    for name, grad in gradients(model).items():
        assert torch.isfinite(grad).all(), name
    views = Captured(
        lambda: preprocess_views(batch["images_BKHWC"], batch["augment_BD"], PUBLIC), None, model
    )
    parts = {"views": views.median_ms()}
    del views
    parts |= frozen_parts_ms(model, batch)
    parts["prefix"] = Captured(lambda: model.prefix(batch), None, model).median_ms()
    parts["head_forward_backward"] = Captured(head, generator, model).median_ms()
    flops = flops_per_sample(PUBLIC, PromptShape(causal_frac=0.5))
    frozen = ("vision", "connector", "language_prefix")
    prefix = sum(flops[name].forward for name in frozen)
    rest = sum(part.forward + part.backward for part in flops.values()) - prefix
    done = {name: flops[name].forward for name in frozen[:2]}
    done |= {"prefix": prefix, "head_forward_backward": rest}
    report(
        "cost_at_full_size",
        batch=batch_size,
        n=NUM_REPLAYS,
        ms={name: {"median": m, "lo": lo, "hi": hi} for name, (m, lo, hi) in parts.items()},
        tflops={name: done[name] * batch_size / parts[name][0] / 1e9 for name in done},
        peak_allocated_gib=torch.cuda.max_memory_allocated() / 2**30,
        peak_reserved_gib=torch.cuda.max_memory_reserved() / 2**30,
        device=torch.cuda.get_device_name(),
    )


def report(what: str, **values: object) -> None:
    sys.stdout.write(json.dumps({"what": what, **values}) + "\n")
