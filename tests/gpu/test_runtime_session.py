"""The session on one GPU: captured and pipelined steps against eager ones, bit for bit.

Each case runs in a process of its own, because a failed capture leaves one unusable.
"""

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from lf_ray.runtime.session import Session
from lf_ray.runtime.update.collectives import Collective, NoCollective
from lf_ray.settings import SweepConfig
from lf_ray.testing.ranks import RankPlace, RankPool
from lf_ray.testing.synthetic import SyntheticParts
from lf_ray.testing.toy import ToyModel, ToyParts, toy_config, toy_request

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
Run = Callable[..., Any]
KIB = 1 / 1024
ORDERS: dict[str, dict[str, Any]] = {
    "eager": {},
    "step": {"graph.scope": "step"},
    "whole": {"graph.scope": "step+optimizer"},
    "pipelined": {"graph.scope": "step+optimizer", "pipeline.prefix": "on"},
}


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs a case in a fresh process with one GPU."""
    pool = RankPool(1, backend="nccl")
    yield lambda case, *args: pool.run(case, *args, deadline_s=500)[0]
    pool.close()


class CopyCollective(NoCollective):
    """Stands in for a second rank: copies each slice there and back on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, values_N: Tensor) -> None:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            values_N.copy_(values_N.clone())

    def wait(self) -> None:
        torch.cuda.current_stream().wait_stream(self._stream)


