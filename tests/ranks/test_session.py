"""A session on gloo ranks: overlap changes nothing, the gate sees what does, warm equals cold."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from lf_ray.runtime.draws import Draws
from lf_ray.runtime.numerics.digest import checksum
from lf_ray.runtime.session import Session
from lf_ray.settings import SweepConfig
from lf_ray.testing.ranks import RankError, RankPlace, RankPool
from lf_ray.testing.toy import ToyModel, ToyParts, toy_config, toy_request

Ranks = Callable[[int], RankPool]
KIB = 1 / 1024

PLANS: list[dict[str, Any]] = [
    {"overlap.bucket_size_mb": size, "overlap.ratio": ratio}
    for size in (4 * KIB, 16 * KIB, 1.0)
    for ratio in (0.0, 0.5, 1.0)
]
CAPTURED: list[dict[str, Any]] = [
    {**PLANS[1], "graph.scope": "step"},
    {**PLANS[1], "graph.scope": "step+optimizer", "batch.accumulation": 2},
    {**PLANS[1], "graph.scope": "step+optimizer", "pipeline.prefix": "on"},
    {**PLANS[4], "graph.scope": "step+optimizer", "pipeline.prefix": "on", "batch.accumulation": 2},
    {**PLANS[4], "graph.scope": "step", "overlap.comm_dtype": "bf16"},
]


SHARING = {"graph.scope": "step+optimizer", "update.sharded": "on"}
SHARDED: list[dict[str, Any]] = [
    {**knobs, **SHARING} for knobs in (*PLANS[1:9:2], *CAPTURED, {"overlap.comm_dtype": "bf16"})
]


def _session(place: RankPlace, parts: ToyParts | None = None) -> Session:
    config = toy_config(place.world_size)
    return Session(
        config,
        place.rank,
        place.world_size,
        "cpu",
        place.work_group,
        place.control_group,
        parts or ToyParts(),
    )


def _trial(
    session: Session, knobs: dict[str, Any], steps: int = 6, seed: int = 0
) -> dict[str, Any]:
    request = toy_request(session._config, knobs, seed=seed)
    effective = session.prepare(request)
    session.rehearse()
    samples = session.run(1)
    session.capture()
    samples += session.run(steps - 1)
    gate = session.gate()
    assert session._rig is not None
    result = {
        "losses": [sample.loss for sample in samples],
        "norms": [sample.grad_norm for sample in samples],
        # Before the checksum of all masters brings together what ranks have updated apart.
        "computed_with": [int(checksum(item)) for item in session._rig.flat.computed_with],
        "weights": session.weights_checksum(),
        "gate": gate.to_json(),
        "effective": dict(effective),
        "phases": dict(samples[-1].phases_s),
        "wall": samples[-1].wall_s,
    }
    result["levels"] = dict(session.reset())
    return result


def _trials(place: RankPlace, trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    session = _session(place)
    results = [_trial(session, knobs) for knobs in trials]
    session.close()
    return results


def _warm_and_cold(place: RankPlace, a: dict[str, Any], b: dict[str, Any]) -> list[Any]:
    warm = _session(place)
    _trial(warm, b, seed=1)
    shared = _trial(warm, {**b, **SHARING, "overlap.comm_dtype": "bf16"})
    assert shared["effective"]["update"] == "sharded"
    after_b = _trial(warm, a)
    cold = _trial(_session(place), a)
    return [after_b, cold]


@pytest.mark.parametrize(("world_size", "plans"), [(2, PLANS), (4, PLANS[::2]), (8, PLANS[::4])])
def test_plans_pass_the_gate(ranks: Ranks, world_size: int, plans: list[dict[str, Any]]) -> None:
    results = ranks(world_size).run(_trials, plans)
    for rank_results in results:
        for knobs, result in zip(plans, rank_results):
            assert result["gate"]["passed"], (knobs, result["gate"])
            assert result["gate"]["bit_equal"] or world_size > 2
    if world_size == 2:
        assert len({result["weights"] for result in results[0]}) == 1
    for index in range(len(plans)):
        assert len({str(r[index]["norms"]) + str(r[index]["weights"]) for r in results}) == 1


def test_captured_and_pipelined_steps_give_the_eager_bits(ranks: Ranks) -> None:
    off = {"graph.scope": "off", "pipeline.prefix": "off"}
    eager = [{**knobs, **off} for knobs in CAPTURED]
    for results in ranks(2).run(_trials, CAPTURED + eager):
        for one, two in zip(results[: len(CAPTURED)], results[len(CAPTURED) :]):
            assert one["effective"]["graph"] == "emulated"
            assert one["gate"]["passed"], one["gate"]
            for name in ("losses", "norms", "weights", "gate"):
                assert one[name] == two[name]


def test_sharded_updates_give_the_bits_of_whole_ones(ranks: Ranks) -> None:
    """The reference they are compared with is not sharded; neither is the trial beside."""
    whole = [{**knobs, "update.sharded": "off"} for knobs in SHARDED]
    both = ranks(2).run(_trials, SHARDED + whole)
    for results in both:
        for one, two in zip(results[: len(SHARDED)], results[len(SHARDED) :]):
            assert (one["effective"]["update"], two["effective"]["update"]) == ("sharded", "whole")
            assert one["gate"]["passed"], one["gate"]
            for name in ("losses", "norms", "computed_with", "weights", "gate"):
                assert one[name] == two[name], name
    first, second = both
    assert [item["computed_with"] for item in first] == [item["computed_with"] for item in second]


class LowParts(ToyParts):
    """bf16 weights beside fp32 masters, as on a GPU, but for the parameters of `kept`."""

    def __init__(self, kept: str) -> None:
        super().__init__()
        self._kept = kept

    def model(self, config: SweepConfig, device: torch.device) -> Any:
        model = LowToy()
        for name, parameter in model.named_parameters():
            if not name.startswith(self._kept or "?"):
                parameter.data = parameter.data.bfloat16()
        return model


class LowToy(ToyModel):
    """Computes each layer in the dtype of its weights, and the loss in fp32."""

    def prefix(self, batch: Any) -> Any:
        return super().prefix({name: item.bfloat16() for name, item in batch.items()})

    def head_loss(self, features: Any, batch: Any, draws: Draws) -> Any:
        x_BW = features.float() + draws["time_B"][:, None] * draws["noise_BW"]
        for block in self.blocks:
            x_BW = x_BW + block(x_BW.to(next(block.parameters()).dtype), self.generator).float()
        out_BW = self.out(x_BW.to(self.out.weight.dtype)).float()
        return (out_BW - batch["y_BW"]).square().mean()


def _low_trials(place: RankPlace, kept: str, trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    session = _session(place, LowParts(kept))
    results = [_trial(session, knobs) for knobs in trials]
    session.close()
    return results


@pytest.mark.parametrize("kept", ["", "out"], ids=["all bf16", "one layer in fp32"])
def test_sharded_updates_of_bf16_weights_reach_all_ranks(ranks: Ranks, kept: str) -> None:
    """Masters of other ranks' parts go stale meanwhile; the checksum collects them."""
    plans = [SHARDED[1], SHARDED[6], {**SHARDED[1], "overlap.comm_dtype": "bf16"}]
    whole = [{**knobs, "update.sharded": "off"} for knobs in plans]
    first, second = ranks(2).run(_low_trials, kept, plans + whole)
    for results in (first, second):
        for one, two in zip(results[:3], results[3:]):
            assert (one["effective"]["update"], two["effective"]["update"]) == ("sharded", "whole")
            assert one["gate"]["passed"], one["gate"]
            assert len(one["computed_with"]) == (2 if kept else 1)
            for name in ("losses", "norms", "computed_with", "weights", "gate"):
                assert one[name] == two[name], name
    assert [item["computed_with"] for item in first] == [item["computed_with"] for item in second]


