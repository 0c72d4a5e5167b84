import dataclasses
import time

import numpy as np
import pytest

from lf_ray.clock import FakeClock
from lf_ray.errors import ConfigError
from lf_ray.measure import pooled
from lf_ray.protocol import (
    Budget,
    Knobs,
    KnobValue,
    OutcomeKind,
    Purpose,
    TrialRecord,
    TrialRequest,
)
from lf_ray.testing.sim.cluster import SimulatedCluster, Truth
from lf_ray.testing.sim.profiles import PROFILES

BUDGET = Budget(min_steps=20, max_steps=60, target_frac=0.01)


def request_of(knobs: Knobs, name: str = "t000", budget: Budget = BUDGET) -> TrialRequest:
    return TrialRequest(id=name, knobs=dict(knobs), seed=0, purpose=Purpose.SEARCH, budget=budget)


def captured(cluster: SimulatedCluster, **changes: KnobValue) -> dict[str, KnobValue]:
    point = cluster.truth.baseline() | {"graph.scope": "step+optimizer"}
    return point | {name.replace("__", "."): value for name, value in changes.items()}


@pytest.mark.parametrize("profile", list(PROFILES))
def test_a_visit_is_a_whole_record_that_says_it_is_simulated(profile: str) -> None:
    cluster = SimulatedCluster(profile)
    record = cluster.run(request_of(captured(cluster)))
    assert record.outcome.kind is OutcomeKind.COMPLETED
    assert record.outcome.effective["simulated"] is True
    assert TrialRecord.from_json(record.to_json()) == record
    assert record.gradients
    assert record.throughput_samples_per_s is not None
    assert (
        record.samples_per_step
        == PROFILES[profile].num_ranks * PROFILES[profile].baseline["batch.per_gpu"]
    )


def test_a_reading_depends_on_seed_and_request_and_not_on_what_came_before() -> None:
    first = SimulatedCluster("sim_2xh200", seed=3)
    second = SimulatedCluster("sim_2xh200", seed=3)
    second.run(request_of(captured(second, batch__per_gpu=16), "t009"))
    point = captured(first)
    again = second.run(request_of(point, "t001"))
    assert first.run(request_of(point, "t001")).trace == again.trace
    assert first.run(request_of(point, "t002")).trace != again.trace
    assert (
        SimulatedCluster("sim_2xh200", seed=4).run(request_of(point, "t001")).trace != again.trace
    )


def test_intervals_cover_the_truth() -> None:
    cluster = SimulatedCluster("sim_2xh200_slow", seed=1)
    point = captured(cluster)
    truth = cluster.true_samples_per_s(point)
    hits = []
    for index in range(200):
        rate = cluster.run(request_of(point, f"t{index}")).throughput_samples_per_s
        assert rate is not None
        both = pooled([rate], 0.002)
        hits.append(both.lo <= truth <= both.hi)
    assert np.mean(hits) >= 0.91


def test_every_second_of_the_clock_is_charged_and_changes_cost_what_they_should() -> None:
    cluster = SimulatedCluster("sim_2xh200", clock=FakeClock())
    point = captured(cluster)
    seconds: dict[str, dict[str, float]] = {}
    steps = [
        ("start", point),
        ("same", point),
        ("hot", point | {"batch.lr_rule": "sqrt"}),
        ("recapture", point | {"overlap.ratio": 0.0}),
        ("restart", point | {"memory.backend": "expandable"}),
    ]
    for name, knobs in steps:
        before_s = cluster.clock.monotonic_s()
        costs_s = dict(cluster.run(request_of(knobs, name)).outcome.costs_s)
        assert sum(costs_s.values()) == pytest.approx(cluster.clock.monotonic_s() - before_s)
        seconds[name] = costs_s
    assert seconds["start"]["restart"] == seconds["restart"]["restart"] > 10
    assert (
        seconds["same"]["restart"] == seconds["same"]["capture"] == seconds["hot"]["capture"] == 0
    )
    assert 0 < seconds["recapture"]["capture"] < 1
    assert seconds["start"]["reference"] > 0
    assert seconds["recapture"]["reference"] == 0
    assert cluster.gpu_seconds == pytest.approx(2 * cluster.clock.monotonic_s())


