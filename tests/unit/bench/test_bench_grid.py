"""A grid visits every point, its upper quarter thrice; journals freeze into one table."""

import gzip
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from lf_ray.bench.contest.frozen import freeze, frozen_path, read_table
from lf_ray.bench.contest.grid_planner import VISITS, GridPlanner
from lf_ray.bench.grid import main
from lf_ray.bench.replay import replay_table
from lf_ray.clock import FakeClock
from lf_ray.errors import RecordError
from lf_ray.protocol import KnobValue, OutcomeKind, Purpose, TrialRecord, TrialRequest
from lf_ray.record.journal import Journal, read_journal
from lf_ray.search.conductor import Conductor, MemoryLog, run_in_process
from lf_ray.search.plan.decisions import Request, Rules
from lf_ray.search.space import Space, point_key, space_from_literal
from lf_ray.testing.sim.cluster import SimulatedCluster

LITERAL: dict[str, list[KnobValue]] = {
    "batch.per_gpu": [16, 64, 768],
    "graph.scope": ["off", "step+optimizer"],
    "pipeline.prefix": ["off", "on"],
    "overlap.ratio": [0.0, 1.0],
}


def header_of(space: Space, size: str = "3b") -> dict[str, object]:
    return {
        "id": "g1",
        "name": "grid",
        "config": {"cluster": {"workers": 8, "kind": "sim_8xh200"}, "model": {"size": size}},
        "space": space.to_plain(),
        "space_hash": space.fingerprint,
        "baseline_knobs": dict(space.baseline),
        "machine": {"label": "simulated"},
        "versions": {},
        "data_id": "",
        "seed": 0,
    }


def run_grid(
    path: Path,
    literal: dict[str, list[KnobValue]],
    seed: int,
    size: str = "3b",
    baseline: dict[str, KnobValue] | None = None,
) -> Space:
    """Runs a grid on a simulated cluster and keeps its journal."""
    cluster = SimulatedCluster("sim_8xh200", seed, FakeClock())
    space = space_from_literal(literal, {**cluster.truth.baseline(), **(baseline or {})})
    with Journal(path, cluster.clock) as journal:
        conductor = Conductor(GridPlanner(space, Rules()), journal, [], cluster.clock)
        conductor.begin(header_of(space, size))
        assert run_in_process(conductor, cluster.run).exit_code == 0
    return space


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grid") / "journal.jsonl"
    run_grid(path, LITERAL, seed=3)
    return path


def test_every_point_is_visited_or_known_not_to_fit(journal: Path) -> None:
    history = read_journal(journal)
    space = space_from_literal(LITERAL, history.header.baseline_knobs)
    visited = {point_key(record.request.knobs) for record in history.records}
    dead = {point_key(point.knobs) for point in history.dead}
    assert {point_key(knobs) for knobs in space.points()} <= visited | dead
    assert not visited & dead
    misfits = [r for r in history.records if r.outcome.kind is OutcomeKind.INFEASIBLE]
    assert len(misfits) == 1
    assert {point.same_as for point in history.dead} == {misfits[0].request.id}


def test_the_upper_quarter_is_visited_thrice_interleaved(journal: Path) -> None:
    history = read_journal(journal)
    again = [
        record.point_id
        for record in history.records
        if record.request.purpose is Purpose.REPLICATE
        and record.request.replicate_of != history.records[0].request.id
    ]
    counts = Counter(again)
    # of 12 points that fit
    assert len(counts) == 3
    assert set(counts.values()) == {VISITS - 1}
    assert again[:3] == again[5:2:-1]


def test_nothing_is_raced(journal: Path) -> None:
    for record in read_journal(journal).records:
        assert record.request.budget.incumbent_samples_per_s is None


def test_a_stopped_grid_goes_on_where_it_was() -> None:
    def decided(num_before: int) -> list[str]:
        """Returns the ids of a grid that is stopped after so many records and resumed."""
        cluster = SimulatedCluster("sim_8xh200", 3, FakeClock())
        space = space_from_literal(LITERAL, cluster.truth.baseline())
        log = MemoryLog(cluster.clock)
        first = Conductor(GridPlanner(space, Rules()), log, [], cluster.clock)
        first.begin(header_of(space))
        for _ in range(num_before):
            decision = first.next()
            assert isinstance(decision, Request)
            first.finish(cluster.run(decision.request))
        later = Conductor(GridPlanner(space, Rules()), log, [], cluster.clock)
        later.begin(header_of(space), tuple(log.events))
        run_in_process(later, cluster.run)
        return [e.data["request"]["id"] for e in log.events if e.kind in ("started", "replicate")]

    assert Counter(decided(7)) == Counter(decided(0))


def test_minutes_end_it_for_now_and_more_of_them_go_on() -> None:
    cluster = SimulatedCluster("sim_8xh200", 3, FakeClock())
    space = space_from_literal(LITERAL, cluster.truth.baseline())
    log = MemoryLog(cluster.clock)
    conductor = Conductor(GridPlanner(space, Rules(minutes=2)), log, [], cluster.clock)
    conductor.begin(header_of(space))
    stop = run_in_process(conductor, cluster.run)
    assert stop.exit_code == 0
    assert "sweep.minutes=2 are used up" in stop.reason
    later = Conductor(GridPlanner(space, Rules(minutes=500)), log, [], cluster.clock)
    later.begin(header_of(space), tuple(log.events))
    assert run_in_process(later, cluster.run).reason == "every point of the grid has been visited"


