"""The Tune searcher without Tune: what it suggests, what it hands on, how it is pickled."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from ray.tune.search import Searcher

from lf_ray.protocol import TrialRequest
from lf_ray.search.conductor import parse_record
from lf_ray.search.plan.decisions import Rules
from lf_ray.search.searcher import SweepSearcher
from lf_ray.testing.fake_sweep import FakeSweep
from lf_ray.testing.objectives import KneeObjective, worker_lost


def new_searcher(num_groups: int = 1, trials: int = 4) -> tuple[SweepSearcher, FakeSweep]:
    sweep = FakeSweep(KneeObjective(), rules=Rules(trials=trials, num_groups=num_groups))
    return SweepSearcher(sweep.conductor(), num_groups), sweep


def answer(sweep: FakeSweep, config: dict[str, Any]) -> dict[str, Any]:
    request = TrialRequest.from_json(json.loads(config["request"]))
    return {"record": json.dumps(sweep.execute(request).to_json()), "done": True}


def test_one_request_at_a_time_to_the_end() -> None:
    searcher, sweep = new_searcher()
    suggestions = 0
    while (config := searcher.suggest(f"tune{suggestions}")) != Searcher.FINISHED:
        assert searcher.suggest("too early") is None
        assert config["group"] == 0
        searcher.on_trial_complete(f"tune{suggestions}", answer(sweep, config))
        suggestions += 1
    assert suggestions == len(sweep.started()) == len(sweep.lines("finished"))
    assert sweep.state.ended is not None


def test_two_groups_take_turns() -> None:
    searcher, sweep = new_searcher(num_groups=2)
    first = searcher.suggest("a")
    searcher.on_trial_complete("a", answer(sweep, first))
    b, c = searcher.suggest("b"), searcher.suggest("c")
    assert (b["group"], c["group"]) == (0, 1)
    assert searcher.suggest("d") is None
    searcher.on_trial_complete("c", answer(sweep, c))
    assert searcher.suggest("e")["group"] == 1


@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        (None, True, "the trainable raised"),
        ({"done": True}, False, "no record in the result"),
        ({"record": "{}"}, False, "unreadable record"),
    ],
)
def test_whatever_comes_back_the_request_is_closed(
    result: dict[str, Any] | None, error: bool, words: str
) -> None:
    """R6, H1: a trial without a record has failed, with what was missing."""
    searcher, sweep = new_searcher()
    searcher.suggest("a")
    searcher.on_trial_complete("a", result, error=error)
    outcome = sweep.lines("finished")[0]["record"]["outcome"]
    assert outcome["kind"] == "failed"
    assert words in outcome["reason"]
    assert not sweep.state.in_flight


@pytest.mark.parametrize("error", [True, False])
def test_what_fails_while_the_sweep_is_being_ended_stays_open(error: bool) -> None:
    """Its group went with the sweep: it is run again on resume, and is not blamed."""
    sweep = FakeSweep(KneeObjective(fate=lambda _: worker_lost()), rules=Rules(trials=4))
    searcher = SweepSearcher(sweep.conductor(), is_ending=lambda: True)
    config = searcher.suggest("a")
    searcher.on_trial_complete("a", None if error else answer(sweep, config), error=error)
    assert sweep.lines("finished") == []
    assert list(sweep.state.in_flight) == ["t000"]


def test_what_was_measured_while_the_sweep_is_being_ended_is_kept() -> None:
    sweep = FakeSweep(KneeObjective(), rules=Rules(trials=4))
    searcher = SweepSearcher(sweep.conductor(), is_ending=lambda: True)
    config = searcher.suggest("a")
    searcher.on_trial_complete("a", answer(sweep, config))
    assert len(sweep.lines("finished")) == 1


def test_a_record_of_another_request_is_not_taken() -> None:
    request = TrialRequest(id="t001", knobs={}, seed=0, purpose="search")  # type: ignore[arg-type]
    other = TrialRequest(id="t002", knobs={}, seed=0, purpose="search")  # type: ignore[arg-type]
    data = {"request": other.to_json(), "outcome": {"kind": "completed"}}
    assert "t002 came back for t001" in parse_record(request, data).outcome.reason


def test_a_group_that_gave_up_ends_the_sweep() -> None:
    searcher, sweep = new_searcher()
    config = searcher.suggest("a")
    searcher.on_trial_complete("a", {**answer(sweep, config), "gave_up": "no worker starts"})
    assert searcher.suggest("b") == Searcher.FINISHED
    assert sweep.lines("ended")[-1]["reason"] == "no worker starts"


def test_results_after_the_end_are_not_told() -> None:
    searcher, sweep = new_searcher()
    config = searcher.suggest("a")
    assert sweep.state.in_flight
    conductor = searcher._conductor
    assert conductor is not None
    conductor.interrupt("ended by SIGTERM")
    searcher.on_trial_complete("a", answer(sweep, config))
    assert not sweep.lines("finished")


def test_tune_may_pickle_and_save_it(tmp_path: Path) -> None:
    searcher, _ = new_searcher()
    copy = pickle.loads(pickle.dumps(searcher))
    assert copy.suggest("a") == Searcher.FINISHED
    searcher.save_to_dir(str(tmp_path), session_str="x")
    searcher.restore_from_dir(str(tmp_path))
    assert searcher.suggest("a") != Searcher.FINISHED
