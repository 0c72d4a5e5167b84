"""The article's capture snippet, on a CPU: emulated, with the same meaning and refusals."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lf_ray.errors import CaptureError
from lf_ray.runtime import GraphCapture
from lf_ray.runtime.steps.diagnosis import diagnose


class Regression(nn.Module):
    """A module that returns a loss, with a buffer that each forward changes and dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        loss: Tensor = (self.layers(batch["x"]) - batch["y"]).square().mean()
        return loss


def _batch(seed: int = 0, size: int = 4) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(size, 6, generator=generator),
        "y": torch.randn(size, 3, generator=generator),
    }


def _adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def _backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def test_the_articles_snippet_trains_like_the_eager_loop() -> None:
    eager = Regression()
    model = copy.deepcopy(eager)
    eager_optimizer, optimizer = _adamw(eager), _adamw(model)
    capture = GraphCapture(model, optimizer)
    dummy_input = _batch(99)
    capture.warmup(dummy_input, steps=3)
    graph = capture.capture(dummy_input)
    assert graph.emulated
    for seed in range(5):
        expected = eager(_batch(seed))
        eager_optimizer.zero_grad()
        _backward(expected)
        eager_optimizer.step()
        loss = graph.replay(_batch(seed))
        optimizer.zero_grad()
        _backward(loss)
        optimizer.step()
        assert torch.equal(loss, expected)
    for (name, one), other in zip(eager.state_dict().items(), model.state_dict().values()):
        assert torch.equal(one, other), name


def test_backward_after_replay_neither_raises_nor_doubles() -> None:
    model = Regression()
    graph = GraphCapture(model, _adamw(model)).capture(_batch())
    loss = graph.replay(_batch(1))
    gradients = [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]
    assert len(gradients) == 6
    _backward(loss)
    _backward(graph.replay(_batch(1)) / 2)
    for parameter, gradient in zip(model.parameters(), gradients):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)


def test_loss_outlives_the_next_replay() -> None:
    model = Regression()
    graph = GraphCapture(model, _adamw(model)).capture(_batch())
    first = graph.replay(_batch(1))
    value = first.item()
    graph.replay(_batch(2))
    assert first.item() == value


def test_warmup_and_capture_leave_no_trace() -> None:
    model = Regression()
    before = copy.deepcopy(model.state_dict())
    random_before = torch.get_rng_state()
    optimizer = _adamw(model)
    capture = GraphCapture(model, optimizer)
    capture.warmup(_batch(), steps=4)
    capture.capture(_batch())
    assert torch.equal(torch.get_rng_state(), random_before)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())
    states = list(optimizer.state.values())
    assert len(states) == 6  # made before capture, and as if no step had been taken
    assert not any(tensor.any() for state in states for tensor in state.values())


def test_optimizer_state_may_be_left_to_the_first_step() -> None:
    model = Regression()
    optimizer = _adamw(model)
    GraphCapture(model, optimizer, preallocate_optimizer_state=False)
    assert not optimizer.state


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": torch.zeros(5, 6)}, r"input\.x: expected float32 \[4, 6\], got float32 \[5, 6\]"),
        ({"y": torch.zeros(4, 3, dtype=torch.float64)}, r"input\.y: .* got float64 \[4, 3\]"),
        ({"z": torch.zeros(1)}, r"input\.z: not captured"),
    ],
)
def test_other_inputs_are_refused_by_name(change: dict[str, Tensor], words: str) -> None:
    model = Regression()
    graph = GraphCapture(model, _adamw(model)).capture(_batch())
    with pytest.raises(CaptureError, match=words):
        graph.replay({**_batch(), **change})
    with pytest.raises(CaptureError, match=r"input\.y: .* got nothing"):
        graph.replay({"x": torch.zeros(4, 6)})


def test_constants_are_part_of_the_captured_input() -> None:
    class Scaled(Regression):
        def forward(self, batch: Any) -> Tensor:
            loss: Tensor = super().forward(batch) * batch["scale"]
            return loss

    model = Scaled()
    graph = GraphCapture(model, _adamw(model)).capture({**_batch(), "scale": 2.0})
    assert graph.replay({**_batch(1), "scale": 2.0}) > 0
    with pytest.raises(CaptureError, match=r"input\.scale: expected 2\.0, got 3\.0"):
        graph.replay({**_batch(1), "scale": 3.0})


def test_host_wait_in_the_captured_part_is_named_with_line_and_cure() -> None:
    class Waits(Regression):
        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            loss = super().forward(batch)
            self.last = loss.item()
            return loss

    model = Waits()
    with pytest.raises(CaptureError) as caught:
        GraphCapture(model, _adamw(model)).capture(_batch())
    text = str(caught.value)
    assert "operation not permitted" in text
    assert "self.last = loss.item()" in text
    assert "Take it out" in text


@pytest.mark.parametrize(
    ("raw", "title"),
    [
        ("CUDA error: operation not permitted when stream is capturing", "not permitted"),
        (
            "CUDA error: operation would make the legacy stream depend on a capturing blocking "
            "stream",
            "not permitted",
        ),
        ("CUDA error: invalid argument", "invalid argument"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "out of memory during capture"),
        ("something else", "capture failed"),
    ],
)
def test_raw_errors_are_told_apart(raw: str, title: str) -> None:
    assert title in str(diagnose(RuntimeError(raw)))
    assert raw in str(diagnose(RuntimeError(raw)))


def test_shapes_are_captured_once_and_bounded() -> None:
    model = Regression()
    capture = GraphCapture(model, _adamw(model), max_graphs=2)
    assert capture.capture(_batch()) is capture.capture(_batch(1))
    capture.capture(_batch(size=6))
    assert capture.replay(_batch(size=6)) > 0
    with pytest.raises(CaptureError, match="max_graphs"):
        capture.capture(_batch(size=7))


def test_released_graph_says_so() -> None:
    model = Regression()
    capture = GraphCapture(model, _adamw(model))
    graph = capture.capture(_batch())
    capture.release()
    with pytest.raises(CaptureError, match="Capture again"):
        graph.replay(_batch())


def _waits_for_the_device() -> None:
    raise RuntimeError("operation not permitted when stream is capturing")


def test_the_error_that_came_first_is_named_not_the_one_that_ended_the_capture() -> None:
    try:
        try:
            _waits_for_the_device()
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")
    except RuntimeError as error:
        text = str(diagnose(error))
    assert "when stream is capturing" in text
    assert "test_graph_capture.py" in text
    assert "_waits_for_the_device" not in text.partition("Got")[0]
    assert 'raise RuntimeError("operation not permitted' in text
