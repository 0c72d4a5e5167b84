"""The real driver killed with SIGKILL, again and again: nothing finished is lost or run twice."""

import json
import random
import sqlite3
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
import pytest

from lf_ray.record.history import SweepHistory, read_journal
from lf_ray.testing.sweep_process import SweepProcess, result_folder

pytestmark = [pytest.mark.timeout(1500), pytest.mark.slow]

# Short visits of `standard`: what a smoke sweep does depends on how long it has been under way.
WORDS = (
    "measure=standard",
    "measure.max_steps=40",
    "measure.winner_steps=60",
    "sweep.trials=6",
    "sweep.seed=3",
)
NUM_KILLS = 10
START_S = 16.0
ANSWER = ("baseline", "best", "knee", "gain", "outcomes")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    sweep = SweepProcess(folder, *WORDS)
    try:
        assert sweep.wait() == 0, sweep.tail()
        assert sweep.left() == []
    finally:
        sweep.end()
    return folder


def kill_lives(folder: Path, rng: random.Random) -> int:
    """Starts and kills lives of one sweep; returns how many were killed.

    Every other one gets as far as one more finished visit, since what was under way each of three
    times is given up (and a sweep that does so may give another answer). Those between die while
    imports, Ray and the group are starting, with their first line in the journal at the latest.
    """
    killed, words = 0, list(WORDS)
    while killed < NUM_KILLS:
        life = SweepProcess(folder, *words)
        try:
            seen = len(life.lines())
            if killed % 2:
                with suppress(TimeoutError):
                    life.until_lines(seen + 1, rng.uniform(0.5, START_S))
            else:
                assert life.until_lines(seen + rng.randint(4, 5)), life.tail()
                time.sleep(rng.uniform(0.0, 0.6))
            life.process.kill()
            life.wait(30)
            assert life.left(90.0) == []
        finally:
            life.end()
        killed += 1
        words = [*WORDS, f"resume={result_folder(folder).name}"]
    return killed


def test_killed_ten_times_it_ends_as_the_uninterrupted_sweep(whole: Path, tmp_path: Path) -> None:
    killed = kill_lives(tmp_path, random.Random(11))
    last = SweepProcess(tmp_path, *WORDS, f"resume={result_folder(tmp_path).name}")
    try:
        assert last.wait() == 0, last.tail()
        assert last.left() == []
    finally:
        last.end()
    expected, found = (read_journal(result_folder(f) / "journal.jsonl") for f in (whole, tmp_path))
    # A life that is killed while Ray starts has not written that it goes on yet.
    assert killed // 2 <= resumes(found) <= killed
    assert story(found) == story(expected)
    assert proposals(found) == proposals(expected)
    assert answer(tmp_path) == answer(whole)
    check_nothing_twice(found)
    check_mlflow(tmp_path / "mlflow.db", found)
    check_study(result_folder(tmp_path), result_folder(whole))


def resumes(history: SweepHistory) -> int:
    return sum(event.kind == "note" and bool(event.data.get("resumed")) for event in history.events)


def story(history: SweepHistory) -> list[Any]:
    """What came back, in order: point, outcome and every bit of the number."""
    return [
        (r.request.id, dict(r.request.knobs), r.outcome.kind, r.throughput_samples_per_s)
        for r in history.records
    ]


def proposals(history: SweepHistory) -> list[Any]:
    return [(item.index, item.suggestions, item.sampler_seed) for item in history.rounds]


def answer(folder: Path) -> dict[str, Any]:
    """What the sweep says, less the name of Ray's node, which each life has anew."""
    summary = json.loads((result_folder(folder) / "summary.json").read_text())
    for point in ("baseline", "best"):
        del summary[point]["effective"]["node"]
    return {name: summary[name] for name in ANSWER}


def check_nothing_twice(history: SweepHistory) -> None:
    finished = Counter(record.request.id for record in history.records)
    assert set(finished.values()) == {1}
    assert {request.id for request in history.started} == set(finished)
    assert not history.unfinished
    assert history.ended is not None


def check_mlflow(database: Path, history: SweepHistory) -> None:
    """One run for the sweep and one for each request; the last life was not killed."""
    with sqlite3.connect(database) as connection:
        rows = connection.execute(
            "select t.value, r.status from runs r join tags t on t.run_uuid = r.run_uuid"
            " where t.key = 'lf_ray.trial_key'"
        ).fetchall()
    keys = Counter(str(key).split("/", 1)[1] for key, _ in rows)
    assert keys == Counter({"sweep", *(request.id for request in history.started)})
    assert {status for _, status in rows} == {"FINISHED"}


def check_study(found: Path, expected: Path) -> None:
    """The study file has the same trials, all of them ended."""
    values = []
    for folder in (found, expected):
        (study,) = optuna.get_all_study_summaries(f"sqlite:///{folder / 'study.db'}")
        loaded = optuna.load_study(
            study_name=study.study_name, storage=f"sqlite:///{folder / 'study.db'}"
        )
        values.append([(trial.params, trial.values, trial.state) for trial in loaded.trials])
    assert values[0] == values[1]
    assert all(state.is_finished() for _, _, state in values[0])
