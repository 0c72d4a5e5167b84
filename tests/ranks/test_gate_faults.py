"""Every injected fault is caught by the numerics gate, each by its own test.

The reference is taken by a sound trial first; then the part is made to misbehave.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from lf_ray.runtime.draws import Draws
from lf_ray.runtime.session import Session
from lf_ray.runtime.update.collectives import Collective, GroupCollective
from lf_ray.settings import SweepConfig
from lf_ray.testing.ranks import RankPlace, RankPool
from lf_ray.testing.toy import ToyModel, ToyParts, toy_config, toy_request

Ranks = Callable[[int], RankPool]
KNOBS = {"overlap.bucket_size_mb": 8 / 1024, "overlap.ratio": 0.5}


class FaultyCollective(GroupCollective):
    """Reduces the second message of a step twice, or not at all, or only reads it too early."""

    def __init__(self, group: Any, parts: "FaultyParts") -> None:
        super().__init__(group)
        self._parts = parts
        self._count = self._num_gathers = self._num_rounds = 0

    def start(self, values_N: Tensor) -> None:
        self._count += 1
        fault = self._parts.fault if self._count == 2 else ""
        if fault == "stale":
            return
        if fault == "slight":
            values_N.mul_(1 + 1e-5)
        super().start(values_N)
        if fault == "twice":
            super().wait()
            super().start(values_N)

    def start_scatter(self, values_N: Tensor) -> None:
        self._count += 1
        self._num_rounds = 0
        if not (self._parts.fault == "lost scatter" and self._count == 2):
            super().start_scatter(values_N)

    def start_gather(self, values_N: Tensor) -> None:
        # The gate has the gradient gathered first; what follows are the new weights.
        self._num_gathers += 1
        weights = self._num_rounds == 1
        if not (self._parts.fault == "lost gather" and weights and self._num_gathers == 2):
            super().start_gather(values_N)

    def sum_now(self, values_N: Tensor) -> None:
        if self._parts.fault != "lost norm":
            super().sum_now(values_N)

    def wait(self) -> None:
        super().wait()
        self._num_rounds += bool(self._num_gathers)
        self._count = self._num_gathers = 0


class FaultyModel(ToyModel):
    """Loses its second micro-batch; or adds numbers in an order of its own, as atomics do."""

    parts: "FaultyParts"
    calls = 0

    def head_loss(self, features: Tensor, batch: dict[str, Tensor], draws: Draws) -> Tensor:
        loss = super().head_loss(features, batch, draws)
        self.calls += 1
        lost = self.parts.fault == "dropped" and self.calls % 2 == 0
        if self.parts.atomics and not torch.are_deterministic_algorithms_enabled():
            self.parts.order = -self.parts.order
            loss = loss * (1 + self.parts.order * 1e-4)
        return loss * 0.0 if lost else loss


class FaultyParts(ToyParts):
    """Sound until `fault` says what breaks."""

    fault = ""
    atomics = False
    order = 1.0

    def model(self, config: SweepConfig, device: torch.device) -> Any:
        model = FaultyModel()
        model.parts = self
        return model

    def collective(self, work_group: Any, device: torch.device) -> Collective:
        return FaultyCollective(work_group, self)

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


def _gate_with_fault(place: RankPlace, fault: str, knobs: dict[str, Any]) -> list[dict[str, Any]]:
    parts = FaultyParts()
    session = Session(
        toy_config(place.world_size),
        place.rank,
        place.world_size,
        "cpu",
        place.work_group,
        place.control_group,
        parts,
    )
    gates: list[dict[str, Any]] = []
    for now in ("", fault):
        session.prepare(toy_request(toy_config(place.world_size), knobs))
        session.rehearse()
        if not gates:
            session.run(3)
        parts.fault = now
        if gates:
            if isinstance(session._model, FaultyModel):
                session._model.calls = 0
            session.run(3)
        gates.append(session.gate().to_json())
        parts.fault = ""
        session.reset()
    return gates


@pytest.mark.parametrize("fault", ["twice", "stale", "frozen", "dropped"])
@pytest.mark.parametrize(("world_size", "comm_dtype"), [(2, "fp32"), (2, "bf16"), (4, "fp32")])
def test_fault_is_caught(ranks: Ranks, fault: str, world_size: int, comm_dtype: str) -> None:
    knobs = {**KNOBS, "overlap.comm_dtype": comm_dtype, "batch.accumulation": 2}
    verdicts = ranks(world_size).run(_gate_with_fault, fault, knobs)
    for sound, faulty in verdicts:
        assert sound["passed"], sound
        assert not faulty["passed"]
        assert faulty["reason"]
    assert all(verdict == verdicts[0] for verdict in verdicts)


@pytest.mark.parametrize("fault", ["lost scatter", "lost gather", "lost norm"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_fault_of_a_sharded_update_is_caught(ranks: Ranks, fault: str, world_size: int) -> None:
    knobs = {**KNOBS, "graph.scope": "step+optimizer", "update.sharded": "on"}
    verdicts = ranks(world_size).run(_gate_with_fault, fault, knobs)
    for sound, faulty in verdicts:
        assert sound["passed"], sound
        assert not faulty["passed"]
        assert faulty["reason"]


def _nan_on_rank(place: RankPlace, rank: int) -> dict[str, Any]:
    parts = FaultyParts()
    session = Session(
        toy_config(place.world_size),
        place.rank,
        place.world_size,
        "cpu",
        place.work_group,
        place.control_group,
        parts,
    )
    request = toy_request(toy_config(place.world_size), KNOBS)
    session.prepare(request)
    session.run(3)
    session.reset()
    session.prepare(request)
    if place.rank == rank:
        with torch.no_grad():
            session._model.out.bias[0] = float("nan")
    session.run(3)
    dist.barrier(place.work_group)
    return session.gate().to_json()


def test_loss_that_is_no_number_is_named_with_its_rank(ranks: Ranks) -> None:
    for verdict in ranks(2).run(_nan_on_rank, 1):
        assert not verdict["passed"]
        assert "rank 1: loss is nan" in verdict["reason"]


def _gate_of_unsteady(place: RankPlace, fault: str) -> list[dict[str, Any]]:
    """The reference differs from itself; the fault is smaller than that."""
    parts = FaultyParts()
    parts.atomics, parts.fault = True, fault
    session = Session(
        toy_config(place.world_size),
        place.rank,
        place.world_size,
        "cpu",
        place.work_group,
        place.control_group,
        parts,
    )
    gates = []
    for size_kib in (8, 4):
        knobs = {"overlap.bucket_size_mb": size_kib / 1024, "overlap.ratio": 0.5}
        session.prepare(toy_request(toy_config(place.world_size), knobs))
        session.run(3)
        gates.append(session.gate().to_json())
        session.reset()
    assert not torch.are_deterministic_algorithms_enabled()
    return gates


def test_a_fault_below_the_spread_of_atomics_is_caught_by_the_deterministic_gate(
    ranks: Ranks,
) -> None:
    for first, other in ranks(2).run(_gate_of_unsteady, ""):
        assert first["passed"], first
        assert other["passed"], other
    for first, other in ranks(2).run(_gate_of_unsteady, "slight"):
        assert not first["passed"]
        assert first["reason"].startswith("under deterministic algorithms")
        # once a group: the next plan is held to the spread alone
        assert other["passed"], other
