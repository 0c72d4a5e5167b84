"""Two GPUs: NCCL inside the graph, ratios, dtypes, pipelining, against reduce-after-backward."""

import json
import statistics
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from lf_ray.runtime.session import Session
from lf_ray.settings import SweepConfig
from lf_ray.testing.ranks import RankPlace, RankPool
from lf_ray.testing.synthetic import SyntheticParts
from lf_ray.testing.toy import ToyModel, ToyParts, toy_config, toy_request

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
    pytest.mark.timeout(600),
]
KIB = 1 / 1024
WHOLE = {"graph.scope": "step+optimizer"}
PIPELINED = {**WHOLE, "pipeline.prefix": "on"}


@pytest.fixture
def pool() -> Iterator[RankPool]:
    pool = RankPool(2, backend="nccl")
    yield pool
    pool.close()


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


class GpuToyParts(ToyParts):
    def __init__(self) -> None:
        super().__init__(width=256, num_blocks=6)

    def model(self, config: SweepConfig, device: torch.device) -> Any:
        return CastingToy(256, 6).to(device, torch.bfloat16)


def _trial(session: Session, knobs: dict[str, Any], steps: int) -> dict[str, Any]:
    effective = session.prepare(toy_request(session._config, knobs))
    session.rehearse()
    samples = session.run(1)
    metrics = dict(session.capture())
    samples += session.run(steps - 1)
    result: dict[str, Any] = {
        "losses": [sample.loss for sample in samples],
        "norms": [sample.grad_norm for sample in samples],
        "weights": session.weights_checksum(),
        "gate": session.gate().to_json(),
        "phases": dict(samples[-1].phases_s),
        "step_s": [sample.wall_s for sample in samples],
        "memory": dict(session.memory()),
        "effective": dict(effective),
    }
    result["metrics"] = {**metrics, **session.measure_overlap()}
    session.reset()
    return result


def _trials(place: RankPlace, trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    session = Session(
        toy_config(2),
        place.rank,
        2,
        place.device,
        place.work_group,
        place.control_group,
        GpuToyParts(),
    )
    results = [_trial(session, knobs, 10) for knobs in trials]
    session.close()
    return results


def _update_of(knobs: dict[str, Any]) -> str:
    return "sharded" if knobs.get("update.sharded") == "on" else "whole"


def test_graph_ratio_and_pipelining_give_the_eager_bits(pool: RankPool) -> None:
    plans: list[dict[str, Any]] = [
        {"overlap.bucket_size_mb": size, "overlap.ratio": ratio, **order}
        for size in (64 * KIB, 1.0)
        for ratio in (0.0, 0.5, 1.0)
        for order in ({}, WHOLE, PIPELINED)
    ]
    captured = [plan for plan in plans if plan["overlap.ratio"] == 0.5 and "graph.scope" in plan]
    plans += [{**plan, "update.sharded": "on"} for plan in captured]
    for results in pool.run(_trials, plans, deadline_s=500):
        for knobs, result in zip(plans, results):
            assert result["effective"]["update"] == _update_of(knobs)
            assert result["gate"]["passed"], (knobs, result["gate"])
            assert result["gate"]["bit_equal"], knobs
            for name in ("losses", "norms", "weights"):
                assert result[name] == results[0][name], (name, knobs)


def test_bf16_wire_and_accumulation_pass_their_bounds(pool: RankPool) -> None:
    bf16 = {"overlap.comm_dtype": "bf16", "overlap.bucket_size_mb": 64 * KIB}
    plans = [{**bf16, **order} for order in ({}, WHOLE, PIPELINED)]
    plans += [{**plan, "update.sharded": "on"} for plan in plans if "graph.scope" in plan]
    num_plans = len(plans)
    plans += [{**plan, "batch.accumulation": 3} for plan in plans]
    for results in pool.run(_trials, plans, deadline_s=500):
        for knobs, result in zip(plans, results):
            assert result["effective"]["update"] == _update_of(knobs)
            assert result["gate"]["passed"], (knobs, result["gate"])
        for alike in (results[:num_plans], results[num_plans:]):
            for name in ("losses", "norms", "weights"):
                assert len({str(result[name]) for result in alike}) == 1, name


def _close_order(place: RankPlace) -> bool:
    """Ends with a live graph that holds collectives; must not hang."""
    group = dist.new_group(backend="nccl")
    session = Session(
        toy_config(2), place.rank, 2, place.device, group, place.control_group, GpuToyParts()
    )
    session.prepare(toy_request(toy_config(2), WHOLE))
    session.run(1)
    session.capture()
    session.run(3)
    session.close()
    torch.cuda.synchronize()
    dist.destroy_process_group(group)
    return True


def test_closing_frees_graphs_before_the_group_goes(pool: RankPool) -> None:
    assert pool.run(_close_order, deadline_s=60) == [True, True]


def _groot(place: RankPlace, trials: list[dict[str, Any]], steps: int) -> list[dict[str, Any]]:
    config = toy_config(2)
    config.model.size, config.model.image_px = "3b", 224
    config.train.lr = 1e-4
    session = Session(
        config,
        place.rank,
        2,
        place.device,
        place.work_group,
        place.control_group,
        SyntheticParts(fused=True),
    )
    results = [_trial(session, knobs, steps) for knobs in trials]
    session.close()
    return results


def test_groot_steps_are_measured(pool: RankPool) -> None:
    trials: list[dict[str, Any]] = [
        {"batch.per_gpu": 32, "overlap.bucket_size_mb": 256.0, **order}
        for order in (
            {"overlap.ratio": 1.0},
            {"overlap.ratio": 1.0, **WHOLE},
            {"overlap.ratio": 1.0, **PIPELINED},
            {"overlap.ratio": 0.0, **PIPELINED},
            {"overlap.ratio": 0.0, "overlap.comm_dtype": "bf16", **PIPELINED},
            {"overlap.ratio": 1.0, "update.sharded": "on", **PIPELINED},
        )
    ]
    first, second = pool.run(_groot, trials, 24, deadline_s=550)
    for knobs, one, two in zip(trials, first, second):
        settled = [max(pair) for pair in zip(one["step_s"][6:], two["step_s"][6:])]
        median_s = statistics.median(settled)
        evidence = {
            "what": "groot_3b_two_gpus",
            "n": len(settled),
            "median_s": median_s,
            "interval": [min(settled), max(settled)],
            "samples_per_s": 64 / median_s,
            "peak_bytes": one["memory"]["peak"],
            "phases_s": {key: round(value, 5) for key, value in one["phases"].items()},
            "gate": one["gate"],
            **one["metrics"],
            **knobs,
        }
        sys.stdout.write(json.dumps(evidence) + "\n")
        assert one["gate"]["passed"], (knobs, one["gate"])
