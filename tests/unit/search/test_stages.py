"""Sweeps in stages on seeded objectives: order, winners, what is dead, resume, training runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lf_ray.analysis.answer import Answer, answer_of
from lf_ray.analysis.report.stages import stage_headline
from lf_ray.analysis.report.words import sentences
from lf_ray.clock import FakeClock
from lf_ray.errors import ConfigError
from lf_ray.measure.gradient_noise import gradient_noise, noise_metrics
from lf_ray.protocol import Knobs, OutcomeKind, Purpose, Trace, TrialRecord, TrialRequest
from lf_ray.record.events import JournalEvent
from lf_ray.record.history import history_of
from lf_ray.search.conductor import Conductor, MemoryLog, run_in_process
from lf_ray.search.plan.decisions import Request, Rules, Stop, rules_of
from lf_ray.search.samplers.plain import RandomProposer
from lf_ray.search.space import space_from_literal
from lf_ray.search.stages.stage import Stages, dead_reason, stages_of, whole_space
from lf_ray.search.stages.staged_planner import StagedPlanner
from lf_ray.settings import MeasureLevel, SweepConfig, knobs_of, plain
from lf_ray.testing.objectives import KneeObjective, out_of_memory

JOINT: Stages = {
    "memory": {"memory.backend": ["caching", "expandable"]},
    "graph": {"graph.scope": ["off", "step"]},
    "overlap": {"overlap.ratio": [0.0, 0.5, 1.0]},
    "batch": {"batch.per_gpu": [2, 4, 8]},
}
BATCH: Stages = {
    "batch": {
        "batch.per_gpu": [2, 4, 8],
        "batch.accumulation": [1, 2],
        "batch.lr_rule": ["linear", "sqrt", "none"],
    }
}


def multiplying(knobs: Knobs) -> float:
    """Returns a rate to which every knob adds a factor of its own."""
    rate = 100.0 * {"off": 1.0, "step": 1.3}[str(knobs["graph.scope"])]
    rate *= 1.15 if knobs["overlap.ratio"] == 0.0 else 1.0
    return rate * {2: 0.8, 4: 1.0, 8: 1.2}[int(knobs["batch.per_gpu"])]


def overlapping(knobs: Knobs) -> float:
    """Returns a rate of which graph and overlap win the same part."""
    graph, ratio = knobs["graph.scope"] == "step", knobs["overlap.ratio"] == 0.0
    rate = 130.0 if graph and not ratio else 125.0 if ratio and not graph else 100.0
    return 134.0 if graph and ratio else rate


def config_of(level: MeasureLevel = MeasureLevel.standard, device: str = "cuda") -> SweepConfig:
    config = SweepConfig(name="joint")
    config.cluster.workers, config.cluster.device = 2, device
    config.measure.level = level
    return config


@dataclass
class Staged:
    """One sweep in stages in this process."""

    searches: Stages
    execute: Callable[[TrialRequest], TrialRecord]
    config: SweepConfig = field(default_factory=config_of)
    clock: FakeClock = field(default_factory=FakeClock)
    rules: dict[str, Any] = field(default_factory=dict)

    def conductor(self, events: Sequence[JournalEvent] = ()) -> Conductor:
        knobs = knobs_of(self.config)
        space = space_from_literal(whole_space(self.searches), knobs)
        rules = replace(rules_of(self.config), **self.rules)
        stages = stages_of(self.searches, self.config, rules, knobs)
        planner = StagedPlanner(space, stages, rules, RandomProposer(), 2)
        self.log = MemoryLog(self.clock)
        self.log.events.extend(events)
        conductor = Conductor(planner, self.log, (), self.clock)
        header = {
            "id": "x",
            "name": self.config.name,
            "config": plain(self.config),
            "space": space.to_plain(),
            "space_hash": "x",
            "baseline_knobs": knobs,
            "machine": {"label": "test"},
            "versions": {},
            "data_id": "none",
            "seed": 0,
        }
        conductor.begin(header, events)
        return conductor

    def run(self, events: Sequence[JournalEvent] = ()) -> Stop:
        return run_in_process(self.conductor(events), self.execute)

    @property
    def answer(self) -> Answer:
        return answer_of(history_of(self.log.events, Path("journal.jsonl")))

    def requests(self) -> list[TrialRequest]:
        kinds = ("started", "replicate")
        return [
            TrialRequest.from_json(event.data["request"])
            for event in self.log.events
            if event.kind in kinds
        ]

    def stage_lines(self, status: str) -> list[dict[str, Any]]:
        return [
            dict(event.data)
            for event in self.log.events
            if event.kind == "stage" and event.data.get("status") == status
        ]


def staged(searches: Stages, rate: Callable[[Knobs], float], **changes: Any) -> Staged:
    objective = KneeObjective(true_rate=rate, noise_frac=0.001, spread_frac=0.002)
    sweep = Staged(searches, objective, **changes)
    objective.clock = sweep.clock
    return sweep


def test_each_stage_begins_where_the_last_one_ended_and_gains_that_multiply_are_seen_to() -> None:
    sweep = staged(JOINT, multiplying)
    assert sweep.run().exit_code == 0
    begun = {
        line["stage"]: line["knobs"] for line in sweep.stage_lines("begun") if "sides" not in line
    }
    assert list(begun)[:4] == ["memory", "graph", "overlap", "batch"]
    assert begun["overlap"]["graph.scope"] == "step"
    assert (begun["batch"]["graph.scope"], begun["batch"]["overlap.ratio"]) == ("step", 0.0)
    answer = sweep.answer
    gains = {stage.chapter.name: stage.gain for stage in answer.stages}
    for name, true in {"memory": 1.0, "graph": 1.3, "overlap": 1.15, "batch": 1.2}.items():
        gain = gains[name]
        assert gain is not None
        assert gain.value == pytest.approx(true, rel=0.01), name
    assert answer.together is not None
    found = answer.together.found
    assert str(found.verdict) == "multiply", found.reason
    assert found.joint is not None
    assert found.joint.value == pytest.approx(1.3 * 1.15 * 1.2, rel=0.01)
    assert set(found.singles) == {"graph", "overlap", "batch"}
    # No training run says that the larger batch learns as well, so all of it is still on offer.
    assert answer.winner is not None
    assert answer.winner.knobs["batch.per_gpu"] == 8
    assert len({request.id for request in sweep.requests()}) == len(sweep.requests())


def test_gains_that_win_the_same_part_are_seen_to_be_less_than_their_product() -> None:
    sweep = staged({"graph": JOINT["graph"], "overlap": JOINT["overlap"]}, overlapping)
    sweep.run()
    together = sweep.answer.together
    assert together is not None
    assert str(together.found.verdict) == "less"
    assert together.found.product is not None
    assert together.found.product.value == pytest.approx(1.3 * 1.25, rel=0.01)


def test_a_knee_that_later_knobs_lean_on_is_not_taken() -> None:
    def rate(knobs: Knobs) -> float:
        scope = {"off": 100.0, "step": 129.5, "step+optimizer": 130.0}[str(knobs["graph.scope"])]
        whole = scope == 130.0 and knobs["pipeline.prefix"] == "on"
        return scope * (1.2 if whole else 1.0)

    scopes = ["off", "step", "step+optimizer"]
    searches: Stages = {
        "graph": {"graph.scope": scopes},
        "overlap": {"overlap.ratio": [0.0, 0.5, 1.0], "pipeline.prefix": ["off", "on"]},
    }
    sweep = staged(searches, rate)
    sweep.run()
    answer = sweep.answer
    assert answer.winner is not None
    best = answer.winner.knobs
    assert (best["graph.scope"], best["pipeline.prefix"]) == ("step+optimizer", "on")
    knees = {knee.knob: knee.value for knee in answer.knees}
    assert knees["graph.scope"] == "step"  # where its stage stood
    assert rate(answer.knee_knobs) > 0.98 * rate(best)


def test_stages_that_win_nothing_do_not_call_the_baseline_their_rival() -> None:
    sweep = staged({"graph": JOINT["graph"], "overlap": JOINT["overlap"]}, lambda _: 100.0)
    sweep.run()
    answer = sweep.answer
    assert answer.verdict == "keep the baseline"
    assert answer.baseline is not None
    assert answer.fastest is answer.baseline
    assert answer.gain is not None
    assert (answer.gain.lo, answer.gain.hi) == (1.0, 1.0)
    said = sentences(answer)
    assert "Best: the baseline itself." in said
    assert not [line for line in said if line.startswith("Read around")]


@pytest.mark.parametrize(
    ("graph_gain", "verdict", "changed"),
    [(1.0, "data-bound", {}), (1.3, "improved", {"graph.scope": "step"})],
)
def test_in_a_data_bound_run_no_bucket_wins_but_what_else_is_faster_does(
    graph_gain: float, verdict: str, changed: dict[str, str]
) -> None:
    def rate(knobs: Knobs) -> float:
        gain = graph_gain if knobs["graph.scope"] == "step" else 1.0
        return 100.0 * gain * (1.15 if knobs["overlap.ratio"] == 0.0 else 1.0)

    sweep = staged({"graph": JOINT["graph"], "overlap": JOINT["overlap"]}, rate)
    measured = sweep.execute

    def starved(request: TrialRequest) -> TrialRecord:
        record = measured(request)
        assert record.trace is not None
        waits = tuple(0.3 * wall_s for wall_s in record.trace.wall_s)
        return replace(record, trace=replace(record.trace, wait_s=waits))

    sweep.execute = starved
    assert sweep.run().exit_code == 0
    answer = sweep.answer
    assert answer.verdict == verdict
    assert answer.winner is not None
    assert answer.baseline is not None
    set_otherwise = {
        name: value
        for name, value in answer.winner.knobs.items()
        if value != answer.baseline.knobs[name]
    }
    assert set_otherwise.items() >= changed.items()
    assert bool(set_otherwise) == bool(changed)
    assert "waits for its data 30%" in sentences(answer)[0]


def test_a_stage_that_can_not_matter_here_says_so_and_costs_nothing() -> None:
    sweep = staged(JOINT, multiplying, config=config_of(MeasureLevel.smoke, "cpu"))
    sweep.run()
    dead = {line["stage"]: line["reason"] for line in sweep.stage_lines("dead")}
    assert "no device allocator" in dead["memory"]
    assert "emulated" in dead["graph"]
    assert "batch_lr.py" in dead["learning"]
    assert not [r for r in sweep.requests() if r.id.startswith(("memory.", "graph."))]
    statuses = [stage.chapter.status for stage in sweep.answer.stages]
    assert statuses == ["dead", "dead", "ended", "ended"]


def test_one_worker_and_a_gpu_make_other_stages_dead() -> None:
    config = config_of()
    assert not dead_reason(JOINT["memory"], config, knobs_of(config))
    assert not dead_reason(JOINT["graph"], config, knobs_of(config))
    config.cluster.workers = 1
    assert "nobody" in dead_reason(JOINT["overlap"], config, knobs_of(config))


def test_sweep_trials_are_shared_out_exactly_and_too_few_are_refused() -> None:
    sweep = staged(JOINT, multiplying, rules={"trials": 9})
    sweep.run()
    trials = [r for r in sweep.requests() if r.purpose in (Purpose.BASELINE, Purpose.SEARCH)]
    assert len(trials) == 9
    with pytest.raises(ConfigError, match=r"sweep\.trials"):
        stages_of(JOINT, config_of(), Rules(trials=7), knobs_of(config_of()))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.97])
def test_an_interrupted_sweep_goes_on_as_if_nothing_had_happened(share: float) -> None:
    whole = staged(JOINT, multiplying)
    whole.run()
    cut = int(len(whole.log.events) * share)
    again = staged(JOINT, multiplying)
    again.clock = FakeClock(epoch_s=whole.log.events[cut - 1].wall_s + 3600)
    again.run(whole.log.events[:cut])
    mine = [(r.id, dict(r.knobs)) for r in again.requests()]
    theirs = [(r.id, dict(r.knobs)) for r in whole.requests()]
    # One request may have been under way: it is started once more.
    repeated = [item for item in mine if mine.count(item) > 1]
    assert len(repeated) in (0, 2)
    assert list(dict.fromkeys(name for name, _ in mine)) == [name for name, _ in theirs]


def test_a_baseline_that_does_not_fit_is_halved_for_every_stage() -> None:
    def fate(request: TrialRequest) -> Any:
        return out_of_memory() if int(request.knobs["batch.per_gpu"]) > 2 else None

    sweep = staged(JOINT, multiplying)
    sweep.execute.fate = fate  # type: ignore[attr-defined]
    assert sweep.run().exit_code == 0
    sides = next(line["sides"] for line in sweep.stage_lines("begun") if "sides" in line)
    assert {side["knobs"]["batch.per_gpu"] for side in sides} == {2}
    assert sweep.answer.exit_code == 0


def learner(
    scale: float, rule_costs: dict[str, float], spared: int = 8
) -> Callable[[TrialRequest], TrialRecord]:
    """Returns an objective that has gradient noise and a loss that knows of batch and rule.

    Batches up to the one that is spared learn as the baseline's does, under any rule.
    """
    rates = KneeObjective(
        true_rate=lambda k: (
            100.0
            * {1: 1.0, 2: 1.2, 4: 1.5}[int(k["batch.per_gpu"]) // 2]
            * (1.0 if k["batch.accumulation"] == 1 else 1.05)
        ),
        noise_frac=0.001,
        spread_frac=0.002,
    )

    def execute(request: TrialRequest) -> TrialRecord:
        record = rates(request)
        batch = record.samples_per_step
        rng = np.random.default_rng(request.seed + batch)
        if request.run_samples is not None:
            steps = request.run_samples // batch
            level = (
                1.0 if batch <= spared else 1.0 + rule_costs[str(request.knobs["batch.lr_rule"])]
            )
            loss = level * (1 + 0.002 * rng.standard_normal(steps))
            flat = (1.0,) * steps
            trace = Trace(
                wall_s=flat, loss=tuple(map(float, loss)), grad_norm=flat, wait_s=(0.0,) * steps
            )
            record = replace(record, trace=trace)
        if request.noise_steps:
            small = int(request.knobs["batch.per_gpu"])
            wobble = 1 + 0.001 * rng.standard_normal((2, request.noise_steps))
            noise = gradient_noise(
                list((1 + scale / small) * wobble[0]),
                list((1 + scale / batch) * wobble[1]),
                small,
                batch,
            )
            record = replace(record, metrics=noise_metrics(noise, batch, 8))
        return record

    return execute


def batch_sweep(
    scale: float,
    rule_costs: dict[str, float],
    spared: int = 8,
    events: Sequence[JournalEvent] = (),
    **measure: Any,
) -> Staged:
    config = config_of()
    config.name = "batch_lr"
    for name, value in measure.items():
        setattr(config.measure, name, value)
    sweep = Staged(BATCH, learner(scale, rule_costs, spared), config=config)
    assert sweep.run(events).exit_code == 0
    return sweep


COSTS = {"linear": 0.2, "sqrt": 0.001, "none": 0.1}


def test_three_named_points_with_the_rule_that_learnt_best() -> None:
    sweep = batch_sweep(200.0, COSTS)
    batch = sweep.answer.batch
    assert batch is not None
    assert batch.scale is not None
    assert batch.scale.value == pytest.approx(200, rel=0.1)
    assert batch.late_scale is not None
    fastest, goodput = batch.named["fastest"], batch.named["goodput"]
    assert (fastest.knobs["batch.per_gpu"], fastest.knobs["batch.accumulation"]) == (8, 2)
    assert (goodput.knobs["batch.per_gpu"], goodput.knobs["batch.accumulation"]) == (8, 1)
    assert goodput.worth is not None
    assert goodput.worth.efficiency.value == pytest.approx(208 / 216, rel=0.02)
    assert batch.lr_rule == "sqrt"
    assert goodput.knobs["batch.lr_rule"] == "sqrt"
    assert goodput.convergence.verdict == "passed", goodput.convergence.reason
    verdicts = {
        item.rule: str(item.convergence.verdict) for item in batch.rules if item.batch == 16
    }
    assert verdicts == {"linear": "failed", "sqrt": "passed", "none": "failed"}
    answer = sweep.answer
    assert answer.winner is not None
    assert answer.winner.knobs["batch.lr_rule"] == "sqrt"
    # Steps are the winner's own: for as much learning the baseline takes the sweep's time longer.
    assert answer.break_even_steps is not None
    assert answer.winner.step_s is not None
    trained_s = answer.break_even_steps * answer.winner.step_s.value
    longer_s = trained_s * (goodput.worth.gain.value - 1)
    assert longer_s == pytest.approx(answer.seconds.total, rel=0.001)
    runs = [request for request in sweep.requests() if request.run_samples]
    assert {r.seed for r in runs if r.knobs["batch.per_gpu"] == 4} == {0, 1, 2}
    assert all(r.run_samples == runs[0].run_samples for r in runs)
    assert all(r.budget.max_steps >= 500 for r in runs), (
        "every compared run has the steps of a check"
    )


def test_little_noise_keeps_small_batches_and_one_that_learns_worse_can_not_win() -> None:
    kept = batch_sweep(2.0, COSTS).answer
    assert kept.batch is not None
    assert int(kept.batch.named["goodput"].knobs["batch.per_gpu"]) <= 4
    worse = batch_sweep(2000.0, dict.fromkeys(COSTS, 0.3), converge_s=1e6).answer
    assert worse.batch is not None
    goodput = worse.batch.named["goodput"]
    assert worse.baseline is not None
    assert goodput.knobs == worse.baseline.knobs
    assert goodput.note == (
        "batches 32 and 16 would be ahead but learn worse; "
        "nothing that was checked is better than the baseline"
    )
    assert worse.verdict == "keep the baseline"
    assert "batches 32 and 16 would be ahead" in stage_headline(worse)


WORSE = dict.fromkeys(COSTS, 0.3)


def test_behind_a_batch_that_learns_worse_the_next_best_by_goodput_is_run() -> None:
    sweep = batch_sweep(2000.0, WORSE, spared=16, converge_s=1e6)
    answer = sweep.answer
    assert answer.batch is not None
    goodput = answer.batch.named["goodput"]
    assert goodput.point is not None
    assert goodput.point.samples_per_step == 16
    assert goodput.convergence.verdict == "passed", goodput.convergence.reason
    assert goodput.note == "batch 32 would be ahead but learns worse"
    assert answer.verdict == "improved"
    assert answer.winner is not None
    assert answer.winner.knobs == goodput.knobs
    runs = [request for request in sweep.requests() if request.run_samples]
    others = [(r.knobs["batch.per_gpu"], r.knobs["batch.accumulation"]) for r in runs[3:]]
    assert others == [(8, 2)] * 3 + [(8, 1)], "each rule once, then the next batch"
    assert runs[-1].knobs["batch.lr_rule"] == answer.batch.lr_rule
    assert (runs[-1].run_samples, runs[-1].budget.max_steps) == (16_000, 1000)
    assert "learnt worse than the baseline: batch 32" in answer.batch.note
    # Interrupted before the next batch was asked for, the sweep asks for the same.
    ids = [event.data.get("request", {}).get("id") for event in sweep.log.events]
    again = batch_sweep(
        2000.0, WORSE, 16, sweep.log.events[: ids.index(runs[-1].id)], converge_s=1e6
    )
    assert [r.id for r in again.requests()] == [r.id for r in sweep.requests()]


def test_without_time_for_the_next_batch_it_is_not_advised_and_that_is_said() -> None:
    answer = batch_sweep(2000.0, WORSE, spared=16, converge_s=720.0).answer
    assert answer.batch is not None
    goodput = answer.batch.named["goodput"]
    assert answer.baseline is not None
    assert goodput.point is not None
    assert goodput.point.id == answer.baseline.id
    assert goodput.note == (
        "batch 32 would be ahead but learns worse; batch 16 would be ahead and was not checked; "
        "nothing that was checked is better than the baseline"
    )
    assert "batch 16 would be next and takes measure.converge_s=840" in answer.batch.note


def test_without_the_time_for_a_check_its_runs_are_short_and_no_verdict_is_given() -> None:
    answer = batch_sweep(200.0, COSTS, converge_s=20.0).answer
    assert answer.batch is not None
    assert "no verdict" in answer.batch.note
    assert answer.convergence is not None
    assert answer.convergence.verdict == "not checked"
    assert "500 steps" in answer.convergence.reason


def test_noise_is_taken_at_first_visits_of_a_batch_stage_alone() -> None:
    requests = batch_sweep(200.0, COSTS).requests()
    first = [r for r in requests if r.replicate_of is None and r.id.startswith("batch.")]
    assert all(r.noise_steps for r in first)
    assert not any(r.noise_steps for r in requests if r.replicate_of)


def test_a_run_that_is_lost_is_made_once_more() -> None:
    config = config_of()
    config.name = "batch_lr"
    inside = learner(200.0, COSTS)
    lost: list[str] = []

    def execute(request: TrialRequest) -> TrialRecord:
        record = inside(request)
        if request.id == "learning.c001":
            lost.append(request.id)
            outcome = replace(record.outcome, kind=OutcomeKind.FAILED, reason="rank 1 was lost")
            return replace(record, outcome=replace(outcome, error_kind="worker_lost"))
        return record

    sweep = Staged(BATCH, execute, config=config)
    sweep.run()
    assert lost == ["learning.c001"]
    assert "learning.c001r1" in [request.id for request in sweep.requests()]
    assert sweep.answer.convergence is not None
    assert sweep.answer.convergence.num_seeds == 3


def test_asking_twice_gives_the_same_answer() -> None:
    sweep = staged(JOINT, multiplying)
    conductor = sweep.conductor()
    planner = conductor.planner
    now = sweep.clock.wall_s()
    assert planner.decide(now) == planner.decide(now)
    request = conductor.next()
    assert isinstance(request, Request)
    assert request.request.id == "memory.t000"
