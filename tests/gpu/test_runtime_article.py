"""The article's capture snippet on a GPU, and its four errors provoked for real.

A failed capture leaves its process unusable, so each case has one of its own.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lf_ray.errors import CaptureError
from lf_ray.runtime import GraphCapture, OverlapScheduler
from lf_ray.runtime.steps.diagnosis import diagnose
from lf_ray.testing.ranks import RankPlace, RankPool

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(300),
]
Run = Callable[..., Any]


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs a case in a fresh process with one GPU."""
    pool = RankPool(1, backend="nccl")
    yield lambda case, *args: pool.run(case, *args, deadline_s=200)[0]
    pool.close()


class Regression(nn.Module):
    """A module that returns a loss, with a buffer that each forward changes."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, width)
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        loss: Tensor = (self.layers(batch["x"]) - batch["y"]).square().mean()
        return loss


def _batch(seed: int, size: int = 16, width: int = 64) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(size, width, generator=generator).cuda() for name in ("x", "y")}


def _adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def _backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def _snippet(place: RankPlace, with_overlap: bool) -> dict[str, Any]:
    eager = Regression().cuda()
    model = copy.deepcopy(eager)
    eager_optimizer, optimizer = _adamw(eager), _adamw(model)
    scheduler = OverlapScheduler(model, 1 / 128, 0.8) if with_overlap else None
    capture = GraphCapture(model, optimizer)
    if scheduler is not None:
        with scheduler.overlap():
            capture.warmup(_batch(99), steps=3)
            graph = capture.capture(_batch(99))
    else:
        capture.warmup(_batch(99), steps=3)
        graph = capture.capture(_batch(99))
    equal = []
    for seed in range(6):
        expected = eager(_batch(seed))
        eager_optimizer.zero_grad()
        _backward(expected)
        eager_optimizer.step()
        loss = graph.replay(_batch(seed))
        optimizer.zero_grad()
        _backward(loss)
        optimizer.step()
        equal.append(torch.equal(loss, expected))
    state = zip(eager.state_dict().values(), model.state_dict().values())
    result = {
        "emulated": graph.emulated,
        "losses": equal,
        "weights": all(torch.equal(one, two) for one, two in state),
    }
    capture.release()
    return result


@pytest.mark.parametrize("with_overlap", [False, True])
def test_snippet_trains_like_the_eager_loop(run: Run, with_overlap: bool) -> None:
    result = run(_snippet, with_overlap)
    assert not result["emulated"]
    assert all(result["losses"])
    assert result["weights"]


class Waits(Regression):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        loss = super().forward(batch)
        self.last = loss.item()
        return loss


def _text_of(action: Callable[[], Any]) -> str:
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing raised"


def _host_waits(place: RankPlace) -> list[str]:
    model = Waits().cuda()
    capture = GraphCapture(model, _adamw(model))
    first = _text_of(lambda: capture.capture(_batch(0)))
    return [first, _text_of(lambda: capture.capture(_batch(0, size=8)))]


def test_operation_not_permitted_during_capture(run: Run) -> None:
    first, second = run(_host_waits)
    assert first.startswith("CaptureError")
    assert "operation not permitted during capture" in first
    assert "self.last = loss.item()" in first
    assert "Start a new process" in second


class Remembers(Regression):
    """Keeps a tensor outside of parameters and buffers, and lets it go after capture."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: Tensor | None = torch.ones(2**25, device="cuda")

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        assert self.scale is not None
        return super().forward(batch) * self.scale.mean()


def _dead_address(place: RankPlace) -> str:
    model = Remembers().cuda()
    graph = GraphCapture(model, _adamw(model)).capture(_batch(0))
    torch.cuda.synchronize()
    model.scale = None
    torch.cuda.empty_cache()

    def replay() -> None:
        try:
            graph.replay(_batch(1))
            torch.cuda.synchronize()
        except CaptureError:
            raise
        except Exception as error:
            raise diagnose(error) from error

    return _text_of(replay)


def test_invalid_argument_when_an_address_died(run: Run) -> None:
    text = run(_dead_address)
    assert text.startswith("CaptureError")
    assert "invalid argument" in text
    assert "preallocate_optimizer_state=True" in text


class Widens(Regression):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        wide = batch["x"].repeat(1, self.times)
        return super().forward(batch) + wide.square().mean()

    times = 1


def _out_of_memory(place: RankPlace) -> str:
    model = Widens().cuda()
    capture = GraphCapture(model, _adamw(model))
    capture.warmup(_batch(0))
    torch.cuda.set_per_process_memory_fraction(0.02)
    model.times = 2**22
    return _text_of(lambda: capture.capture(_batch(0)))


def test_out_of_memory_during_capture(run: Run) -> None:
    text = run(_out_of_memory)
    assert text.startswith("CaptureError")
    assert "out of memory during capture" in text
    assert "smaller batch" in text


def _mismatch(place: RankPlace) -> str:
    model = Regression().cuda()
    graph = GraphCapture(model, _adamw(model)).capture(_batch(0))
    return _text_of(lambda: graph.replay(_batch(0, size=8)))


def test_graph_replay_mismatch(run: Run) -> None:
    text = run(_mismatch)
    assert "graph replay mismatch" in text
    assert "input.x: expected float32 [16, 64], got float32 [8, 64]" in text