class GpuToyParts(ToyParts):
    """Toy parts in the dtype of the real model's weights, sending through `CopyCollective`."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16, width: int = 256) -> None:
        super().__init__(width=width, num_blocks=6)
        self._dtype = dtype

    def model(self, config: SweepConfig, device: torch.device) -> Any:
        return CastingToy(256, 6).to(device, self._dtype)

    def collective(self, work_group: Any, device: torch.device) -> Collective:
        return CopyCollective(device)


class CastingToy(ToyModel):
    """Takes fp32 batches into the weights' dtype and returns an fp32 loss."""

    def prefix(self, batch: dict[str, Tensor]) -> Tensor:
        dtype = self.frozen.weight.dtype
        return super().prefix({name: item.to(dtype) for name, item in batch.items()})

    def head_loss(
        self, features: Any, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> Tensor:
        dtype = self.frozen.weight.dtype
        cast = {name: item.to(dtype) for name, item in batch.items()}
        noisy = {name: item.to(dtype) for name, item in draws.items()}
        return super().head_loss(features, cast, noisy).float()


def _session(place: RankPlace, parts: Any = None) -> Session:
    return Session(
        toy_config(1), 0, 1, place.device, None, place.control_group, parts or GpuToyParts()
    )


def _trial(session: Session, knobs: dict[str, Any], steps: int = 12) -> dict[str, Any]:
    session.prepare(toy_request(toy_config(1), knobs))
    session.rehearse()
    samples = session.run(1)
    metrics = dict(session.capture())
    samples += session.run(steps - 1)
    result = {
        "losses": [sample.loss for sample in samples],
        "norms": [sample.grad_norm for sample in samples],
        "weights": session.weights_checksum(),
        "gate": session.gate().to_json(),
        "phases": dict(samples[-1].phases_s),
        "step_s": [sample.wall_s for sample in samples],
        "metrics": metrics,
        "memory": dict(session.memory()),
    }
    result["levels"] = dict(session.reset())
    return result


def _all_orders(place: RankPlace, extra: dict[str, Any]) -> dict[str, Any]:
    session = _session(place)
    results = {name: _trial(session, {**knobs, **extra}) for name, knobs in ORDERS.items()}
    session.close()
    return results


@pytest.mark.parametrize(
    "extra",
    [
        {"overlap.bucket_size_mb": 256 * KIB, "overlap.ratio": 0.5},
        {"overlap.bucket_size_mb": 64 * KIB, "batch.accumulation": 3},
        {"overlap.comm_dtype": "bf16"},
    ],
    ids=["fp32", "accumulation", "bf16"],
)
def test_every_order_gives_the_eager_bits(run: Run, extra: dict[str, Any]) -> None:
    results = run(_all_orders, extra)
    eager = results["eager"]
    assert len(set(eager["losses"])) > 6  # noise, dropout and rate move from step to step
    for name, result in results.items():
        assert result["gate"]["passed"], (name, result["gate"])
        for what in ("losses", "norms", "weights"):
            assert result[what] == eager[what], (name, what)
    assert results["pipelined"]["phases"].keys() >= {"forward", "backward", "prefix"}
    _evidence("orders_bit_equal", n=len(eager["losses"]), orders=sorted(results))


def _warm_and_cold(place: RankPlace) -> list[dict[str, Any]]:
    knobs = {"overlap.bucket_size_mb": 256 * KIB, **ORDERS["pipelined"]}
    warm = _session(place)
    levels = [_trial(warm, order)["levels"] for order in ORDERS.values()]
    levels += [_trial(warm, {**ORDERS["whole"], "batch.per_gpu": 8})["levels"]]
    after = _trial(warm, knobs)
    warm.close()
    cold = _session(place)
    fresh = _trial(cold, knobs)
    cold.close()
    return [after, fresh, {"levels": levels}]


def test_warm_equals_cold_and_memory_comes_back(run: Run) -> None:
    warm, cold, rest = run(_warm_and_cold)
    for what in ("losses", "norms", "weights"):
        assert warm[what] == cold[what]
    for level in rest["levels"]:
        assert level["allocated"] <= level["level_allocated"]


def _resumed(place: RankPlace, order: str) -> list[Any]:
    knobs = ORDERS[order]
    request = toy_request(toy_config(1), knobs)
    straight = _session(place)
    straight.prepare(request)
    straight.capture()
    straight.run(5)
    state = straight.state()
    expected = [sample.loss for sample in straight.run(4)]
    straight.close()
    resumed = _session(place)
    resumed.prepare(request)
    resumed.resume(state)
    resumed.rehearse()  # a capture follows the load, and leaves no trace of it
    resumed.capture()
    resumed.resume(state)
    got = [sample.loss for sample in resumed.run(4)]
    resumed.close()
    return [expected, got]


@pytest.mark.parametrize("order", list(ORDERS))
def test_resume_captures_again_and_goes_on(run: Run, order: str) -> None:
    expected, got = run(_resumed, order)
    assert got == expected


def _hungry(place: RankPlace) -> list[Any]:
    torch.cuda.set_per_process_memory_fraction(0.02)
    session = _session(place)
    small = _trial(session, {"batch.per_gpu": 4})
    session.prepare(toy_request(toy_config(1), {"batch.per_gpu": 2**21}))
    try:
        session.rehearse()
        kind = "fits"
    except torch.OutOfMemoryError:
        kind = "oom"
    session.reset()
    again = _trial(session, {"batch.per_gpu": 4, **ORDERS["whole"]})
    session.close()
    return [kind, small["weights"] == again["weights"]]


def test_batch_that_does_not_fit_leaves_the_session_usable(run: Run) -> None:
    assert run(_hungry) == ["oom", True]


def _leaking(place: RankPlace) -> str:
    session = _session(place)
    _trial(session, {})
    session.prepare(toy_request(toy_config(1)))
    session.run(2)
    leak = torch.zeros(2**20, device=place.device)
    try:
        session.reset()
    except Exception as error:
        return f"{type(error).__name__}: {error}, {leak.numel()}"
    return ""


def test_planted_leak_is_found(run: Run) -> None:
    assert "GroupError" in run(_leaking)


class WaitingToy(CastingToy):
    """Reads its loss on the host, as careless code does."""

    def head_loss(
        self, features: Any, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> Tensor:
        loss = super().head_loss(features, batch, draws)
        self.last = loss.item()
        return loss


class WaitingParts(GpuToyParts):
    def model(self, config: SweepConfig, device: torch.device) -> Any:
        return WaitingToy(256, 6).to(device, torch.bfloat16)


def _refused_capture(place: RankPlace) -> str:
    session = _session(place, WaitingParts())
    session.prepare(toy_request(toy_config(1), ORDERS["whole"]))
    try:
        session.capture()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_host_wait_in_the_step_is_named_with_its_line(run: Run) -> None:
    text = run(_refused_capture)
    assert text.startswith("CaptureError")
    assert "self.last = loss.item()" in text
    assert "Take it out" in text


def _groot(place: RankPlace, size: str, batch_size: int, steps: int) -> dict[str, Any]:
    config = toy_config(1)
    config.model.size = size
    config.train.lr = 1e-4
    config.model.image_px = 56 if size == "nano" else 224
    session = Session(
        config, 0, 1, place.device, None, place.control_group, SyntheticParts(fused=True)
    )
    results = {}
    for name, knobs in ORDERS.items():
        results[name] = _trial(session, {**knobs, "batch.per_gpu": batch_size}, steps)
    session.close()
    return results


@pytest.mark.parametrize(("size", "batch_size", "steps"), [("nano", 8, 10), ("3b", 16, 20)])
def test_groot_captured_equals_eager(run: Run, size: str, batch_size: int, steps: int) -> None:
    results = run(_groot, size, batch_size, steps)
    eager = results["eager"]
    for name, result in results.items():
        settled = result["step_s"][5:]
        _evidence(
            f"groot_{size}_{name}",
            n=len(settled),
            median_s=statistics.median(settled),
            interval=[min(settled), max(settled)],
            batch=batch_size,
            peak_bytes=result["memory"]["peak"],
            phases_s={key: round(value, 5) for key, value in result["phases"].items()},
            bit_equal=result["losses"] == eager["losses"],
            **result["metrics"],
        )
        assert result["gate"]["passed"], (name, result["gate"])


def _evidence(what: str, **numbers: Any) -> None:
    sys.stdout.write(json.dumps({"what": what, **numbers}) + "\n")
