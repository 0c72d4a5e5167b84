"""What makes a point worth a visit: chance to fit, price, and what knobs do by themselves."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from lf_ray.analysis.points import Gatherer, gather
from lf_ray.protocol import ChangeCost, KnobValue, OutcomeKind
from lf_ray.search.plan.decisions import Rules, Told
from lf_ray.search.plan.prices import prices_of
from lf_ray.search.samplers.fitting import fit_probs
from lf_ray.search.samplers.neighbours import neighbours
from lf_ray.search.samplers.surrogate import Measured, Worth, expected_gain_frac, picked
from lf_ray.search.space import point_key, space_from_literal
from lf_ray.search.start.prior import prior_of
from lf_ray.settings import ClusterSettings, MemorySettings, SweepConfig, SweepSettings
from lf_ray.testing.fake_sweep import FakeSweep
from lf_ray.testing.objectives import BASELINE_KNOBS, KneeObjective

LITERAL: dict[str, list[KnobValue]] = {
    "memory.backend": ["caching", "expandable"],
    "batch.per_gpu": [16, 32, 64, 96, 512],
}
SPACE = space_from_literal(LITERAL, {**BASELINE_KNOBS, "batch.per_gpu": 16})


def at(batch: int, backend: str = "caching", **more: KnobValue) -> dict[str, KnobValue]:
    named = {name.replace("__", "."): value for name, value in more.items()}
    return SPACE.canonical({"batch.per_gpu": batch, "memory.backend": backend, **named})


def ran(batch: int, reserved_frac: float | None, backend: str = "caching") -> Told:
    return Told(
        at(batch, backend),
        OutcomeKind.COMPLETED,
        100.0,
        reserved_frac=reserved_frac,
        peak_frac=reserved_frac and 0.8 * reserved_frac,
    )


def lost(batch: int, backend: str = "caching") -> Told:
    return Told(at(batch, backend), OutcomeKind.INFEASIBLE, None)


def test_what_is_dominated_does_not_fit_and_what_dominates_nothing_new_does() -> None:
    told = [ran(32, 0.6), lost(96)]
    probs = fit_probs(told, [at(16), at(32), at(64), at(96), at(512)])
    assert list(probs[:2]) == [1.0, 1.0]
    assert 0.0 < probs[2] < 1.0
    assert list(probs[3:]) == [0.0, 0.0]


def test_two_batches_tell_where_memory_ends() -> None:
    told = [ran(16, 0.30), ran(32, 0.40)]
    fits = dict(zip((64, 96, 512), fit_probs(told, [at(64), at(96), at(512)])))
    assert fits[64] > 0.99
    assert fits[96] > 0.9
    assert fits[512] < 0.001


def test_one_batch_leaves_it_open_and_none_more_so() -> None:
    one = fit_probs([ran(16, 0.5)], [at(32), at(64), at(512)])
    assert one[0] == 1.0
    assert one[0] > one[1] > one[2] > 0
    blind = fit_probs([ran(16, None)], [at(32), at(512)])
    assert blind[0] == pytest.approx(0.5)
    assert blind[1] == pytest.approx(16 / 512)


def test_another_allocator_may_make_room_for_what_did_not_fit() -> None:
    told = [ran(32, 0.7), ran(64, 0.95), lost(96)]
    probs = fit_probs(told, [at(96), at(96, "expandable"), at(512, "expandable")])
    assert probs[0] == 0.0
    assert probs[1] > 0.3
    assert probs[2] < 0.01


def test_two_knobs_at_once_are_among_the_neighbours() -> None:
    keys = [point_key(point) for point in neighbours(SPACE, [at(64)], seed=0)]
    assert point_key(at(96, "expandable")) in keys
    assert point_key(at(32)) in keys
    assert point_key(at(64)) not in keys


def test_effects_add_up() -> None:
    """From points that differ in one knob each the best of three together is foreseen."""
    literal: dict[str, list[KnobValue]] = {
        "graph.scope": ["off", "step"],
        "overlap.comm_dtype": ["fp32", "bf16"],
        "batch.per_gpu": [8, 16, 32, 64],
        "data.workers": [0, 1, 2, 4],
    }
    space = space_from_literal(literal, {**BASELINE_KNOBS, "batch.per_gpu": 8, "data.workers": 0})

    def rate(knobs: Any) -> float:
        gain = 1.5 if knobs["graph.scope"] == "step" else 1.0
        gain *= 1.3 if knobs["overlap.comm_dtype"] == "bf16" else 1.0
        return float(gain * knobs["batch.per_gpu"] ** 0.5)

    changes: list[dict[str, KnobValue]] = [
        {},
        {"graph.scope": "step"},
        {"overlap.comm_dtype": "bf16"},
        {"batch.per_gpu": 64},
        {"batch.per_gpu": 16},
        {"data.workers": 4},
        {"data.workers": 2},
    ]
    known = [Measured(space.canonical(c), rate(space.canonical(c)), 0.003) for c in changes]
    candidates = list(space.points())
    first = candidates[picked(space, known, candidates, 1)[0]]
    assert (first["graph.scope"], first["overlap.comm_dtype"]) == ("step", "bf16")
    assert first["batch.per_gpu"] == 64
    assert expected_gain_frac(space, known, candidates) > 0.5
    never = np.array([float(point["batch.per_gpu"] != 64) for point in candidates])
    worth = dataclasses.replace(Worth.alike(len(candidates)), fits_C=never)
    assert candidates[picked(space, known, candidates, 1, worth)[0]]["batch.per_gpu"] != 64


def test_what_costs_more_must_promise_more() -> None:
    space = space_from_literal({"data.workers": list(range(11))}, BASELINE_KNOBS)
    known = [Measured(space.canonical({"data.workers": n}), 100.0 + n, 0.003) for n in (0, 2, 4, 5)]
    candidates = [space.canonical({"data.workers": n}) for n in (8, 9)]
    even = Worth.alike(2)
    assert picked(space, known, candidates, 1, even) == [1]
    dear = dataclasses.replace(even, change_s_C=np.array([1.0, 1000.0]))
    assert picked(space, known, candidates, 1, dear) == [0]


def test_prices_are_what_changes_have_cost() -> None:
    sweep = FakeSweep(KneeObjective(), rules=Rules(trials=4))
    sweep.run()
    records = sweep.state.in_order
    prices = prices_of(records, records[-1].request.knobs)
    assert prices.change_s[ChangeCost.HOT] <= prices.change_s[ChangeCost.RECAPTURE]
    assert prices.change_s[ChangeCost.RECAPTURE] <= prices.change_s[ChangeCost.RESTART]
    same_s, samples = prices.price(records[-1].request.knobs)
    assert same_s == prices.change_s[ChangeCost.HOT]
    assert samples == 12 * records[-1].samples_per_step


def test_gathering_bit_by_bit_is_gathering_at_once() -> None:
    sweep = FakeSweep(KneeObjective(noise_frac=0.02, spread_frac=0.03), rules=Rules(trials=8))
    sweep.run()
    records, gatherer = sweep.state.in_order, Gatherer()
    for count in range(1, len(records) + 1):
        assert gatherer.gather(records[:count]) == gather(records[:count])


@pytest.mark.parametrize(
    ("kind", "device", "gpus", "suggest", "asked"),
    [
        ("one_node_8gpu", "cuda", ["NVIDIA H200"] * 8, None, True),
        ("one_node_8gpu", "cuda", ["NVIDIA H200"] * 8, False, False),
        ("one_node_8gpu", "cuda", ["Unknown X1"] * 8, None, False),
        ("cpu", "cpu", [], None, False),
        ("sim_8xh200", "cpu", ["NVIDIA H200"] * 8, True, False),
    ],
)
def test_a_simulated_cluster_suggests_on_real_gpus_only(
    kind: str, device: str, gpus: list[str], suggest: bool | None, asked: bool
) -> None:
    config = SweepConfig(
        cluster=ClusterSettings(kind=kind, device=device, workers=8),
        sweep=SweepSettings(suggest=suggest),
    )
    prior = prior_of(config, SPACE, gpus)
    assert (prior is not None) == asked
    if prior is not None:
        assert set(prior.knobs) == set(LITERAL)
        assert int(prior.knobs["batch.per_gpu"]) >= 64
        assert "simulated" in prior.words


def test_what_a_memory_limit_rules_out_is_not_suggested() -> None:
    def suggested(limit_gb: float | None) -> int:
        config = SweepConfig(
            cluster=ClusterSettings(kind="one_node_8gpu", device="cuda", workers=8),
            memory=MemorySettings(limit_gb=limit_gb),
        )
        prior = prior_of(config, SPACE, ["NVIDIA H200"] * 8)
        assert prior is not None
        return int(prior.knobs["batch.per_gpu"])

    assert suggested(40.0) < suggested(None) == suggested(1000.0)