def test_what_does_not_fit_is_infeasible_and_a_late_failure_costs_the_group() -> None:
    cluster = SimulatedCluster("sim_8xa100")
    baseline = cluster.truth.baseline()
    cluster.run(request_of(baseline))
    too_large = cluster.run(request_of(baseline | {"batch.per_gpu": 96}, "t001"))
    assert too_large.outcome.kind is OutcomeKind.INFEASIBLE
    assert too_large.outcome.error_kind == "oom"
    assert "GiB" in too_large.outcome.reason
    assert too_large.throughput_samples_per_s is None
    assert not too_large.outcome.group_lost
    assert cluster.true_samples_per_s(baseline | {"batch.per_gpu": 96}) == 0
    pool = baseline | {"batch.per_gpu": 96, "memory.backend": "arena"}
    assert cluster.true_samples_per_s(pool) > 0

    records = [
        cluster.run(request_of(baseline | {"graph.scope": "step", "batch.per_gpu": n}, f"b{n}"))
        for n in range(64, 76)
    ]
    lost = [index for index, record in enumerate(records) if record.outcome.group_lost]
    assert lost
    assert "capture" in records[lost[0]].outcome.reason
    assert records[lost[0]].outcome.costs_s["restart"] == 0
    assert records[lost[0] + 1].outcome.costs_s["restart"] > 0


def test_feasibility_is_monotone() -> None:
    truth = Truth("sim_8xh200")
    for changes in ({}, {"graph.scope": "step"}, {"overlap.comm_dtype": "bf16"}):
        fits = [
            truth.samples_per_s(truth.baseline() | {"batch.per_gpu": batch} | changes) > 0
            for batch in range(16, 704, 16)
        ]
        assert fits == sorted(fits, reverse=True)
        assert fits[0]
        assert not fits[-1]


def test_the_optimum_is_the_best_of_the_space() -> None:
    truth = Truth("sim_2xh200")
    points = [
        truth.baseline() | {"graph.scope": scope, "batch.per_gpu": batch}
        for scope in ("off", "step")
        for batch in (16, 64, 2048)
    ]
    knobs, rate = truth.optimum(points)
    assert (knobs["graph.scope"], knobs["batch.per_gpu"]) == ("step", 64)
    assert rate == max(truth.samples_per_s(point) for point in points)


def test_more_ranks_send_more_and_gain_less_than_linearly() -> None:
    base = PROFILES["sim_8xh200"]
    point = Truth(base).baseline() | {"graph.scope": "step+optimizer"}
    rates = [
        Truth(dataclasses.replace(base, num_ranks=ranks)).samples_per_s(point) / ranks
        for ranks in (1, 2, 4, 8, 64)
    ]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0.4 * rates[0]


def test_an_unknown_profile_is_refused_with_the_names() -> None:
    with pytest.raises(ConfigError, match="sim_8xa100"):
        SimulatedCluster("sim_4xh200")


def test_a_trial_takes_less_than_ten_milliseconds() -> None:
    cluster = SimulatedCluster("sim_8xh200")
    sizes = [float(2**power) for power in range(4, 12)]
    started_s = time.process_time()
    for index in range(0, 1000, 3):
        knobs = captured(
            cluster,
            overlap__bucket_size_mb=sizes[index % 8],
            overlap__ratio=(index // 8 % 11) / 10,
            batch__per_gpu=16 * (1 + index // 88 % 6),
            pipeline__prefix=("off", "on")[index // 500],
        )
        cluster.run(request_of(knobs, f"t{index:03d}"))
    assert time.process_time() - started_s < 334 * 10e-3
