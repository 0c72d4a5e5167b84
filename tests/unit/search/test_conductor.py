"""The one path of events: journal first, observers after, and an end whatever happens."""

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from ray.tune.search import Searcher

from lf_ray.errors import RecordError
from lf_ray.protocol import TrialRecord, TrialRequest
from lf_ray.record.events import JournalEvent
from lf_ray.search.conductor import MemoryLog, Standing
from lf_ray.search.plan.decisions import Request, Rules
from lf_ray.search.searcher import SweepSearcher
from lf_ray.search.sweep import Interruption
from lf_ray.testing.fake_sweep import FakeSweep
from lf_ray.testing.objectives import KneeObjective


class Witness:
    """Notes what it is told and how long the journal was then."""

    def __init__(self, sweep: FakeSweep, raises_on: str = "") -> None:
        self.sweep = sweep
        self.raises_on = raises_on
        self.told: list[tuple[str, int]] = []

    def _take(self, what: str) -> None:
        self.told.append((what, len(self.sweep.log.events)))
        if what == self.raises_on:
            raise OSError("no such view")

    def on_sweep(self, header: Mapping[str, Any], events: Sequence[JournalEvent]) -> None:
        self._take("sweep")

    def on_started(self, request: TrialRequest, reason: str, standing: Standing) -> None:
        assert reason
        self._take("started")

    def on_finished(self, record: TrialRecord, standing: Standing) -> None:
        assert standing.outlook.num_visits
        self._take("finished")

    def on_note(self, text: str) -> None:
        self._take("note")

    def on_ended(self, reason: str, exit_code: int, standing: Standing) -> None:
        self._take("ended")


class FullDisk(MemoryLog):
    """A log that takes no more than so many events."""

    room = 10

    def append(self, kind: str, **payload: Any) -> JournalEvent:
        if len(self.events) >= self.room:
            raise RecordError("No space left on device")
        return super().append(kind, **payload)


def witnessed(raises_on: str = "") -> tuple[FakeSweep, Witness]:
    sweep = FakeSweep(KneeObjective(), rules=Rules(trials=4))
    witness = Witness(sweep, raises_on)
    sweep.observers = [witness]
    return sweep, witness


def test_observers_hear_what_is_already_in_the_journal() -> None:
    sweep, witness = witnessed()
    sweep.run()
    assert [what for what, _ in witness.told].count("ended") == 1
    assert witness.told[0] == ("sweep", 1)
    kinds = {"started": ("started", "replicate"), "finished": ("finished",), "ended": ("ended",)}
    for what, length in witness.told:
        if what in kinds:
            assert sweep.log.events[length - 1].kind in kinds[what]


def test_an_observer_that_raises_is_dropped_and_said() -> None:
    sweep, witness = witnessed(raises_on="finished")
    assert sweep.run().exit_code == 0
    assert [what for what, _ in witness.told].count("finished") == 1
    assert any("Witness is told nothing more: OSError" in n["text"] for n in sweep.lines("note"))


@pytest.mark.parametrize("room", range(1, 14))
def test_a_full_disk_ends_the_sweep_wherever_it_strikes(room: int) -> None:
    """What is not on the disk has not happened; nobody waits for what can't come."""
    sweep, witness = witnessed()
    conductor = sweep.conductor()
    log = FullDisk(sweep.clock)
    log.room = room
    log.events = sweep.log.events
    conductor._log = log
    searcher = SweepSearcher(conductor)
    for number in range(30):
        config = searcher.suggest(f"t{number}")
        if config == Searcher.FINISHED:
            break
        assert config is not None
        request = next(iter(conductor.planner.state.in_flight.values()))
        record = sweep.execute(request)
        searcher.on_trial_complete(f"t{number}", {"record": record.to_json()})
    assert config == Searcher.FINISHED
    assert conductor.broken is not None
    assert conductor.stop is not None
    assert conductor.stop.exit_code == 1
    assert witness.told[-1][0] == "ended"
    resumed = FakeSweep(KneeObjective(), rules=Rules(trials=4))
    assert resumed.run(log.events).exit_code == 0


def test_the_first_signal_ends_in_order_and_the_second_at_once() -> None:
    left: list[int] = []
    interruption = Interruption(leave_at_once=left.append)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with interruption.armed():
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.reason == "ended by SIGTERM"
        assert not left
        os.kill(os.getpid(), signal.SIGINT)
        assert left == [130]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_an_interrupted_request_stays_open_for_the_resume() -> None:
    sweep, witness = witnessed()
    conductor = sweep.conductor()
    assert isinstance(conductor.next(), Request)
    conductor.interrupt("interrupted by Ctrl-C")
    conductor.interrupt("again")
    assert [line["reason"] for line in sweep.lines("ended")] == ["interrupted by Ctrl-C"]
    assert not sweep.lines("finished")
    assert witness.told[-1][0] == "ended"
    assert conductor.stop is not None
    assert conductor.stop.exit_code == 130


def test_a_space_where_nothing_varies_measures_the_baseline() -> None:
    sweep = FakeSweep(KneeObjective(), {"overlap.ratio": [1.0]})
    stop = sweep.run()
    assert stop.exit_code == 0
    assert {request.replicate_of or request.id for request in sweep.started()} == {"t000"}
    assert "nothing varies" in stop.reason
