"""What MLflow is to show: one run a trial, finite numbers, names as promised, always the same."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lf_ray.analysis.answer import answer_of
from lf_ray.analysis.report.folder import write_result
from lf_ray.analysis.report.summary import summary
from lf_ray.protocol import (
    GateResult,
    Interval,
    KnobValue,
    OutcomeKind,
    Purpose,
    Trace,
    TrialOutcome,
    TrialRecord,
    TrialRequest,
)
from lf_ray.record.history import read_journal
from lf_ray.record.mirror.replay import result_updates, updates_of
from lf_ray.record.mirror.runs import Mirror
from lf_ray.record.mirror.updates import (
    EFFECTIVE_OF,
    MAX_PARAM_LENGTH,
    RunUpdate,
    clean_key,
    param_name,
    param_text,
)

Journals = Callable[..., Path]
JOURNALS = Path(__file__).resolve().parents[2] / "data" / "journals"
HEADER = {
    "id": "s1",
    "name": "overlap",
    "config": {"model": {"size": "nano"}, "cluster": {"workers": 2, "device": "cpu"}},
    "space": {"overlap.ratio": [0.0, 1.0]},
    "space_hash": "abc",
    "baseline_knobs": {"overlap.ratio": 1.0, "graph.scope": "off"},
    "machine": {"label": "box", "gpus": ["H200"]},
    "versions": {"torch": "2"},
    "data_id": "d",
    "seed": 0,
}


def _updates(path: Path) -> list[RunUpdate]:
    return list(updates_of(Mirror(), read_journal(path).events))


def _begun() -> Mirror:
    mirror = Mirror()
    mirror.begin(HEADER, 100.0)
    return mirror


def _request(
    name: str, purpose: Purpose = Purpose.SEARCH, replicate_of: str | None = None
) -> TrialRequest:
    knobs: dict[str, KnobValue] = {"overlap.ratio": 0.5, "graph.scope": "off"}
    return TrialRequest(id=name, knobs=knobs, seed=0, purpose=purpose, replicate_of=replicate_of)


def _record(request: TrialRequest, mean_s: float = 0.1, **changes: object) -> TrialRecord:
    fields: dict[str, object] = {
        "request": request,
        "outcome": TrialOutcome(kind=OutcomeKind.COMPLETED, stop_rule="settled"),
        "samples_per_step": 8,
        "trace": Trace(
            wall_s=(mean_s,) * 24,
            loss=tuple(1.0 / (n + 1) for n in range(24)),
            grad_norm=(1.0,) * 24,
            wait_s=(0.0,) * 24,
            lr=(1e-4,) * 24,
        ),
        "step_s": Interval(
            value=mean_s, lo=mean_s * 0.99, hi=mean_s * 1.01, num_steps=20, num_visits=1
        ),
        "gate": GateResult(
            passed=True, bit_equal=True, worst_frac=0.0, reason="bit-equal", num_steps=3
        ),
        "clock_s": {"requested": 101.0, "first_step": 110.0, "finished": 115.0},
    }
    return TrialRecord(**{**fields, **changes})  # type: ignore[arg-type]


def _finals(update: RunUpdate) -> dict[str, float]:
    """Returns each metric's latest value, as MLflow would show it."""
    latest: dict[str, tuple[int, int, float]] = {}
    for point in update.metrics:
        latest[point.name] = max(
            latest.get(point.name, (-1, 0, 0.0)), (point.step, point.at_ms, point.value)
        )
    return {name: found[2] for name, found in latest.items()}


def test_trials_stand_below_the_sweep_and_repeats_below_their_trial(
    seeded_journal: Journals,
) -> None:
    path = seeded_journal("peaked")
    parents = {u.key: u.parent for u in _updates(path) if u.status == "RUNNING"}
    history = read_journal(path)
    assert parents.pop("sweep") == ""
    assert sum(parent == "sweep" for parent in parents.values()) == history.num_trials == 12
    assert parents["t000r1"] == "t000"
    assert parents["s000"] == "t004"  # a slice point stands below the trial it starts from
    assert set(parents) == {request.id for request in history.started}


def test_every_run_ends_and_names_are_unique(seeded_journal: Journals) -> None:
    for case, sweep in (
        ("peaked", "FINISHED"),
        ("no_baseline", "FAILED"),
        ("interrupted", "KILLED"),
    ):
        updates = _updates(seeded_journal(case))
        last = {update.key: update.status for update in updates if update.status}
        assert "RUNNING" not in last.values()
        assert last["sweep"] == sweep
        names = [update.name for update in updates if update.status == "RUNNING"]
        assert len(names) == len(set(names))
    assert last["t005"] == last["t009"] == "FAILED"
    assert last["t011"] == "FINISHED"  # infeasible is an answer, not a failure


