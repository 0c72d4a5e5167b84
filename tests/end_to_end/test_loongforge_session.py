"""Visits whose steps a LoongForge rank takes: real child processes of the stand-in program.

The workers are threads here; Ray's own are in test_loongforge_command.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lf_ray.clock import SystemClock
from lf_ray.compose import compose
from lf_ray.loongforge.session import LoongForgeSession
from lf_ray.loongforge.start_check import ready_checkout
from lf_ray.machine import Machine
from lf_ray.protocol import (
    Budget,
    Deadlines,
    KnobValue,
    OutcomeKind,
    Purpose,
    TrialRecord,
    TrialRequest,
)
from lf_ray.settings import SweepConfig, knobs_of
from lf_ray.testing.sessions import ThreadControl, ThreadWorld
from lf_ray.trial.faults.leftovers import process_state
from lf_ray.trial.faults.outcomes import ErrorReport
from lf_ray.trial.ranks.outside import visit_outside
from lf_ray.trial.visit import Bench, VisitSettings

LAPTOP = Machine(num_cores=2, memory_bytes=2**34, shm_bytes=2**33)
BUDGET = Budget(min_steps=20, max_steps=120, max_s=6.0, target_frac=0.2)
DEADLINES = Deadlines(first_batch_s=20.0, step_s=3.0)


class _Watch:
    def __init__(self) -> None:
        self.faults: list[ErrorReport] = []

    def enter(self, phase: str, limit_s: float | None) -> None: ...

    def fault(self, report: ErrorReport) -> None:
        self.faults.append(report)


@dataclass(slots=True)
class Pair:
    """Two ranks that serve one request after the other."""

    config: SweepConfig
    sessions: list[LoongForgeSession]
    benches: list[Bench]
    watch: _Watch

    def visit(self, name: str, **knobs: KnobValue) -> TrialRecord:
        """Runs a request on both ranks, then restores them; returns rank 0's record."""
        named = {key.replace("__", "."): value for key, value in knobs.items()}
        request = TrialRequest(
            id=name,
            knobs={**knobs_of(self.config), **named},
            seed=1,
            purpose=Purpose.SEARCH,
            budget=BUDGET,
            deadlines=DEADLINES,
        )
        records: dict[int, TrialRecord] = {}

        def serve(rank: int) -> None:
            settings = VisitSettings(block_s=0.2)
            session, bench = self.sessions[rank], self.benches[rank]
            records[rank] = visit_outside(session, bench, request, settings)

        threads = [threading.Thread(target=serve, args=(rank,), daemon=True) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
        assert sorted(records) == [0, 1]
        assert records[0].outcome.kind is records[1].outcome.kind
        return records[0]

    def pids(self) -> list[int]:
        """Returns the children's process ids, and those of what they started."""
        runs = [item._running for item in self.sessions if item._running is not None]
        own = [run.child.pid for run in runs if run.child is not None]
        files = {file for run in runs for file in run.folder.glob("worker.rank*")}
        return own + [int(file.read_text()) for file in files]

    def reset(self) -> None:
        """Restores both ranks as serve does after each visit."""
        for session in self.sessions:
            session.reset()


@pytest.fixture
def pair(loongforge_words: list[str], tmp_path: Path) -> Iterator[Pair]:
    config = compose("overlap", [*loongforge_words, "data.workers=1"], LAPTOP)
    world, watch = ThreadWorld(2), _Watch()
    lines = [ThreadControl(world, rank) for rank in (0, 1)]
    checkout = ready_checkout(config)
    sessions = [
        LoongForgeSession(
            config=config,
            checkout=checkout,
            rank=rank,
            world_size=2,
            line=lines[rank],
            folder=tmp_path / "runs",
            base_global_batch=8,
        )
        for rank in (0, 1)
    ]
    clock = SystemClock()
    benches = [Bench(control=line, clock=clock, watch=watch) for line in lines]
    made = Pair(config, sessions, benches, watch)
    yield made
    made.reset()


def test_visits_follow_each_other_with_fresh_children(pair: Pair, tmp_path: Path) -> None:
    first = pair.visit("t000", overlap__bucket_size_mb=64.0)
    assert first.outcome.kind is OutcomeKind.COMPLETED, first.outcome.reason
    assert first.outcome.reason == ""
    assert first.samples_per_step == 8
    assert first.throughput_samples_per_s is not None
    assert first.throughput_samples_per_s.value == pytest.approx(
        first.metrics["wall_samples_per_s"], rel=0.25
    )
    assert first.trace is not None
    assert first.trace.lr[0] == pytest.approx(1e-4)
    (command,) = (tmp_path / "runs").glob("t000-*/command.txt")
    assert "--ddp-bucket-cap-mb 64 " in command.read_text()
    before = pair.pids()
    assert len(before) == 4
    pair.reset()
    assert {process_state(pid) for pid in before} == {"gone"}
    graphed = pair.visit("t001", graph__scope="step", overlap__ratio=0.0, batch__per_gpu=2)
    assert graphed.outcome.kind is OutcomeKind.COMPLETED, graphed.outcome.reason
    assert graphed.samples_per_step == 4
    assert not set(before) & set(pair.pids())


@pytest.mark.parametrize(
    ("fault", "kind", "error_kind", "word"),
    [
        ("oom@0:1", OutcomeKind.INFEASIBLE, "oom", "Tried to allocate 2.00 GiB"),
        ("oom@12:0", OutcomeKind.INFEASIBLE, "oom", "Tried to allocate 2.00 GiB"),
        ("exception@8:1", OutcomeKind.FAILED, "exception", "the planned end of this run"),
        ("hang@8:1", OutcomeKind.FAILED, "hang", "did not come within"),
        ("skip@2:0", OutcomeKind.INVALID, "gate", "skipped"),
    ],
)
def test_a_child_that_fails_is_an_outcome_and_the_group_goes_on(
    pair: Pair,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    kind: OutcomeKind,
    error_kind: str,
    word: str,
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", fault)
    outcome = pair.visit("t000").outcome
    assert (outcome.kind, outcome.error_kind) == (kind, error_kind), outcome.reason
    assert word in outcome.reason
    assert not outcome.group_lost
    assert pair.watch.faults == []
    pids = pair.pids()
    pair.reset()
    assert {process_state(pid) for pid in pids} == {"gone"}
    monkeypatch.delenv("STAND_IN_FAULT")
    again = pair.visit("t001").outcome
    assert again.kind is OutcomeKind.COMPLETED, again.reason


def test_time_that_the_trainer_does_not_tell_of_is_said(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", "slow@0:0")
    record = pair.visit("t000")
    assert record.metrics["wall_mismatch_frac"] > 0.2
    assert "the wall clock" in record.outcome.reason


def test_a_graph_that_can_not_be_captured_comes_with_what_to_do(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_NO_CAPTURE", "1")
    outcome = pair.visit("t000", graph__scope="step", overlap__ratio=1.0).outcome
    assert outcome.kind is OutcomeKind.FAILED
    assert "legacy stream" in outcome.reason
    assert "overlap.ratio=0 sends after the graph" in outcome.reason
    pair.reset()
    outcome = pair.visit("t001", graph__scope="step", overlap__ratio=0.0).outcome
    assert outcome.kind is OutcomeKind.COMPLETED, outcome.reason


def test_without_workers_it_starts_too(pair: Pair) -> None:
    for session in pair.sessions:
        session.config.data.workers = 0
    outcome = pair.visit("t000").outcome
    assert outcome.kind is OutcomeKind.COMPLETED, outcome.reason


def test_a_point_that_it_lacks_is_infeasible(pair: Pair) -> None:
    outcome = pair.visit("t000", graph__scope="step+optimizer").outcome
    assert (outcome.kind, outcome.error_kind) == (OutcomeKind.INFEASIBLE, "settings")
    assert not outcome.group_lost


def test_an_interpreter_that_is_gone_is_an_outcome(pair: Pair) -> None:
    for session in pair.sessions:
        session.checkout = replace(session.checkout, python="no-such-python")
    outcome = pair.visit("t000").outcome
    assert outcome.kind is OutcomeKind.FAILED
    assert "can't be started" in outcome.reason
    assert not outcome.group_lost
