"""Samplers are pure and stay in the space; the study file has one writer and no loose ends."""

from pathlib import Path

import optuna
import pytest

from lf_ray.protocol import OutcomeKind, TrialOutcome, TrialRequest
from lf_ray.search.plan.decisions import Proposer, Rules, Told
from lf_ray.search.samplers.optuna_study import STUDY_NAME, StudyFile, TpeProposer
from lf_ray.search.samplers.plain import GridProposer, RandomProposer, proposer_of
from lf_ray.search.space import Literal, Space, point_key, space_from_literal
from lf_ray.settings import SamplerKind
from lf_ray.testing.fake_sweep import FakeSweep
from lf_ray.testing.objectives import BASELINE_KNOBS, KneeObjective, out_of_memory, worker_lost

LITERAL: Literal = {
    "graph.scope": ["off", "step", "step+optimizer"],
    "pipeline.prefix": ["off", "on"],
    "overlap.ratio": [0.0, 0.25, 0.5, 0.75, 1.0],
    "batch.per_gpu": [2, 4, 8],
}
COMPLETED = OutcomeKind.COMPLETED
PROPOSERS = [TpeProposer(), RandomProposer(), GridProposer()]


def space() -> Space:
    return space_from_literal(LITERAL, BASELINE_KNOBS)


def history(space: Space, count: int) -> list[Told]:
    points = list(space.points())[::7][:count]
    kinds = [OutcomeKind.COMPLETED, OutcomeKind.COMPLETED, OutcomeKind.INFEASIBLE]
    return [
        Told(
            knobs=point,
            kind=kinds[index % 3],
            samples_per_s=100.0 + index if index % 3 < 2 else None,
            error_frac=0.01,
        )
        for index, point in enumerate(points)
    ]


@pytest.mark.parametrize("proposer", PROPOSERS, ids=lambda item: type(item).__name__)
@pytest.mark.parametrize("known", [0, 1, 9])
class TestEverySampler:
    """One contract for all of them."""

    def test_points_are_distinct_allowed_and_canonical(
        self, proposer: Proposer, known: int
    ) -> None:
        told = history(space(), known)
        tried = {point_key(item.knobs) for item in told}
        points = proposer.propose(space(), told, 6, 7, lambda k: point_key(k) not in tried)
        keys = [point_key(point) for point in points]
        assert len(keys) == len(set(keys)) == 6
        assert not tried & set(keys)
        listed = {point_key(point) for point in space().points()}
        assert set(keys) <= listed

    def test_the_same_arguments_give_the_same_points(self, proposer: Proposer, known: int) -> None:
        told = history(space(), known)
        first, second = (proposer.propose(space(), told, 5, 3, lambda _: True) for _ in range(2))
        assert first == second

    def test_a_space_with_little_left_is_emptied(self, proposer: Proposer, known: int) -> None:
        left = {point_key(point) for point in list(space().points())[:2]}
        told = history(space(), known)
        points = proposer.propose(space(), told, 6, 0, lambda k: point_key(k) in left)
        assert {point_key(point) for point in points} == left
        assert proposer.propose(space(), told, 6, 0, lambda _: False) == []


def test_seeds_differ() -> None:
    wide = space_from_literal(
        {name: list(range(1, 31)) for name in ("data.workers", "data.prefetch", "batch.per_gpu")},
        BASELINE_KNOBS,
    )
    told = [
        Told(wide.canonical({"data.workers": n, "data.prefetch": 31 - n}), COMPLETED, 100.0 + n)
        for n in range(1, 31, 4)
    ]
    draws = [TpeProposer().propose(wide, told, 4, seed, lambda _: True) for seed in range(4)]
    assert len({str(draw) for draw in draws}) > 1


def test_a_space_too_large_to_list_is_drawn_from() -> None:
    literal: Literal = {
        "overlap.ratio": [place / 100 for place in range(101)],
        "data.workers": list(range(20)),
        "batch.per_gpu": list(range(1, 41)),
    }
    wide = space_from_literal(literal, BASELINE_KNOBS)
    points = RandomProposer().propose(wide, [], 5, 1, lambda _: True)
    assert len({point_key(point) for point in points}) == 5