def test_failures_in_a_row_end_it() -> None:
    space = space_from_literal(LITERAL, SimulatedCluster("sim_8xh200", 3).truth.baseline())
    cluster = SimulatedCluster("sim_8xh200", 3, FakeClock())

    def execute(request: TrialRequest) -> TrialRecord:
        if request.purpose is Purpose.BASELINE:
            return cluster.run(request)
        raise RuntimeError("the cable is out")

    conductor = Conductor(GridPlanner(space, Rules()), MemoryLog(cluster.clock), [], cluster.clock)
    conductor.begin(header_of(space))
    stop = run_in_process(conductor, execute)
    assert stop.exit_code == 1
    assert "the cable is out" in stop.reason


def test_journals_freeze_into_one_table(journal: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "journal.jsonl"
    run_grid(other, {**LITERAL, "batch.per_gpu": [32, 64]}, seed=4)
    target = tmp_path / "both.jsonl.gz"
    freeze([journal, other], target)
    table = replay_table(target)
    assert table.name == "both"
    histories = [read_journal(path) for path in (journal, other)]
    told = (OutcomeKind.COMPLETED, OutcomeKind.INFEASIBLE)
    records = [record for history in histories for record in history.records]
    num_told = sum(record.outcome.kind in told for record in records)
    assert len(read_table(target).records) == num_told
    origins = read_table(target).events[0].data["made_of"]
    assert [item["num_records"] for item in origins] == [len(h.records) for h in histories]
    assert all(len(item["sha256"]) == 64 for item in origins)
    space = table.space
    assert space.choices["batch.per_gpu"] == (16, 32, 64, 768)
    assert table.recorded_frac == 1.0
    # Known without a visit that it does not fit: played back as what it was likened to.
    knobs = space.canonical({"batch.per_gpu": 768, "graph.scope": "step+optimizer"})
    request = TrialRequest(id="a", knobs=knobs, seed=0, purpose=Purpose.SEARCH)
    played = table.group(0, FakeClock(), set(), with_references=False).run(request)
    assert played.outcome.kind is OutcomeKind.INFEASIBLE
    assert table.true_samples_per_s(knobs) == 0.0
    before = target.read_bytes()
    freeze([journal, other], target)
    assert target.read_bytes() == before


def test_only_the_first_journal_s_baseline_is_the_table_s(journal: Path, tmp_path: Path) -> None:
    other, target = tmp_path / "journal.jsonl", tmp_path / "both.jsonl.gz"
    run_grid(other, {"overlap.ratio": [0.0, 1.0]}, seed=4, baseline={"batch.per_gpu": 32})
    freeze([journal, other], target)
    histories = [read_journal(path).records for path in (journal, other)]
    own, others = (records[0].request.knobs for records in histories)
    assert own != others
    table = read_table(target).records
    assert [r.request.knobs for r in table if r.request.purpose is Purpose.BASELINE] == [own]
    assert any(record.request.knobs == others for record in table)
    # A table grows by a later journal and still names all that it was made of.
    grown = tmp_path / "grown.jsonl.gz"
    freeze([journal], grown)
    freeze([grown, other], grown)
    assert read_table(grown).records == table
    made_of = [read_table(path).events[0].data["made_of"] for path in (grown, target)]
    assert made_of[0] == made_of[1]
    with pytest.raises(RecordError, match="g1 more than once"):
        freeze([grown, other], grown)


def test_a_half_measured_batch_can_be_left_out(journal: Path, tmp_path: Path) -> None:
    whole, part = tmp_path / "whole.jsonl.gz", tmp_path / "part.jsonl.gz"
    freeze([journal], whole)
    freeze([journal], part, [16, 64])
    batches = [
        {r.request.knobs["batch.per_gpu"] for r in read_table(p).records} for p in (whole, part)
    ]
    assert batches == [{16, 64, 768}, {16, 64}]
    assert replay_table(part).recorded_frac == 1.0


def test_journals_of_other_models_are_not_merged(journal: Path, tmp_path: Path) -> None:
    other = tmp_path / "journal.jsonl"
    run_grid(other, {"overlap.ratio": [0.0, 1.0]}, seed=4, size="nano")
    with pytest.raises(RecordError, match=r"model\.size 3b in g1, nano in g1"):
        freeze([journal, other], tmp_path / "x.jsonl.gz")


def test_a_damaged_table_is_refused_in_words(tmp_path: Path) -> None:
    torn = tmp_path / "torn.jsonl.gz"
    torn.write_bytes(gzip.compress(b"{}" * 1000)[:-9])
    with pytest.raises(RecordError, match="whole gzip file"):
        read_table(torn)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_command_runs_a_grid_and_is_resumed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mlflow_database: Callable[[Path], str],
) -> None:
    monkeypatch.chdir(tmp_path)
    mlflow_database(tmp_path / "mlflow.db")
    sizes = ["--batches", "16", "--bucket-mb", "25", "--ratio", "0,1"]
    words = ["cluster=sim_2xh200", "measure=smoke", "batch.per_gpu=16"]
    assert main([*sizes, *words]) == 0
    assert "every point of the grid has been visited" in capsys.readouterr().out
    (path,) = tmp_path.glob("outputs/grid/*/journal.jsonl")
    before = len(read_journal(path).records)
    assert main([*sizes, *words, f"resume={path.parent.name}"]) == 0
    assert len(read_journal(path).records) == before
    assert main(["--freeze", "nothing"]) == 2
    assert main(["--freeze", "nothing", str(path), str(tmp_path / "missing.jsonl")]) == 2
    assert not frozen_path("nothing").exists()
