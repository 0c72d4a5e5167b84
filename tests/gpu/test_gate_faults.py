"""Faults inside a captured step are caught by the numerics gate on a GPU, each by its own test.

One GPU stands in for two ranks: each message is copied there and back on a stream of its own. The
reference is taken by a sound trial; then the part is made to misbehave and the step captured.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from lf_ray.runtime.draws import Draws
from lf_ray.runtime.session import Session
from lf_ray.runtime.update.collectives import Collective, NoCollective
from lf_ray.settings import SweepConfig
from lf_ray.testing.ranks import RankPlace, RankPool
from lf_ray.testing.toy import ToyModel, ToyParts, toy_config, toy_request

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(300),
]
Run = Callable[..., Any]
WIDTH, NUM_BLOCKS = 128, 4
KNOBS: dict[str, Any] = {
    "overlap.bucket_size_mb": 64 / 1024,
    "overlap.ratio": 0.5,
    "batch.accumulation": 2,
}
ORDERS: dict[str, dict[str, Any]] = {
    "whole": {"graph.scope": "step+optimizer"},
    "pipelined": {"graph.scope": "step+optimizer", "pipeline.prefix": "on"},
}


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs a case in a fresh process with one GPU."""
    pool = RankPool(1, backend="nccl")
    yield lambda case, *args: pool.run(case, *args, deadline_s=240)[0]
    pool.close()


class FaultyCopy(NoCollective):
    """Copies each slice there and back; the second message of a step may come twice, or late."""

    def __init__(self, device: torch.device, parts: "FaultyParts") -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._parts = parts
        self._count = 0

    def start(self, values_N: Tensor) -> None:
        self._count += 1
        fault = self._parts.fault if self._count == 2 else ""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            values_N.copy_(values_N.clone())
            if fault == "twice":
                # what two equal ranks would see
                values_N.mul_(2.0)
            if fault == "stale":
                kept = self._parts.kept.setdefault(values_N.numel(), torch.zeros_like(values_N))
                late = kept.clone()
                kept.copy_(values_N)
                values_N.copy_(late)

    def wait(self) -> None:
        torch.cuda.current_stream().wait_stream(self._stream)
        self._count = 0


class FaultyModel(ToyModel):
    """Loses its second micro-batch."""

    parts: "FaultyParts"
    calls = 0

    def head_loss(self, features: Any, batch: dict[str, Tensor], draws: Draws) -> Tensor:
        loss = super().head_loss(features, batch, draws)
        self.calls += 1
        lost = self.parts.fault == "dropped" and self.calls % 2 == 0
        return loss * 0.0 if lost else loss


class FaultyParts(ToyParts):
    """Sound until `fault` says what breaks."""

    fault = ""

    def __init__(self) -> None:
        super().__init__(width=WIDTH, num_blocks=NUM_BLOCKS)
        self.kept: dict[int, Tensor] = {}

    def model(self, config: SweepConfig, device: torch.device) -> Any:
        model = FaultyModel(WIDTH, NUM_BLOCKS).to(device)
        model.parts = self
        return model

    def collective(self, work_group: Any, device: torch.device) -> Collective:
        return FaultyCopy(device, self)

    def draws(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        generator: torch.Generator,
        seed: int,
        step: int,
        rank: int,
        micro_batch: int,
    ) -> Draws:
        frozen = self.fault == "frozen"
        return super().draws(shapes, generator, seed, 0 if frozen else step, rank, micro_batch)


def _verdicts(place: RankPlace, fault: str, order: str) -> list[dict[str, Any]]:
    parts = FaultyParts()
    session = Session(toy_config(1), 0, 1, place.device, None, place.control_group, parts)
    gates = []
    for now in ("", fault):
        session.prepare(toy_request(toy_config(1), {**KNOBS, **ORDERS[order]}))
        session.rehearse()
        session.run(1)
        parts.fault = now
        session.model.calls = 0
        session.capture()
        session.run(2)
        gates.append(session.gate().to_json())
        parts.fault = ""
        parts.kept.clear()  # or the reset would find a leak
        session.reset()
    session.close()
    return gates


@pytest.mark.parametrize("order", list(ORDERS))
@pytest.mark.parametrize("fault", ["twice", "stale", "frozen", "dropped"])
def test_fault_in_a_captured_step_is_caught(run: Run, fault: str, order: str) -> None:
    sound, faulty = run(_verdicts, fault, order)
    assert sound["passed"], sound
    assert not faulty["passed"]
    assert faulty["reason"]