@pytest.mark.parametrize(("world_size", "plans"), [(4, SHARDED[1:5]), (8, SHARDED[3:5])])
def test_sharded_updates_pass_the_gate_of_more_ranks(
    ranks: Ranks, world_size: int, plans: list[dict[str, Any]]
) -> None:
    results = ranks(world_size).run(_trials, plans)
    for rank_results in results:
        assert [item["gate"]["reason"] for item in rank_results] == [""] * len(plans)
    for index in range(len(plans)):
        found = {str(r[index]["norms"]) + str(r[index]["computed_with"]) for r in results}
        assert len(found) == 1


def test_three_ranks_can_not_share_evenly(ranks: Ranks) -> None:
    with pytest.raises(RankError, match=r"update\.sharded=on"):
        ranks(3).run(_trials, SHARDED[:1])


def test_warm_equals_cold(ranks: Ranks) -> None:
    a = {"overlap.bucket_size_mb": 4 * KIB, "overlap.ratio": 0.5, "batch.accumulation": 2}
    b = {"overlap.bucket_size_mb": 1.0, "batch.per_gpu": 2}
    for warm, cold in ranks(2).run(_warm_and_cold, a, b):
        for name in ("losses", "norms", "weights", "gate", "effective"):
            assert warm[name] == cold[name]


class QuietParts(ToyParts):
    """No noise and no dropout: the gradient of a global batch is one well-defined number."""

    def model(self, config: SweepConfig, device: torch.device) -> Any:
        return ToyModel(drop_prob=0.0)

    def draws(self, shapes: Mapping[str, tuple[int, ...]], *place: Any) -> Draws:
        return {name: torch.zeros(shape) for name, shape in shapes.items()}


def _factorized(place: RankPlace, batches: list[tuple[int, int]]) -> list[Any]:
    results = []
    for per_gpu, accumulation in batches:
        session = _session(place, QuietParts())
        knobs = {"batch.per_gpu": per_gpu, "batch.accumulation": accumulation}
        effective = session.prepare(toy_request(toy_config(place.world_size), knobs))
        samples = session.run(3)
        results.append([effective["global_batch"], [item.grad_norm for item in samples]])
    return results


def test_equal_global_batches_give_equal_gradients(ranks: Ranks) -> None:
    for results in ranks(2).run(_factorized, [(12, 1), (6, 2), (4, 3), (2, 6)]):
        for global_batch, norms in results:
            assert global_batch == 24
            assert norms == pytest.approx(results[0][1], rel=2e-5)


def _overlap_metrics(place: RankPlace) -> list[dict[str, Any]]:
    session = _session(place)
    found = []
    plans: list[dict[str, Any]] = [{"overlap.ratio": 0.0}, {"overlap.ratio": 1.0}, SHARING]
    for changes in plans:
        knobs = {"overlap.bucket_size_mb": 4 * KIB, **changes}
        session.prepare(toy_request(toy_config(place.world_size), knobs))
        session.run(8)
        found.append(dict(session.measure_overlap()))
        session.reset()
    return found


def test_hidden_share_is_measured_once_for_equal_settings(ranks: Ranks) -> None:
    first, second = ranks(2).run(_overlap_metrics)
    assert first[0]["t_comm_s"] > 0
    for one, other in zip(first, second):
        assert one == other  # the slowest rank's, on every rank
        assert set(one) == {"t_comm_s", "t_no_comm_s", "overlap_hidden"}
    for name in ("t_comm_s", "t_no_comm_s"):
        assert first[0][name] == first[1][name]
        # A sharded step has messages, and work, of its own.
        assert first[2][name] not in (0.0, first[0][name])
