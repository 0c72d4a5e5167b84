from pathlib import Path

import numpy as np
import pytest

from lf_ray.bench.contest.frozen import frozen_path
from lf_ray.bench.contest.race import OURS, PLAIN_RAY, SUGGESTED, run_search
from lf_ray.bench.contest.tables import Ranking
from lf_ray.bench.replay import CACHED_COMPILE_S, ReplayTable, replay_table
from lf_ray.clock import FakeClock
from lf_ray.errors import RecordError
from lf_ray.protocol import Budget, KnobValue, OutcomeKind, Purpose, TrialRequest
from lf_ray.record.journal import Journal
from lf_ray.search.space import Space, space_from_literal
from lf_ray.testing.sim.cluster import SimulatedCluster

LITERAL: dict[str, list[KnobValue]] = {
    "graph.scope": ["off", "step+optimizer"],
    "batch.per_gpu": [16, 64, 704, 768],
    "overlap.ratio": [0.0, 0.6, 1.0],
}
BUDGET = Budget(min_steps=20, max_steps=60, target_frac=0.02)


def write_grid(
    path: Path,
    cluster: SimulatedCluster,
    num_visits: int = 2,
    literal: dict[str, list[KnobValue]] = LITERAL,
) -> Space:
    """Runs a grid on a simulated cluster and keeps it as a sweep would."""
    space = space_from_literal(literal, cluster.truth.baseline())
    with Journal(path, cluster.clock) as journal:
        journal.append(
            "sweep",
            id="x1",
            name="overlap",
            config={"cluster": {"workers": 8, "kind": "sim_8xh200"}},
            space=space.to_plain(),
            space_hash=space.fingerprint,
            baseline_knobs=dict(space.baseline),
            machine={},
            versions={},
            data_id="",
            seed=0,
        )
        for index, knobs in enumerate(space.points()):
            for visit in range(num_visits):
                request = TrialRequest(
                    id=f"t{index:03d}" + (f"r{visit}" if visit else ""),
                    knobs=knobs,
                    seed=0,
                    purpose=Purpose.REPLICATE if visit else Purpose.SEARCH,
                    replicate_of=f"t{index:03d}" if visit else None,
                    budget=BUDGET,
                )
                journal.append("replicate" if visit else "started", request=request)
                journal.append("finished", record=cluster.run(request))
    return space


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[ReplayTable, SimulatedCluster]:
    path = tmp_path_factory.mktemp("grid") / "journal.jsonl"
    cluster = SimulatedCluster("sim_8xh200", seed=5)
    write_grid(path, cluster)
    return replay_table(path), cluster


def test_a_journal_becomes_a_table_of_the_same_standing(
    played: tuple[ReplayTable, SimulatedCluster],
) -> None:
    table, cluster = played
    assert table.num_gpus == 8
    assert table.recorded_frac == 1.0
    assert table.gradients
    for knobs in table.space.points():
        truth = cluster.true_samples_per_s(knobs)
        # One visit of eager steps, which scatter by 15 % and wander, says little more.
        scatter_frac = 0.25 if knobs["graph.scope"] == "off" else 0.03
        assert table.true_samples_per_s(knobs) == pytest.approx(truth, rel=scatter_frac)


def test_a_visit_is_played_back_with_its_trace_and_its_costs(
    played: tuple[ReplayTable, SimulatedCluster],
) -> None:
    table, _ = played
    clock = FakeClock()
    group = table.group(0, clock, set(), with_references=True)
    knobs = table.space.canonical({"graph.scope": "step+optimizer"})
    request = TrialRequest(id="a", knobs=knobs, seed=0, purpose=Purpose.SEARCH, budget=BUDGET)
    record = group.run(request)
    assert record.outcome.kind is OutcomeKind.COMPLETED
    assert record.outcome.effective["replayed"] is True
    assert record.outcome.costs_s["restart"] > 10
    assert sum(record.outcome.costs_s.values()) == pytest.approx(clock.monotonic_s())
    recorded = [r.trace.wall_s[:10] for g in table.records.values() for r in g if r.trace]
    assert record.trace is not None
    assert record.trace.wall_s[:10] in recorded
    assert group.run(request).outcome.costs_s["restart"] == 0


