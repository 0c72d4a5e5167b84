"""The driver's side without Ray: signals, the lock, first and last lines."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lf_ray.clock import FakeClock, SystemClock
from lf_ray.errors import ConfigError
from lf_ray.machine import Machine
from lf_ray.protocol import (
    Interval,
    OutcomeKind,
    Purpose,
    StepSample,
    TrialOutcome,
    TrialRecord,
    TrialRequest,
)
from lf_ray.settings import SweepConfig
from lf_ray.training.books import BOOKS_NAME, Books, Line
from lf_ray.training.canary import CanaryWatch
from lf_ray.training.driver import Ending, StopWish, only_one
from lf_ray.training.plan import TrainingPlan, resolved
from lf_ray.training.rank import skipped_line
from lf_ray.training.report.summary import end_tags, summary_of, tags_of
from lf_ray.training.report.words import Opened, footer, header
from lf_ray.trial.faults.outcomes import lost

REQUEST = TrialRequest(id="training", knobs={}, seed=0, purpose=Purpose.SEARCH)
PROMISE = Interval(value=200.0, lo=199.0, hi=201.0, num_steps=40, num_visits=2)


def opened(folder: Path) -> Opened:
    config = SweepConfig()
    config.cluster.workers = 2
    config.train.max_steps = 40
    config = resolved(config, {}, num_episodes=8)
    plan = TrainingPlan(
        folder=folder, config=config, data_id="d", num_steps=40, save_every=4, identity={}
    )
    machine = Machine(num_cores=2, memory_bytes=2**34, shm_bytes=2**33)
    return Opened(plan=plan, found={"id": "s1"}, machine=machine, notes=("A note.",))


def ending(outcome: TrialOutcome) -> Ending:
    return Ending(record=TrialRecord(request=REQUEST, outcome=outcome), losses=["rank 1 died"])


def books(folder: Path) -> None:
    book = Books(folder / BOOKS_NAME, SystemClock())
    book.write("started", 0, samples_per_step=8)
    values = {"loss": 0.5, "grad_norm": 1.0, "lr": 1e-4, "step_s": 0.1, "wait_s": 0.0}
    book.write_all([("step", number, values) for number in range(10)])
    book.write("saved", 8, path="x", seconds=0.1, error="")
    book.close()


def test_the_first_signal_asks_and_the_second_leaves() -> None:
    codes: list[int] = []
    clock = FakeClock()
    wish = StopWish(clock, leave_at_once=codes.append)
    before = signal.getsignal(signal.SIGTERM)
    with wish.armed():
        os.kill(os.getpid(), signal.SIGTERM)
        assert (wish.reason, codes) == ("ended by SIGTERM", [])
        signal.signal(signal.SIGTERM, before)
        wish.arm()
        os.kill(os.getpid(), signal.SIGTERM)
        assert codes == [130]
    assert signal.getsignal(signal.SIGTERM) is before


def test_one_process_at_a_time_trains_in_a_folder(tmp_path: Path) -> None:
    refused = pytest.raises(ConfigError, match="another one holds")
    with only_one(tmp_path), refused, only_one(tmp_path):
        pass
    with only_one(tmp_path):
        pass


def test_a_lock_that_can_not_be_opened_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "taken" / ".lock").mkdir(parents=True)
    for folder, why in ((tmp_path / "taken", "Is a directory"), (tmp_path / "gone", "No such")):
        with pytest.raises(ConfigError) as raised, only_one(folder):
            pass
        said = str(raised.value)
        assert f"{folder / '.lock'} ({why}" in said
        assert "Free space and rights there" in said
    # What goes wrong inside is not the lock's.
    with pytest.raises(OSError, match="the training's own"), only_one(tmp_path):
        raise OSError("the training's own")


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [
        (
            TrialOutcome(kind=OutcomeKind.COMPLETED, stop_rule="done"),
            0,
            ["10 of 40 steps", "80 samples/s, loss 0.5", "Restarted after: rank 1 died", "predict"],
        ),
        (
            TrialOutcome(kind=OutcomeKind.COMPLETED, stop_rule="stopped"),
            130,
            ["Saved at step 8.", "python -m lf_ray.train resume=t1 output.dir=elsewhere"],
        ),
        (lost("stopped", "ended by SIGTERM"), 130, ["resume=t1"]),
        (lost("worker_lost", "rank 0 is gone"), 1, ["Failed:  rank 0 is gone", "resume=t1"]),
    ],
)
def test_how_it_ended_and_what_to_do_next(
    tmp_path: Path, outcome: TrialOutcome, code: int, said: list[str]
) -> None:
    folder = tmp_path / "t1"
    folder.mkdir()
    books(folder)
    known = opened(folder)
    known.plan.config.output.dir = "elsewhere"
    summary = summary_of(known, ending(outcome), None, 12.0)
    assert summary["exit_code"] == code
    assert (summary["steps"], summary["samples"], summary["saved_step"]) == (10, 80, 8)
    text = "\n".join(footer(known, ending(outcome), summary, ["away"]))
    for part in (*said, "MLflow: away"):
        assert part in text
    assert end_tags(summary)["restarts"] == 1
    assert tags_of(known)["found.id"] == "s1"


def test_nothing_done_is_said_too(tmp_path: Path) -> None:
    outcome = lost("exception", "no")
    summary = summary_of(opened(tmp_path), ending(outcome), None, 1.0)
    assert (summary["steps"], summary["loss"], summary["throughput"]) == (0, None, None)
    text = "\n".join(footer(opened(tmp_path), ending(outcome), summary, []))
    assert "There is no checkpoint yet." in text


def test_the_first_lines_name_length_rate_and_place(tmp_path: Path) -> None:
    lines = header(replace(opened(tmp_path), from_step=8))
    assert lines[0] == "A note."
    assert "nano on 2 x cpu, 40 steps of 8 samples, from step 8" in lines[1]
    assert "1 episode held out" in lines[2]


def test_the_canary_speaks_once_a_start() -> None:
    notes: list[str] = []
    watch = CanaryWatch(PROMISE, 8, 0.02, notes.append)

    def steps(seconds: float, count: int) -> list[Line]:
        values: Any = {"event": "step", "wait_s": 0.0, "step_s": seconds}
        return [{**values, "step": number} for number in range(count)]

    watch.take(steps(0.04, 15))
    watch.take([{"event": "started", "step": 0}])
    watch.take(steps(0.08, 15))
    assert notes == []
    watch.take(steps(0.08, 15))
    watch.take(steps(0.08, 15))
    assert len(notes) == 1
    assert "x0.500 of the promise; the sweep measured" in notes[0]
    nothing = CanaryWatch(None, 8, 0.02, notes.append)
    nothing.take(steps(0.08, 40))
    assert nothing.verdict is None


def test_skipped_samples_are_counted_in_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "t1"
    folder.mkdir()
    books(folder)
    lacking = [
        StepSample(
            step=10,
            rank=rank,
            wall_s=0.1,
            device_s=0.1,
            loss=0.5,
            grad_norm=1.0,
            wait_s=0.0,
            phases_s={},
            num_skipped=2,
            bad_frames=("frame 7 of a.mp4: broken",),
        )
        for rank in range(2)
    ]
    line = {"loss": 0.5, "step_s": 0.1, **skipped_line(lacking)}
    assert line["bad_frames"] == ["frame 7 of a.mp4: broken"]
    assert skipped_line([replace(item, num_skipped=0) for item in lacking]) == {}
    kept = Books(folder / BOOKS_NAME, FakeClock())
    kept.write("step", 10, **line)
    kept.close()
    done = ending(TrialOutcome(kind=OutcomeKind.COMPLETED, stop_rule="done"))
    summary = summary_of(opened(folder), done, None, 1.0)
    assert summary["skipped"] == 4
    assert "4 samples were skipped" in "\n".join(footer(opened(folder), done, summary, []))