def test_params_are_what_varies_under_mlflows_names() -> None:
    mirror = _begun()
    update = mirror.started(_request("t001"), 101.0)
    assert update.params == {"overlap_ratio": "0.5"}
    assert update.name == "t001 overlap_ratio=0.5"
    assert update.tags["gpu"] == "H200"
    assert param_name("overlap.bucket_size_mb") == "bucket_size_mb"
    assert param_name("memory.block_sizes") == "block_sizes"
    assert param_name("batch.per_gpu") == "batch_per_gpu"
    assert (param_text(25.0), param_text(0.1), param_text("off")) == ("25", "0.1", "off")


def test_final_numbers_come_with_bounds_and_are_the_latest() -> None:
    mirror = _begun()
    request = _request("t000", Purpose.BASELINE)
    mirror.started(request, 101.0)
    first, sweep = mirror.finished(_record(request), 115.0)
    finals = _finals(first)
    assert finals["throughput"] == pytest.approx(80.0)
    assert finals["throughput_lo"] < 80.0 < finals["throughput_hi"]
    assert finals["step_ms"] == pytest.approx(100.0)
    assert finals["loss_at_samples_lo"] < finals["loss_at_samples"] < finals["loss_at_samples_hi"]
    assert {"loss", "grad_norm", "lr", "data_wait"} <= set(finals)
    steps = [point.step for point in first.metrics if point.name == "throughput"]
    assert steps == list(range(25))
    assert min(finals) == "Samples per second"  # what the Compare page opens with
    assert finals["Samples per second"] == finals["throughput"]
    assert _finals(sweep) == {"best_throughput": pytest.approx(80.0)}


def test_measured_again_the_trial_gets_the_pooled_number() -> None:
    mirror = _begun()
    request = _request("t000", Purpose.BASELINE)
    mirror.started(request, 101.0)
    mirror.finished(_record(request), 115.0)
    again = _request("t000r1", Purpose.REPLICATE, "t000")
    assert mirror.started(again, 120.0).parent == "t000"
    own, trial, _ = mirror.finished(_record(again, 0.102), 125.0)
    assert own.key == "t000r1"
    assert trial.key == "t000"
    assert _finals(trial)["throughput"] == pytest.approx(8 / 0.101, rel=1e-3)
    assert trial.tags["visits"] == "2"
    assert trial.metrics[0].step == 25  # later than the visit's own


def test_a_lost_visit_is_made_good_by_a_later_one() -> None:
    mirror = _begun()
    request = _request("t000", Purpose.BASELINE)
    mirror.started(request, 101.0)
    outcome = TrialOutcome(kind=OutcomeKind.INVALID, reason="unsteady", error_kind="unsteady")
    (lost,) = mirror.finished(_record(request, outcome=outcome, step_s=None), 115.0)
    assert lost.status == "FAILED"
    again = _request("t000r1", Purpose.REPLICATE, "t000")
    mirror.started(again, 120.0)
    _, trial, _ = mirror.finished(_record(again), 125.0)
    assert (trial.key, trial.status) == ("t000", "FINISHED")
    assert trial.tags["outcome"] == "completed"
    assert _finals(trial)["throughput"] == pytest.approx(80.0)


def test_effective_values_that_cannot_vary_are_tags() -> None:
    mirror = _begun()  # varies overlap.ratio
    request = _request("t000", Purpose.BASELINE)
    effective: dict[str, KnobValue] = {"num_buckets": 4, "lr": 1e-3, "something_new": "x"}
    outcome = TrialOutcome(kind=OutcomeKind.COMPLETED, effective=effective)
    mirror.started(request, 101.0)
    update = mirror.finished(_record(request, outcome=outcome), 115.0)[0]
    assert update.params == {"run_effective.num_buckets": "4", "run_effective.something_new": "x"}
    assert update.tags["run_effective.lr"] == "0.001"


@pytest.mark.parametrize(
    "path", sorted(JOURNALS.glob("*/journal.jsonl")), ids=lambda p: p.parent.name
)
def test_every_effective_value_of_a_real_sweep_is_known(path: Path) -> None:
    names = {name for record in read_journal(path).records for name in record.outcome.effective}
    assert len(names) > 10
    assert names <= set(EFFECTIVE_OF), "say which knobs it follows from, or the Compare page fills"