def test_the_settings_name_the_sampler() -> None:
    kinds = {kind: type(proposer_of(kind)).__name__ for kind in SamplerKind}
    assert kinds == {
        SamplerKind.tpe: "TpeProposer",
        SamplerKind.random: "RandomProposer",
        SamplerKind.grid: "GridProposer",
    }


def test_infeasible_points_push_tpe_away() -> None:
    """O2: what is told as pruned is avoided, although nothing forbids it here."""
    only_batch = space_from_literal({"batch.per_gpu": list(range(1, 33))}, BASELINE_KNOBS)
    told = [
        Told(
            knobs=only_batch.canonical({"batch.per_gpu": batch}),
            kind=OutcomeKind.INFEASIBLE if batch > 16 else OutcomeKind.COMPLETED,
            samples_per_s=None if batch > 16 else float(batch),
        )
        for batch in range(2, 33, 3)
    ]
    drawn = [
        int(point["batch.per_gpu"])
        for seed in range(6)
        for point in TpeProposer().propose(only_batch, told, 4, seed, lambda _: True)
    ]
    assert sum(batch > 18 for batch in drawn) / len(drawn) < 0.25


def fate(request: TrialRequest) -> TrialOutcome | None:
    return {"t002": out_of_memory(), "t003": worker_lost(), "t003r1": worker_lost()}.get(request.id)


def studied(path: Path) -> FakeSweep:
    sweep = FakeSweep(KneeObjective(fate=fate), rules=Rules(trials=6))
    space = space_from_literal(sweep.literal, sweep.baseline)
    sweep.observers = [StudyFile(path, space)]
    return sweep


def trials_of(path: Path) -> list[optuna.trial.FrozenTrial]:
    study = optuna.load_study(study_name=STUDY_NAME, storage=f"sqlite:///{path}")
    return list(study.trials)


def test_the_study_file_mirrors_the_journal(tmp_path: Path) -> None:
    """O1, O6: none left running, failures are failures, infeasible is pruned, all with a reason."""
    sweep = studied(tmp_path / "study.db")
    sweep.run()
    trials = {trial.user_attrs["id"]: trial for trial in trials_of(tmp_path / "study.db")}
    assert set(trials) == {request.id for request in sweep.started()}
    assert {trial.state.name for trial in trials.values()} == {"COMPLETE", "PRUNED", "FAIL"}
    assert trials["t002"].state.name == "PRUNED"
    assert trials["t003"].state.name == "FAIL"
    assert "SIGKILL" in trials["t003"].user_attrs["reason"]
    assert trials["t000"].params["overlap.bucket_size_mb"] == 25.0
    assert sum(trial.user_attrs["is_trial"] for trial in trials.values()) == 6


def test_a_killed_sweeps_study_is_rebuilt_and_finished(tmp_path: Path) -> None:
    """O6: the file of a killed driver is replaced by what the journal says."""
    path = tmp_path / "study.db"
    whole = studied(path)
    whole.run()
    names = [trial.user_attrs["id"] for trial in trials_of(path)]
    path.write_bytes(path.read_bytes()[:4096])
    again = studied(path)
    again.run(whole.log.events[:17])
    rebuilt = trials_of(path)
    assert sorted(trial.user_attrs["id"] for trial in rebuilt) == sorted(names)
    assert all(trial.state.is_finished() for trial in rebuilt)


def test_a_broken_study_file_costs_the_view_and_not_the_sweep(tmp_path: Path) -> None:
    sweep = studied(tmp_path / "no such folder" / "study.db")
    assert sweep.run().exit_code == 0
    notes = [line["text"] for line in sweep.lines("note")]
    assert any(note.startswith("StudyFile is told nothing more") for note in notes)
    assert sweep.state.num_trials == 6
