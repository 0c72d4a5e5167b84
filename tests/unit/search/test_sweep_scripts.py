"""The sweep scripts: their spaces fit the schema, and the planner walks them to an answer."""

import ast
import runpy
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from lf_ray.errors import ConfigError
from lf_ray.protocol import Knobs, OutcomeKind, TrialOutcome, TrialRequest
from lf_ray.search.samplers.optuna_study import STUDY_NAME, StudyFile, TpeProposer
from lf_ray.search.space import Literal, space_from_literal
from lf_ray.search.stages.stage import shareable
from lf_ray.settings import SweepConfig, knobs_of
from lf_ray.testing.fake_sweep import FakeSweep
from lf_ray.testing.objectives import BASELINE_KNOBS, KneeObjective

SWEEPS = Path(__file__).resolve().parents[3] / "sweeps"
SCRIPTS = sorted(path.stem for path in SWEEPS.glob("*.py"))


def space_of(name: str) -> Literal:
    space: Literal = runpy.run_path(str(SWEEPS / f"{name}.py"))["SPACE"]
    return space


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_short_says_how_to_run_it_and_its_space_fits_the_schema(name: str) -> None:
    text = (SWEEPS / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 120
    assert f"python sweeps/{name}.py" in (ast.get_docstring(ast.parse(text)) or "")
    space = space_from_literal(space_of(name), knobs_of(SweepConfig()))
    assert space.canonical({}) == knobs_of(SweepConfig())


def walked(
    make_sweep: Callable[..., FakeSweep],
    name: str,
    rate: Callable[[Knobs], float],
    fate: Callable[[TrialRequest], TrialOutcome | None] = lambda _: None,
) -> FakeSweep:
    objective = KneeObjective(true_rate=rate, fate=fate)
    sweep = make_sweep(space_of(name), objective)
    objective.clock = sweep.clock
    assert sweep.run().exit_code == 0
    return sweep


def graph_rate(knobs: Knobs) -> float:
    scopes = {"off": 100.0, "step": 130.0, "step+optimizer": 140.0}
    return scopes[str(knobs["graph.scope"])] * (1.2 if knobs["pipeline.prefix"] == "on" else 1.0)


def test_graph_tries_the_four_steps_that_differ_and_pipelines_where_that_is_faster(
    make_sweep: Callable[..., FakeSweep],
) -> None:
    sweep = walked(make_sweep, "graph", graph_rate)
    assert sweep.state.best is not None
    assert sweep.state.best.knobs["graph.scope"] == "step+optimizer"
    assert sweep.state.best.knobs["pipeline.prefix"] == "on"
    seen = {
        (p.knobs["graph.scope"], p.knobs["pipeline.prefix"]) for p in sweep.state.points.values()
    }
    assert len(sweep.state.points) == len(seen) == 4


def test_memory_ends_with_the_other_backends_where_no_arena_can_be_had(
    make_sweep: Callable[..., FakeSweep],
) -> None:
    """As on a machine without a compiler: the ladder is infeasible, the sweep goes on."""

    def no_arena(request: TrialRequest) -> TrialOutcome | None:
        if request.knobs["memory.backend"] != "arena":
            return None
        return TrialOutcome(
            kind=OutcomeKind.INFEASIBLE, reason="no compiler", error_kind="settings"
        )

    def rate(knobs: Knobs) -> float:
        return 110.0 if knobs["memory.backend"] == "expandable" else 100.0

    sweep = walked(make_sweep, "memory", rate, no_arena)
    assert sweep.state.best is not None
    assert sweep.state.best.knobs["memory.backend"] == "expandable"
    assert sweep.state.best.knobs["memory.block_sizes"] == "none"


def test_memory_finds_the_ladder_of_an_arena(make_sweep: Callable[..., FakeSweep]) -> None:
    def rate(knobs: Knobs) -> float:
        ladders = {"1-2-4-8": 105.0, "2-8-32": 120.0}
        return ladders.get(str(knobs["memory.block_sizes"]), 100.0)

    sweep = walked(make_sweep, "memory", rate)
    assert sweep.state.best is not None
    assert sweep.state.best.knobs["memory.block_sizes"] == "2-8-32"


def test_baseline_visits_nothing_but_the_baseline(make_sweep: Callable[..., FakeSweep]) -> None:
    sweep = walked(make_sweep, "baseline", lambda _: 100.0)
    assert set(sweep.state.points) == {"t000"}
    assert len(sweep.started()) >= 3


def test_an_empty_space_is_refused_unless_it_is_meant() -> None:
    with pytest.raises(ConfigError, match="at least one knob"):
        space_from_literal({}, knobs_of(SweepConfig()))


def test_data_varies_workers_up_to_the_cores(make_sweep: Callable[..., FakeSweep]) -> None:
    def rate(knobs: Knobs) -> float:
        return 40.0 if int(knobs["data.workers"]) >= 1 else 20.0

    sweep = walked(make_sweep, "data", rate)
    assert sweep.state.best is not None
    assert int(sweep.state.best.knobs["data.workers"]) >= 1


def test_data_runs_one_process_on_the_cpu_unless_told_otherwise() -> None:
    placed = runpy.run_path(str(SWEEPS / "data.py"))["placed"]
    assert placed(["data.step_s=1"]) == ["cluster=cpu", "cluster.workers=1", "data.step_s=1"]
    assert placed(["cluster.workers=2"]) == ["cluster=cpu", "cluster.workers=2"]


def test_a_cache_that_is_turned_off_is_not_tried() -> None:
    varied = runpy.run_path(str(SWEEPS / "data.py"))["varied"]
    assert varied([])["data.cache"] == [False, True]
    assert varied(["data.cache=False"])["data.cache"] == [False]


def overlap_requests(literal: Literal, baseline: Knobs) -> list[Knobs]:
    objective = KneeObjective(noise_frac=0.003)
    sweep = FakeSweep(objective, literal, baseline=baseline, proposer=TpeProposer())
    objective.clock = sweep.clock
    assert sweep.run().exit_code == 0
    return [request.knobs for request in sweep.started()]


ACTING_IN_A_GRAPH = ("pipeline.prefix", "update.sharded")


def test_what_acts_in_a_whole_graph_costs_overlap_no_visit_elsewhere() -> None:
    literal = space_of("overlap")
    without = {name: item for name, item in literal.items() if name not in ACTING_IN_A_GRAPH}
    requests = overlap_requests(literal, BASELINE_KNOBS)
    assert requests == overlap_requests(without, BASELINE_KNOBS)
    for knob in ACTING_IN_A_GRAPH:
        assert {knobs[knob] for knobs in requests} == {"off"}


def test_overlap_tries_what_acts_where_the_whole_step_is_captured() -> None:
    baseline = {**BASELINE_KNOBS, "graph.scope": "step+optimizer"}
    requests = overlap_requests(space_of("overlap"), baseline)
    for knob in ACTING_IN_A_GRAPH:
        assert {knobs[knob] for knobs in requests} == {"off", "on"}


@pytest.mark.parametrize(("num_workers", "kept"), [(8, ["off", "on"]), (6, ["off"])])
def test_workers_that_can_not_share_an_update_are_not_offered_it(
    num_workers: int, kept: list[str]
) -> None:
    literal = space_of("overlap")
    stages = runpy.run_path(str(SWEEPS / "joint.py"))["STAGES"]
    assert shareable(literal, num_workers) == {**literal, "update.sharded": kept}
    overlap = {**stages["overlap"], "update.sharded": kept}
    assert shareable(stages, num_workers) == {**stages, "overlap": overlap}


def test_the_study_file_takes_every_trial_of_a_knob_of_words(
    make_sweep: Callable[..., FakeSweep], tmp_path: Path
) -> None:
    space = space_from_literal(space_of("graph"), BASELINE_KNOBS)
    file = StudyFile(tmp_path / "study.db", space)
    objective = KneeObjective(true_rate=graph_rate)
    sweep = make_sweep(space_of("graph"), objective, observers=[file])
    objective.clock = sweep.clock
    sweep.run()
    study = optuna.load_study(study_name=STUDY_NAME, storage=f"sqlite:///{tmp_path / 'study.db'}")
    assert len(study.trials) == len(sweep.started())