def test_non_finite_numbers_become_tags() -> None:
    mirror = _begun()
    request = _request("t000", Purpose.BASELINE)
    record = _record(
        request,
        metrics={"odd": math.nan, "t_comm_s": math.inf, "overlap_hidden": 0.3, "ok": 1.0},
        trace=Trace(
            wall_s=(0.1, 0.1), loss=(math.inf, 1.0), grad_norm=(1.0, math.nan), wait_s=(0.0, 0.0)
        ),
    )
    mirror.started(request, 101.0)
    update = mirror.finished(record, 115.0)[0]
    assert all(math.isfinite(point.value) for point in update.metrics)
    assert _finals(update)["ok"] == 1.0
    assert update.tags["non_finite.t_comm_s"] == "inf"
    assert update.tags["non_finite.odd"] == "nan"
    assert "overlap_hidden" not in _finals(update), "on a CPU it is noise"
    assert update.tags["non_finite.loss"] == "inf"


def test_an_unfinished_trial_is_killed_not_running() -> None:
    mirror = _begun()
    mirror.started(_request("t003"), 101.0)
    left, sweep = mirror.ended("interrupted", 130, 105.0)
    assert (left.key, left.status, sweep.status) == ("t003", "KILLED", "KILLED")


def test_what_mlflow_refuses_is_cleaned() -> None:
    assert clean_key("ddp/bucket mb!@#") == "ddp/bucket mb___"
    assert len(clean_key("k" * 400)) <= 250
    long = param_text("x" * 20_000)
    assert len(long) <= MAX_PARAM_LENGTH
    assert "sha256" in long
    assert long != param_text("x" * 20_001)


def test_the_whole_config_is_an_artifact_with_its_hash() -> None:
    config = {**HEADER["config"], "long": "x" * 20_000}  # type: ignore[dict-item]
    update = Mirror().begin({**HEADER, "config": config}, 100.0)
    assert json.loads(update.texts["config.json"]) == config
    assert len(update.tags["config_sha256"]) == 64


def test_the_same_events_give_the_same_updates_and_survive_a_file(
    seeded_journal: Journals,
) -> None:
    path = seeded_journal("peaked")
    first = _updates(path)
    assert first == _updates(path)
    assert [RunUpdate.from_json(json.loads(json.dumps(u.to_json()))) for u in first] == first


def test_the_answer_is_added_from_its_files(seeded_journal: Journals, tmp_path: Path) -> None:
    assert result_updates(Mirror(), tmp_path, 0.0) == []
    write_result(tmp_path, read_journal(seeded_journal("peaked")))
    (update,) = result_updates(Mirror(), tmp_path, 0.0)
    finals = _finals(update)
    assert finals["gain_lo"] < finals["gain"] < finals["gain_hi"]
    assert finals["trials_completed"] == 9.0
    assert update.tags["knee.bucket_size_mb"].startswith("2.0 (")
    assert update.tags["knee_status.overlap_ratio"] == "resolved"
    assert {Path(name).name for name in update.files} >= {"report.html", "best.yaml", "slices.svg"}


def test_a_bound_without_end_is_left_out(seeded_journal: Journals, tmp_path: Path) -> None:
    answer = answer_of(read_journal(seeded_journal("peaked")))
    assert answer.gain is not None
    assert answer.winner is not None
    assert answer.winner.throughput is not None
    endless = replace(
        answer,
        gain=replace(answer.gain, hi=math.inf),
        winner=replace(answer.winner, throughput=replace(answer.winner.throughput, hi=math.inf)),
    )
    text = json.dumps(summary(endless), allow_nan=False)
    (tmp_path / "summary.json").write_text(text)
    (update,) = result_updates(Mirror(), tmp_path, 0.0)
    assert {"gain", "gain_lo", "throughput_lo"} <= set(_finals(update))
    assert not {"gain_hi", "throughput_hi"} & set(_finals(update))


def test_what_is_known_of_learning_stands_at_the_trials_it_speaks_of(
    seeded_journal: Journals,
) -> None:
    mirror = Mirror()
    list(updates_of(mirror, read_journal(seeded_journal("peaked")).events))
    known, other = list(mirror.visits)[:2]
    summary = {
        "best": {"trial": known},
        "converges": {"verdict": "passed", "reason": "x"},
        "named": {"fastest": {"trial": other, "converges": {"verdict": "failed"}}},
    }
    found = {update.key: update.tags["converges"] for update in mirror.checked(summary)}
    assert found == {known: "passed", other: "failed"}
    assert mirror.checked({"best": None}) == []
