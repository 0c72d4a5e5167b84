"""The article's overlap snippet on gloo ranks, against backward followed by an all-reduce."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from lf_ray.errors import ConfigError
from lf_ray.runtime import OverlapScheduler
from lf_ray.testing.ranks import RankPlace, RankPool

Ranks = Callable[[int], RankPool]
NUM_STEPS = 4


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(6)))


class _Descent:
    """torch.optim.SGD in little: that one makes each rank import torch's compiler, for seconds."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def zero_grad(self) -> None:
        self.model.zero_grad(set_to_none=True)

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            parameter.add_(parameter.grad, alpha=-0.5)


def _loss(model: nn.Module, seed: int) -> Tensor:
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(seed))
    loss: Tensor = model(x).square().mean()
    return loss


def _backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def _plain(place: RankPlace, model: nn.Module, micro_batches: int = 1) -> list[Tensor]:
    optimizer = _Descent(model)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        for micro_batch in range(micro_batches):
            _backward(_loss(model, _seed(place, step, micro_batch)))
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, group=place.work_group)
            parameter.grad /= place.world_size
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def _seed(place: RankPlace, step: int, micro_batch: int = 0) -> int:
    return 100 * step + 10 * micro_batch + place.rank


def _overlapped(place: RankPlace, options: dict[str, Any], where: str) -> dict[str, Any]:
    model = _model()
    expected = _plain(place, copy.deepcopy(model))
    scheduler = OverlapScheduler(model=model, backend="gloo", **options)
    optimizer = _Descent(model)
    for step in range(NUM_STEPS):
        with scheduler.overlap():
            optimizer.zero_grad()
            loss = _loss(model, _seed(place, step))
            _backward(loss)
            if where == "inside":
                optimizer.step()
        if where == "after":
            optimizer.step()
    equal = all(torch.equal(one, two) for one, two in zip(expected, model.parameters()))
    close = all(
        torch.allclose(one, two, rtol=1e-5, atol=1e-7)
        for one, two in zip(expected, model.parameters())
    )
    scheduler.close()
    return {
        "equal": equal,
        "close": close,
        "num_buckets": scheduler.num_buckets,
        "share": scheduler.share_during_backward,
    }


@pytest.mark.parametrize("where", ["inside", "after"])
@pytest.mark.parametrize(("ratio", "num_buckets"), [(0.8, 6), (0.0, 6), (1.0, 6)])
def test_snippet_equals_backward_then_all_reduce(
    ranks: Ranks, where: str, ratio: float, num_buckets: int
) -> None:
    options = {"bucket_size_mb": 5 / 1024, "overlap_ratio": ratio}
    for result in ranks(2).run(_overlapped, options, where):
        assert result["equal"]
        assert result["num_buckets"] == num_buckets
        assert result["share"] == pytest.approx(ratio, abs=1 / 12)


def test_more_ranks_differ_by_summation_order_only(ranks: Ranks) -> None:
    options = {"bucket_size_mb": 9 / 1024, "overlap_ratio": 0.8}
    assert all(result["close"] for result in ranks(4).run(_overlapped, options, "inside"))


@pytest.mark.parametrize(
    ("options", "num_buckets"),
    [
        ({"bucket_bounds": [["0", "1"], ["2", "3", "4"], ["5"]]}, 3),
        ({"bucket_bounds": ["0", "4", "5"]}, 3),
        ({"bucket_size_mb": 64}, 1),
    ],
)
def test_bounds_by_hand(ranks: Ranks, options: dict[str, Any], num_buckets: int) -> None:
    for result in ranks(2).run(_overlapped, options, "inside"):
        assert result["equal"]
        assert result["num_buckets"] == num_buckets


def _accumulated(place: RankPlace) -> list[bool]:
    model = _model()
    expected = _plain(place, copy.deepcopy(model), micro_batches=3)
    scheduler = OverlapScheduler(model, 9 / 1024, 0.5, backend="gloo")
    optimizer = _Descent(model)
    for step in range(NUM_STEPS):
        for micro_batch in range(3):
            with scheduler.overlap(accumulate=micro_batch < 2):
                _backward(_loss(model, _seed(place, step, micro_batch)))
        optimizer.step()
        optimizer.zero_grad()
    return [torch.allclose(a, b, rtol=1e-5) for a, b in zip(expected, model.parameters())]


def test_accumulation_sends_once(ranks: Ranks) -> None:
    assert all(all(result) for result in ranks(2).run(_accumulated))


def test_settings_that_make_no_sense_are_refused() -> None:
    model = _model()
    with pytest.raises(ConfigError, match="contiguous in layer order"):
        OverlapScheduler(model, backend="gloo", bucket_bounds=[["0", "2"], ["1", "3", "4", "5"]])
    with pytest.raises(ConfigError, match="sends from GPUs"):
        OverlapScheduler(model=model, bucket_size_mb=64, overlap_ratio=0.8, backend="nccl")
    with pytest.raises(ConfigError, match="from 0 to 1"):
        OverlapScheduler(model, overlap_ratio=1.5, backend="gloo")
    with pytest.raises(ConfigError, match="nccl, gloo"):
        OverlapScheduler(model, backend="mpi")
    scheduler = OverlapScheduler(model, backend="gloo", head_bucket_size_mb=1)
    with scheduler.overlap(), pytest.raises(ConfigError, match="ends in head"):
        _backward(_loss(model, 0))


def test_one_process_needs_no_group() -> None:
    model = _model()
    expected = copy.deepcopy(model)
    _backward(_loss(expected, 0))
    scheduler = OverlapScheduler(model, 9 / 1024, 0.8, backend="gloo")
    for _ in range(2):
        model.zero_grad()
        with scheduler.overlap():
            _backward(_loss(model, 0))
        for one, two in zip(expected.parameters(), model.parameters()):
            assert one.grad is not None
            assert two.grad is not None
            assert torch.equal(one.grad, two.grad)
