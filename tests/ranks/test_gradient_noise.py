"""Gradient norms of a small and a large batch on gloo ranks, against gradients taken one by one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lf_ray.runtime.session import Session
from lf_ray.runtime.steps.laps import NoLaps
from lf_ray.testing.ranks import RankPlace, RankPool
from lf_ray.testing.toy import ToyParts, toy_config, toy_request

Ranks = Callable[[int], RankPool]
NUM_STEPS = 3


def _norms(place: RankPlace, knobs: dict[str, Any]) -> dict[str, Any]:
    alone = place.world_size == 1
    config = toy_config(place.world_size)
    session = Session(
        config,
        place.rank,
        place.world_size,
        "cpu",
        None if alone else place.work_group,
        None if alone else place.control_group,
        ToyParts(),
    )
    session.prepare(toy_request(config, knobs))
    session.rehearse()
    session.run(4)
    before = session.weights_checksum()
    small, big, num_small, num_big = session.measure_noise(NUM_STEPS)
    result = {
        "found": (list(small), list(big)),
        "batches": (num_small, num_big),
        "kept": session.weights_checksum() == before,
        "true": _one_by_one(session, place),
        "next": [item.loss for item in session.run(2)],
    }
    session.close()
    return result


def _one_by_one(session: Session, place: RankPlace) -> tuple[list[float], list[float]]:
    trial = session._running()
    rig, feed = trial._equipment.rig, trial._equipment.feed
    pairs = 2 if place.world_size * feed.key.accumulation == 1 else 1
    small, big = [], []
    for index in range(NUM_STEPS):
        gradients = []
        rig.dropout.manual_seed(feed.dropout_seed(trial.step + index * pairs))
        for step in range(trial.step + index * pairs, trial.step + (index + 1) * pairs):
            inputs, _ = feed.next(step, NoLaps())
            for batch, draws in zip(inputs.batches, inputs.draws):
                named = [slot.parameter for slot in rig.flat.slots]
                loss = rig.model.head_loss(rig.model.prefix(batch), batch, draws)
                found = torch.autograd.grad(loss, named)
                gradients.append(torch.cat([item.reshape(-1) for item in found]))
        small.append(float(gradients[0].square().sum()))
        mean = torch.stack(gradients).mean(dim=0)
        if place.world_size > 1:
            dist.all_reduce(mean, group=place.work_group)
            mean /= place.world_size
        big.append(float(mean.square().sum()))
    return small, big


CASES: list[tuple[int, dict[str, Any], tuple[int, int]]] = [
    (2, {"overlap.ratio": 1.0}, (4, 8)),
    (2, {"overlap.ratio": 0.5, "batch.accumulation": 2}, (4, 16)),
    (2, {"overlap.ratio": 1.0, "overlap.comm_dtype": "bf16"}, (4, 8)),
    (2, {"graph.scope": "step+optimizer"}, (4, 8)),
    (1, {}, (4, 8)),
    (1, {"batch.accumulation": 2}, (4, 8)),
]


@pytest.mark.parametrize(("num_ranks", "knobs", "batches"), CASES)
def test_norms_are_those_of_gradients_taken_one_by_one(
    ranks: Ranks, num_ranks: int, knobs: dict[str, Any], batches: tuple[int, int]
) -> None:
    wide = 0.02 if "overlap.comm_dtype" in knobs else 1e-4
    for result in ranks(num_ranks).run(_norms, knobs):
        (small, big), (true_small, true_big) = result["found"], result["true"]
        assert small == pytest.approx(true_small, rel=wide)
        assert big == pytest.approx(true_big, rel=wide)
        assert result["kept"]
        assert result["batches"] == tuple(
            item * toy_config(num_ranks).batch.per_gpu // 4 for item in batches
        )
        assert len(result["next"]) == 2
