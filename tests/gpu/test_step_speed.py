"""The step's kernels against what the device can do; one JSON line a measurement."""

import json
import statistics
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lf_ray.runtime.kernels import AdamWRule, FusedAdamW, fuse_head, fuse_prefix
from models.groot_n1_6.batch import BatchShape, synthetic_batch, synthetic_draws
from models.groot_n1_6.config import GrootConfig
from models.groot_n1_6.model import build

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
DEVICE = torch.device("cuda")
NUM_ELEMENTS = 200_000_000
NUM_REPEATS = 12


def times_ms(action: Callable[[], object]) -> list[float]:
    """Returns the times of some runs after three that don't count."""
    found = []
    for number in range(NUM_REPEATS + 3):
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        action()
        end.record()
        end.synchronize()
        if number >= 3:
            found.append(begin.elapsed_time(end))
    return sorted(found)


def evidence(what: str, found: list[float], **numbers: float) -> float:
    median = statistics.median(found)
    line = {
        "what": what,
        "n": len(found),
        "median_ms": median,
        "interval_ms": [found[1], found[-2]],
    }
    sys.stdout.write(json.dumps({**line, **numbers}) + "\n")
    return median


def copy_of_1gib_ms() -> float:
    source = torch.empty(2**30, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    return evidence("copy_1GiB", times_ms(lambda: target.copy_(source)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_update_moves_its_bytes_nearly_as_fast_as_a_copy(dtype: torch.dtype) -> None:
    copy_ms = copy_of_1gib_ms()
    master_N = torch.randn(NUM_ELEMENTS, device=DEVICE) * 0.02
    grad_N = (torch.randn(NUM_ELEMENTS, device=DEVICE) * 1e-3).to(dtype)
    update = FusedAdamW(master_N, master_N.bfloat16(), AdamWRule())
    update.lr_1.fill_(1e-4)
    # gradient twice; three fp32 states read and written; bf16 weights written
    num_bytes = NUM_ELEMENTS * (2 * grad_N.element_size() + 26)
    floor_ms = copy_ms * num_bytes / 2**31
    update_ms = evidence(
        f"update_{dtype}", times_ms(lambda: update.update(grad_N)), floor_ms=floor_ms
    )
    assert floor_ms >= 0.8 * update_ms


def small_step(fuse: bool) -> Callable[[], Tensor]:
    """Returns forward and backward at public widths and few layers, as a captured graph."""
    config = GrootConfig.of_size("3b").with_views(224)
    model = build(config, device=DEVICE)
    model.activate_embodiments([2])
    model.train()
    generator = torch.Generator(DEVICE).manual_seed(0)
    model.set_generator(generator)
    if fuse:
        assert fuse_prefix(model) is None
        assert fuse_head(model, compile_blocks=False) is None
    shape = BatchShape(batch_size=4, num_text=92)
    batch = {name: item.to(DEVICE) for name, item in synthetic_batch(config, shape, slot=2).items()}
    draws = {name: item.to(DEVICE) for name, item in synthetic_draws(config, 4).items()}

    def step() -> Tensor:
        model.zero_grad(set_to_none=True)
        loss = model.head_loss(model.prefix(batch), batch, draws)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph, stream=stream):
        loss = step()

    def replay() -> Tensor:
        graph.replay()
        return loss

    return replay


def test_fused_kernels_are_faster_and_finite_in_a_graph() -> None:
    medians = {}
    for fuse in (False, True):
        replay = small_step(fuse)
        medians[fuse] = evidence(f"step_b4_fused_{fuse}", times_ms(replay))
        assert bool(torch.isfinite(replay()))
        del replay
        torch.cuda.empty_cache()
    assert medians[True] < medians[False]
