"""The session that only takes batches: real data, a real loader, a step that only takes time."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from lf_ray.analysis.answer import answer_of
from lf_ray.analysis.report.feeding import feeding_settings, is_feeding
from lf_ray.clock import FakeClock, SystemClock
from lf_ray.data.sample_set import SampleSetShape, render_sample_set
from lf_ray.protocol import OutcomeKind, Purpose, TrialRequest
from lf_ray.record.history import history_of
from lf_ray.search.plan.decisions import Rules
from lf_ray.search.samplers.plain import GridProposer
from lf_ray.search.space import Literal
from lf_ray.settings import DataSettings, MeasureSettings, SweepConfig, knobs_of, plain
from lf_ray.testing.fake_sweep import FakeSweep
from lf_ray.trial.faults.outcomes import ErrorReport
from lf_ray.trial.feeding.session import FeedingSession
from lf_ray.trial.visit import Bench, VisitSettings, run_visit

STEP_S = 0.02


class Alone:
    """The control line of a single rank."""

    rank = 0
    size = 1

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value


class Unwatched:
    """A watch that forgets."""

    def enter(self, phase: str, limit_s: float | None) -> None: ...

    def fault(self, report: ErrorReport) -> None: ...


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> SweepConfig:
    root = tmp_path_factory.mktemp("feeding")
    render_sample_set(root / "set", SampleSetShape(num_episodes=2, num_frames=24, side_px=32))
    data = DataSettings(
        source="lerobot", path=str(root / "set"), cache_dir=str(root / "cache"), step_s=STEP_S
    )
    return SweepConfig(data=data)


@pytest.fixture
def session(config: SweepConfig) -> Iterator[FeedingSession]:
    made = FeedingSession(config, 0, 1)
    yield made
    made.close()


def request(config: SweepConfig, **knobs: int) -> TrialRequest:
    named = {f"data.{name}": value for name, value in knobs.items()}
    return TrialRequest(
        id="t000", knobs={**knobs_of(config), **named}, seed=0, purpose=Purpose.SEARCH
    )


def test_a_step_lasts_what_was_given_and_what_it_waits(
    session: FeedingSession, config: SweepConfig
) -> None:
    effective = session.prepare(request(config, workers=0, prefetch=2))
    assert effective == {
        "data_workers": 0,
        "data_prefetch": 2,
        "data_cache": "whole",
        "data_decode_threads": 1,
        "fed_step_s": STEP_S,
        "settings_mismatch": "",
    }
    samples = session.run(5)
    for sample in samples:
        assert sample.wall_s >= STEP_S + sample.wait_s - 1e-4
        assert sum(sample.phases_s.values()) == pytest.approx(sample.wall_s)
    assert [sample.step for sample in samples] == list(range(5))
    assert session.samples_per_step == 4


def test_workers_and_prefetch_do_not_change_what_is_in_the_batches(
    session: FeedingSession, config: SweepConfig
) -> None:
    for workers, prefetch, cache, threads in ((0, 2, True, 1), (1, 1, False, 2), (0, 1, True, 1)):
        knobs = {"cache": cache, "decode_threads": threads}
        session.prepare(request(config, workers=workers, prefetch=prefetch, **knobs))
        session.run(4)
        gate = session.gate()
        assert gate.passed
        assert gate.num_steps == config.measure.gate_steps
        session.reset()


def test_a_cache_that_is_being_filled_makes_the_visit_invalid(
    session: FeedingSession, config: SweepConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lf_ray.data.loader.BatchLoader.fill", lambda self, deadline_s: False)
    record = run_visit(
        session,
        Bench(control=Alone(), clock=FakeClock(), watch=Unwatched()),
        request(config, workers=0),
        VisitSettings(),
    )
    assert record.outcome.kind is OutcomeKind.INVALID
    assert "still being filled after 60 s" in record.outcome.reason
    assert record.throughput_samples_per_s is None


def test_other_samples_fail_the_gate(
    session: FeedingSession, config: SweepConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.prepare(request(config, workers=0))
    session.run(4)
    assert session.gate().passed
    monkeypatch.setattr("lf_ray.data.loader.BatchLoader.seek", lambda self, position: None)
    session.prepare(request(config, workers=0))
    session.run(4)
    gate = session.gate()
    assert not gate.passed
    assert "other samples" in gate.reason


def test_a_loader_slower_than_the_step_shows_as_waiting(config: SweepConfig) -> None:
    def share_waited(step_s: float) -> float:
        data = replace(config.data, step_s=step_s, cache=False)
        session = FeedingSession(replace(config, data=data), 0, 1)
        try:
            session.prepare(request(config, workers=0, prefetch=1))
            samples = session.run(20)
        finally:
            session.close()
        # The first batches are looked at by the gate, which takes time of its own.
        after_gate = samples[config.measure.gate_steps :]
        return median(s.wait_s / s.wall_s for s in after_gate)

    # A batch takes a millisecond or less here; how much of a step of none is waiting, the machine
    # decides, but it is much more than of one that is longer than the loader needs.
    assert share_waited(step_s=1e-5) > max(0.1, 3 * share_waited(step_s=STEP_S))


def test_a_sweep_of_the_input_path_alone_ends_in_words_for_the_command_line(
    session: FeedingSession, config: SweepConfig
) -> None:
    literal: Literal = {
        "data.workers": [0, 1],
        "data.cache": [True],
        "data.decode_threads": [1, 2],
    }
    bench = Bench(control=Alone(), clock=SystemClock(), watch=Unwatched())
    sweep = FakeSweep(
        lambda request: run_visit(session, bench, request, VisitSettings()),
        literal,
        rules=Rules(trials=4, round_size=6, measure=MeasureSettings(max_steps=20, target_frac=0.5)),
        proposer=GridProposer(),
        baseline=knobs_of(config),
    )
    stop = sweep.run()
    assert stop.exit_code == 0, stop.reason
    # Uncached points would make it chance which point the slices are taken through.
    tried = {(r.knobs["data.workers"], r.knobs["data.decode_threads"]) for r in sweep.started()}
    assert tried == {(0, 1)}
    assert any("no frame is left to decode" in line["reason"] for line in sweep.lines("dead"))
    begun, *events = sweep.log.events
    header = {
        **begun.data,
        "config": plain(config),
        "space_hash": "",
        "baseline_knobs": knobs_of(config),
        "machine": {},
        "versions": {},
        "data_id": "",
        "seed": 0,
    }
    answer = answer_of(history_of([replace(begun, data=header), *events], Path("memory")))
    assert is_feeding(answer)
    assert re.fullmatch(
        r"data\.workers=\d data\.decode_threads=\d data\.prefetch=2 data\.cache=(true|false)",
        feeding_settings(answer),
    )
