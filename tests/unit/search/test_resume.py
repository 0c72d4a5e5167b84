"""Killed at any event, a sweep goes on as the uninterrupted one would have."""

import dataclasses
from collections.abc import Callable, Sequence

import pytest

from lf_ray.protocol import KnobValue, OutcomeKind, TrialOutcome, TrialRequest
from lf_ray.record.events import JournalEvent
from lf_ray.search.plan.decisions import Proposer, Rules
from lf_ray.search.samplers.optuna_study import TpeProposer
from lf_ray.search.samplers.plain import RandomProposer
from lf_ray.search.space import Literal
from lf_ray.testing.fake_sweep import FakeSweep
from lf_ray.testing.objectives import KneeObjective, out_of_memory, worker_lost

LITERAL: Literal = {
    "batch.per_gpu": [2, 4, 8],
    "overlap.bucket_size_mb": [2.0, 8.0, 32.0],
    "overlap.ratio": [0.0, 0.5, 1.0],
}


def fate(request: TrialRequest) -> TrialOutcome | None:
    """Some of everything: out of memory, a lost worker, a point that never works."""
    if int(request.knobs["batch.per_gpu"]) > 4:
        return out_of_memory()
    if request.id in ("t004", "t002r1", "s001"):
        return worker_lost()
    if request.knobs["overlap.ratio"] == 0.0 and request.knobs["overlap.bucket_size_mb"] == 2.0:
        return TrialOutcome(kind=OutcomeKind.FAILED, reason="diverged", error_kind="diverged")
    return None


def new_sweep(proposer: Proposer) -> FakeSweep:
    objective = KneeObjective(noise_frac=0.01, spread_frac=0.01, fate=fate)
    return FakeSweep(
        objective, LITERAL, rules=Rules(trials=10, seed=5, max_failures=5), proposer=proposer
    )


Story = list[tuple[str, tuple[tuple[str, KnobValue], ...], str, float | None]]


def story(sweep: FakeSweep) -> Story:
    """Returns what was asked and what came of it, in order, re-runs after a kill left out."""
    told: Story = []
    for event in sweep.lines("finished"):
        record = event["record"]
        reading = record["throughput_samples_per_s"]
        told.append(
            (
                record["request"]["id"],
                tuple(sorted(record["request"]["knobs"].items())),
                record["outcome"]["kind"],
                reading and reading["value"],
            )
        )
    return told


@pytest.mark.parametrize(
    "proposer",
    [
        pytest.param(RandomProposer(), id="random", marks=pytest.mark.slow),
        pytest.param(TpeProposer(), id="tpe"),
    ],
)
def test_the_answer_is_the_same_after_a_kill_at_any_event(proposer: Proposer) -> None:
    whole = new_sweep(proposer)
    stop = whole.run()
    events = whole.log.events
    assert stop.exit_code == 0
    assert len(events) > 35, stop
    step = 1 if isinstance(proposer, RandomProposer) else 11
    for cut in range(1, len(events) - 1, step):
        resumed = new_sweep(proposer)
        assert resumed.run(events[:cut]) == stop, cut
        assert story(resumed) == story(whole), cut


def test_killed_again_and_again(make_sweep: Callable[..., FakeSweep]) -> None:
    whole = new_sweep(RandomProposer())
    stop = whole.run()
    events: Sequence[JournalEvent] = whole.log.events[:4]
    for more in (2, 3, 5, 7, 11):
        partial = new_sweep(RandomProposer())
        partial.run(events)
        events = partial.log.events[: len(events) + more]
    last = new_sweep(RandomProposer())
    assert last.run(events) == stop
    assert story(last) == story(whole)


def test_no_finished_trial_is_run_again_and_none_is_lost() -> None:
    whole = new_sweep(RandomProposer())
    whole.run()
    cut = next(i for i, e in enumerate(whole.log.events) if e.kind == "finished") + 5
    resumed = new_sweep(RandomProposer())
    resumed.run(whole.log.events[:cut])
    finished = [event["record"]["request"]["id"] for event in resumed.lines("finished")]
    assert len(finished) == len(set(finished))
    started = {request.id for request in resumed.started()}
    assert started == set(finished)


def test_what_was_under_way_each_time_is_given_up() -> None:
    """O6: a request that takes the driver down with it counts once and does not come for ever."""
    whole = new_sweep(RandomProposer())
    whole.run()
    cut = [i for i, event in enumerate(whole.log.events) if event.kind == "started"][3] + 1
    events = list(whole.log.events[:cut])
    running = TrialRequest.from_json(events[-1].data["request"])
    for _ in range(2):
        resumed = new_sweep(RandomProposer())
        conductor = resumed.conductor(events)
        decision = conductor.next()
        assert getattr(decision, "request", None) == running
        events = list(resumed.log.events)
    last = new_sweep(RandomProposer())
    last.run(events)
    records = [
        e["record"] for e in last.lines("finished") if e["record"]["request"]["id"] == running.id
    ]
    assert [record["outcome"]["kind"] for record in records] == ["failed"]
    assert "3 times" in records[0]["outcome"]["reason"]
    assert last.state.num_trials == 10


def test_pauses_do_not_count_against_the_minutes() -> None:
    whole = new_sweep(RandomProposer())
    whole.run()
    events = whole.log.events[:20]
    resumed = new_sweep(RandomProposer())
    resumed.rules = dataclasses.replace(resumed.rules, minutes=5.0)
    resumed.clock.sleep(3600.0)
    stop = resumed.run(events)
    assert "minutes" not in stop.reason


def test_an_interrupted_sweep_goes_on_where_it_stood() -> None:
    whole = new_sweep(RandomProposer())
    stop = whole.run()
    first = new_sweep(RandomProposer())
    conductor = first.conductor()
    for _ in range(5):
        decision = conductor.next()
        conductor.finish(first.execute(decision.request))  # type: ignore[union-attr]
    conductor.next()
    conductor.interrupt("ended by SIGTERM")
    assert first.lines("ended")[-1]["exit_code"] == 130
    second = new_sweep(RandomProposer())
    assert second.run(first.log.events) == stop
    assert story(second) == story(whole)


def test_a_finished_sweep_has_nothing_left_to_do() -> None:
    whole = new_sweep(RandomProposer())
    stop = whole.run()
    again = new_sweep(RandomProposer())
    assert again.run(whole.log.events) == stop
    assert len(again.started()) == len(whole.started())
