"""The reducer on one rank: which slices leave when, and what is in them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lf_ray.errors import LfRayError
from lf_ray.runtime.bucket_plan import BucketPlan, bucket_plan, issued_during_backward
from lf_ray.runtime.overlap import GradientReducer, ready_order
from lf_ray.runtime.update.collectives import NoCollective
from lf_ray.runtime.update.flat import FlatParameters, gradient_tensors, layer_of


class RecordingCollective(NoCollective):
    """Notes what is sent and what was in it then."""

    def __init__(self) -> None:
        self.sent: list[Tensor] = []
        self.in_backward = False
        self.moments: list[bool] = []

    def start(self, values_N: Tensor) -> None:
        self.sent.append(values_N.clone())
        self.moments.append(self.in_backward)

    def wait(self) -> None:
        pass


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))


def _loss(model: nn.Module, seed: int = 0) -> Tensor:
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(seed))
    loss: Tensor = model(x).square().mean()
    return loss


def _backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def _flat(model: nn.Module) -> FlatParameters:
    named = dict(model.named_parameters())
    order = ready_order(list(named.items()), lambda: _backward(_loss(model)))
    return FlatParameters([(name, named[name]) for name in order])


def _plan(flat: FlatParameters, size_kib: float, dtype: str = "fp32") -> BucketPlan:
    named = [(slot.name, slot.parameter) for slot in flat.slots]
    return bucket_plan(gradient_tensors(named), size_kib / 1024, dtype)


def _step(reducer: GradientReducer, collective: RecordingCollective, *losses: Any) -> None:
    for index, loss in enumerate(losses):
        reducer.expect(first=index == 0, last=index == len(losses) - 1)
        collective.in_backward = True
        _backward(loss())
        collective.in_backward = False
        reducer.end_micro_batch()
    reducer.finish()


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
def test_leading_buckets_leave_during_backward_in_order(ratio: float) -> None:
    model = _model()
    flat, collective = _flat(model), RecordingCollective()
    reducer = GradientReducer(flat)
    plan = _plan(flat, 2.5)
    assert len(plan.buckets) == 2
    leading = issued_during_backward(plan, ratio)
    reducer.use(plan, leading, collective)
    _step(reducer, collective, lambda: _loss(model))
    assert collective.moments == [index < leading for index in range(2)]
    assert torch.equal(torch.cat(collective.sent), flat.grad_N)


def test_ready_order_is_backwards_and_layers_are_named() -> None:
    flat = _flat(_model())
    assert [layer_of(slot.name) for slot in flat.slots] == list("33221100")
    assert layer_of("head.model.blocks.12.norm.weight") == "head.model.blocks.12"
    assert layer_of("head.out.weight") == "head.out"


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_gradients_of_micro_batches_add_up_and_only_the_last_sends(dtype: str) -> None:
    model = _model()
    expected = {}
    _backward(_loss(model, 1) + _loss(model, 2))
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        expected[name], parameter.grad = parameter.grad, None
    flat, collective = _flat(model), RecordingCollective()
    reducer = GradientReducer(flat)
    reducer.use(_plan(flat, 2.5, dtype), 1, collective)
    _step(reducer, collective, lambda: _loss(model, 1), lambda: _loss(model, 2))
    tolerance = {"fp32": 1e-6, "bf16": 2**-8}[dtype]
    for slot in flat.slots:
        got = slot.view(reducer.reduced_N).float()
        torch.testing.assert_close(got, expected[slot.name], rtol=tolerance, atol=1e-7)
    assert len(collective.sent) == len(_plan(flat, 2.5, dtype).buckets)


def test_parameter_without_gradient_sends_zeros_and_not_the_last_step() -> None:
    model = _model()
    flat, collective = _flat(model), RecordingCollective()
    reducer = GradientReducer(flat)
    reducer.use(_plan(flat, 2.5), 2, collective)
    _step(reducer, collective, lambda: _loss(model))
    _step(reducer, collective, lambda: _loss(model[2:]))
    for slot in flat.slots:
        assert bool(slot.view(flat.grad_N).any()) == (layer_of(slot.name) in "23")
    assert all(parameter.grad is None for parameter in model.parameters())


def test_reentrant_checkpoint_of_a_shared_layer_is_refused_with_the_cure() -> None:
    model = _model()
    flat, collective = _flat(model), RecordingCollective()
    reducer = GradientReducer(flat)
    reducer.use(_plan(flat, 2.5), 2, collective)
    x = torch.randn(3, 16, requires_grad=True)

    def twice(*, use_reentrant: bool) -> Tensor:
        once = checkpoint(model, x, use_reentrant=use_reentrant)
        again = checkpoint(model, once, use_reentrant=use_reentrant)
        loss: Tensor = again.square().mean()
        return loss

    with pytest.raises(LfRayError, match="use_reentrant=False"):
        _step(reducer, collective, lambda: twice(use_reentrant=True))
    _step(reducer, collective, lambda: twice(use_reentrant=False))
    assert flat.grad_N.any()
