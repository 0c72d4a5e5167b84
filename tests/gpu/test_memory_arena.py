"""The arena for real: backward's thread, capture, fallback, giving memory back."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from lf_ray.errors import MachineError
from lf_ray.runtime.memory import MemoryPool, analyze_tensor_shapes, arena_refusal, capture_room
from lf_ray.runtime.memory.ladder import GIB

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = torch.device("cuda", 0)
MIB = 2**20


@pytest.fixture
def pool() -> Iterator[MemoryPool]:
    reason = arena_refusal(DEVICE)
    if reason is not None:
        pytest.skip(reason)
    pool = MemoryPool(total_size_gb=4, block_sizes=[1, 2], device=DEVICE)
    yield pool
    assert pool.close() == 0, "the test let a tensor outlive its pool"


def make_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(4)]
    return nn.Sequential(*layers).to(DEVICE)


def one_step(model: nn.Module, rows: int = 8192) -> float:
    generator = torch.Generator(DEVICE).manual_seed(1)
    data = torch.randn(rows, 2048, device=DEVICE, generator=generator)
    model.zero_grad(set_to_none=True)
    loss = model(data).square().mean()
    loss.backward()
    return float(loss.detach())


def test_forward_and_backward_allocate_from_the_blocks(pool: MemoryPool) -> None:
    model = make_model()
    plain = one_step(model)
    torch.cuda.empty_cache()
    reserved_before = torch.cuda.memory_reserved(DEVICE)
    with pool.scope():
        inside = one_step(model)
        stats = pool.stats()
        outside_bytes = torch.cuda.memory_reserved(DEVICE) - stats.counts.live_bytes
        model.zero_grad(set_to_none=True)
    assert inside == plain
    assert stats.fallback_frac == 0.0
    # nine activations of 64 MiB, and a gradient of one: backward's thread took its share here
    assert stats.counts.live_bytes >= 640 * MIB
    assert outside_bytes <= reserved_before
    assert {size for size, _ in stats.blocks} <= {GIB, 2 * GIB}


def test_backward_alone_is_routed_too(pool: MemoryPool) -> None:
    weight = torch.ones(4096, 4096, device=DEVICE, requires_grad=True)
    torch.cuda.synchronize()
    with pool.scope():
        product = weight * 2
        loss = product.sum()
        before = pool.stats().counts.live_bytes
        loss.backward()  # type: ignore[no-untyped-call]
        grown = pool.stats().counts.live_bytes - before
        del loss, product
    assert grown >= 64 * MIB
    weight.grad = None


def test_what_does_not_fit_falls_back_and_is_counted() -> None:
    pool = MemoryPool(total_size_gb=1, block_sizes=[1], device=DEVICE)
    with pool.scope():
        fits = torch.empty(512 * MIB, dtype=torch.uint8, device=DEVICE)
        spills = torch.empty(1536 * MIB, dtype=torch.uint8, device=DEVICE)
        counts = pool.stats().counts
        del fits, spills
    assert (counts.requests, counts.fallbacks) == (2, 1)
    assert counts.fallback_bytes == 1536 * MIB
    assert pool.close() == 0


def test_release_gives_the_blocks_back_to_the_device(pool: MemoryPool) -> None:
    torch.cuda.empty_cache()
    free_before, _ = torch.cuda.mem_get_info(DEVICE)
    with pool.scope():
        data = torch.ones(1200 * MIB, dtype=torch.uint8, device=DEVICE)
        del data
    assert torch.cuda.mem_get_info(DEVICE)[0] <= free_before - 2 * GIB
    assert pool.release() == 2 * GIB
    assert torch.cuda.mem_get_info(DEVICE)[0] >= free_before - 64 * MIB
    assert pool.stats().blocks == ()
    with pool.scope():
        again = torch.ones(8, device=DEVICE)
        assert float(again.sum()) == 8.0
        del again


def test_what_lives_on_survives_a_release_and_can_go_later(pool: MemoryPool) -> None:
    torch.cuda.empty_cache()
    free_before, _ = torch.cuda.mem_get_info(DEVICE)
    with pool.scope():
        weights = torch.full((300 * MIB,), 7, dtype=torch.uint8, device=DEVICE)
        scratch = torch.ones(600 * MIB, dtype=torch.uint8, device=DEVICE)
        del scratch
    pool.release()
    assert pool.stats().counts.live_bytes == 300 * MIB
    with pool.scope():
        other = torch.zeros(600 * MIB, dtype=torch.uint8, device=DEVICE)
        assert bool((weights == 7).all())
        del other
    del weights
    pool.release()
    assert pool.stats().blocks == ()
    assert torch.cuda.mem_get_info(DEVICE)[0] >= free_before - 64 * MIB


def test_without_defrag_the_blocks_stay_for_the_next_trial() -> None:
    pool = MemoryPool(total_size_gb=2, block_sizes=[1], enable_defrag=False, device=DEVICE)
    with pool.scope():
        data = torch.ones(100 * MIB, dtype=torch.uint8, device=DEVICE)
        del data
    assert pool.release() == 0
    assert pool.stats().blocks == ((GIB, 0),)
    assert pool.close() == 0


def test_a_graph_captured_inside_keeps_its_memory(pool: MemoryPool) -> None:
    source = torch.arange(MIB, device=DEVICE, dtype=torch.float32)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with pool.scope():
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with capture_room(DEVICE) as pool_id, torch.cuda.graph(graph, pool=pool_id, stream=stream):
            middle = source * 2
            result = middle + 1
            del middle
        # what is allocated now must not share addresses with what the graph writes
        others = [torch.full((MIB,), float(index), device=DEVICE) for index in range(40)]
        graph.replay()
        torch.cuda.synchronize()
        for index, other in enumerate(others):
            assert bool((other == index).all())
        assert torch.equal(result, source * 2 + 1)
        graph.reset()
        del others, result, other
    assert pool.stats().counts.fallbacks == 0


def test_one_arena_a_device(pool: MemoryPool) -> None:
    with pytest.raises(MachineError, match="one arena at a time"):
        MemoryPool(total_size_gb=1, block_sizes=[1], device=DEVICE)


def test_the_article_total_is_clipped_with_a_word() -> None:
    pool = MemoryPool(total_size_gb=100_000, block_sizes=[1, 2, 4], device=DEVICE)
    assert any("clipped" in word for word in pool.words)
    assert pool.close() == 0


def test_expandable_segments_act_inside_and_end_on_close() -> None:
    torch.cuda.empty_cache()
    pool = MemoryPool(backend="expandable", device=DEVICE)
    with pool.scope():
        data = torch.ones(64 * MIB, dtype=torch.uint8, device=DEVICE)
        kinds = {item["is_expandable"] for item in torch.cuda.memory_snapshot()}  # type: ignore[no-untyped-call]
        del data
    assert True in kinds
    pool.close()
    torch.cuda.empty_cache()
    data = torch.ones(64 * MIB, dtype=torch.uint8, device=DEVICE)
    assert data.is_cuda
    segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    assert not any(item["is_expandable"] for item in segments)


def test_analysis_reads_the_allocators_history() -> None:
    model = make_model()
    analysis = analyze_tensor_shapes(lambda: one_step(model), num_steps=4, device=DEVICE)
    assert analysis.source == "cuda history"
    assert analysis.histogram["64 MiB"] >= 4 * 8
    assert sum(size * count for size, count in analysis.segments.items()) >= 600 * MIB
    assert analysis.predicted_fallback_frac == 0.0