def test_a_batch_compiles_in_full_once_a_machine(
    played: tuple[ReplayTable, SimulatedCluster],
) -> None:
    table, cluster = played
    clock, compiled = FakeClock(), set[KnobValue]()
    compile_s = cluster.truth.profile.costs.compile_s
    assert 0 < CACHED_COMPILE_S < compile_s
    spent_s = []
    for name in "abc":
        group = table.group(0, clock, compiled, with_references=False)
        for batch in (16, 64, 16):
            knobs = table.space.canonical({"batch.per_gpu": batch})
            request = TrialRequest(id=name, knobs=knobs, seed=0, purpose=Purpose.SEARCH)
            costs_s = group.run(request).outcome.costs_s
            spent_s.append(costs_s.get("compile", 0.0))
            assert costs_s.get("reference", 0.0) == 0
    full, cached = [compile_s, compile_s, 0.0], [CACHED_COMPILE_S, CACHED_COMPILE_S, 0.0]
    assert spent_s == pytest.approx(full + cached + cached)


def test_other_workers_meet_every_batch_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    backends: list[KnobValue] = ["caching", "arena"]
    write_grid(path, SimulatedCluster("sim_8xh200"), 1, {"memory.backend": backends})
    table = replay_table(path)
    group = table.group(0, FakeClock(), set(), with_references=True)
    costs = []
    for backend in ("caching", "caching", "arena"):
        knobs = table.space.canonical({"memory.backend": backend})
        request = TrialRequest(id="a", knobs=knobs, seed=0, purpose=Purpose.SEARCH)
        costs.append(group.run(request).outcome.costs_s)
    assert costs[0]["reference"] > 0
    assert costs[1].get("reference", 0.0) == 0
    assert costs[2]["restart"] > 0
    assert costs[2]["compile"] == CACHED_COMPILE_S
    assert costs[2]["reference"] == costs[0]["reference"]


def test_the_shipped_table_knows_what_its_machine_would_be_told() -> None:
    table = replay_table(frozen_path("2xh200"))
    assert table.suggestion is not None
    assert set(table.suggestion) == set(table.space.choices)
    assert table.suggestion["batch.per_gpu"] == 64
    assert table.true_samples_per_s({**table.space.baseline, **table.suggestion}) > 0
    told = run_search(table, Ranking(table), SUGGESTED, seed=0, max_trials=20)
    untold = run_search(table, Ranking(table), OURS, seed=0, max_trials=20)
    assert told.gpu_s_to_near < untold.gpu_s_to_near


def test_failures_and_gaps_are_played_back_too(
    played: tuple[ReplayTable, SimulatedCluster],
) -> None:
    table, _ = played
    group = table.group(0, FakeClock(), set(), with_references=False)
    too_large = table.space.canonical({"batch.per_gpu": 768})
    request = TrialRequest(id="a", knobs=too_large, seed=0, purpose=Purpose.SEARCH)
    record = group.run(request)
    assert record.outcome.kind is OutcomeKind.INFEASIBLE
    assert record.outcome.error_kind == "oom"
    missing = table.space.canonical({"batch.per_gpu": 24})
    gap = group.run(TrialRequest(id="b", knobs=missing, seed=0, purpose=Purpose.SEARCH))
    assert gap.outcome.error_kind == "not_recorded"


def test_searchers_run_on_a_journal(played: tuple[ReplayTable, SimulatedCluster]) -> None:
    table, _ = played
    ranking = Ranking(table)
    ours = run_search(table, ranking, OURS, seed=0, max_trials=20)
    plain = run_search(table, ranking, PLAIN_RAY, seed=0, max_trials=20)
    assert ours.regret_frac < 0.02
    assert ours.num_repeat_oom == 0
    assert np.isfinite(ours.gpu_s_to_near)
    assert plain.gpu_s_total > ours.gpu_s_to_near


def test_a_journal_without_measurements_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    cluster = SimulatedCluster("sim_8xh200")
    space = space_from_literal({"batch.per_gpu": [768]}, cluster.truth.baseline())
    with Journal(path, cluster.clock) as journal:
        journal.append(
            "sweep",
            id="x1",
            name="overlap",
            config={},
            space=space.to_plain(),
            space_hash="",
            baseline_knobs=dict(space.baseline),
            machine={},
            versions={},
            data_id="",
            seed=0,
        )
    with pytest.raises(RecordError, match="measured points"):
        replay_table(path)
