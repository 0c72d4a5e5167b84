"""What a training resolves to, what it refuses, what its books and its canary say."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lf_ray.clock import FakeClock
from lf_ray.errors import ConfigError
from lf_ray.machine import Machine
from lf_ray.protocol import Interval
from lf_ray.settings import BatchSettings, LrRule, SweepConfig, TrainSettings
from lf_ray.training.books import Books, BooksReader, read_books, steps_of
from lf_ray.training.canary import canary
from lf_ray.training.plan import (
    TrainingPlan,
    promised,
    refuse_stale,
    resolved,
    schedule_of,
    stale_reasons,
)
from lf_ray.training.progress import action_error_words

MACHINE = Machine(num_cores=8, memory_bytes=2**36, shm_bytes=2**34, gpus=("H200",))
RATE = Interval(value=100.0, lo=99.0, hi=101.0, num_steps=40, num_visits=2)
FOUND: dict[str, Any] = {
    "model": "nano",
    "world_size": 2,
    "device": "cpu",
    "data_id": "d1",
    "throughput_samples_per_s": RATE.to_json(),
    "baseline_knobs": {"batch.per_gpu": 4, "batch.accumulation": 1},
}


def config_with(**train: Any) -> SweepConfig:
    config = SweepConfig()
    config.cluster.workers = 2
    return replace(config, train=TrainSettings(**train))


def test_what_is_left_open_is_filled_in() -> None:
    config = resolved(config_with(), {}, num_episodes=40)
    assert (config.train.max_steps, config.train.save_every) == (1000, 100)
    assert config.train.base_global_batch == 8
    assert config.data.holdout_episodes == 2
    assert config.measure.gate_steps == 0
    assert resolved(config_with(), {}, num_episodes=4).data.holdout_episodes == 0
    assert resolved(config_with(), {}, num_episodes=5).data.holdout_episodes == 1
    long = resolved(config_with(max_steps=10**6), {}, num_episodes=0)
    assert long.train.save_every == 1000
    again = resolved(config, {}, num_episodes=40)
    assert again == config


def test_length_warm_up_and_cosine_follow_the_batch() -> None:
    small = config_with(max_samples=800, warmup_ratio=0.1, lr=1e-3)
    batch = BatchSettings(per_gpu=8, accumulation=2, lr_rule=LrRule.linear)
    large = resolved(replace(small, batch=batch), FOUND, num_episodes=0)
    assert schedule_of(resolved(small, FOUND, 0)).num_steps == 100
    schedule = schedule_of(large)
    assert large.train.base_global_batch == 8
    assert (schedule.num_steps, schedule.warmup_steps) == (25, 40)
    assert schedule.peak == pytest.approx(4e-3)


@pytest.mark.parametrize(
    ("train", "rule"),
    [
        ({"max_steps": 5, "max_samples": 5}, "exclude each other"),
        ({"max_steps": 0}, "at least 1"),
        ({"max_samples": -3}, "at least 1"),
        ({"keep": 0}, r"train\.keep"),
        ({"max_restarts": -1}, "max_restarts"),
        ({"save_every": -1}, "save_every"),
    ],
)
def test_lengths_that_make_no_sense_are_refused(train: dict[str, int], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        resolved(config_with(**train), {}, num_episodes=3)


def test_an_episode_must_be_left_to_train_on() -> None:
    config = config_with()
    config.data.holdout_episodes = 3
    with pytest.raises(ConfigError, match=r"3 of 3"):
        resolved(config, {}, num_episodes=3)


def test_a_configuration_from_elsewhere_is_refused_unless_accepted() -> None:
    config = config_with()
    assert stale_reasons(FOUND, config, MACHINE, "d1") == ([], [])
    assert stale_reasons(FOUND, config, MACHINE, "d2") == ([], ["data d1 -> d2"])
    assert stale_reasons({}, config, MACHINE, "d2") == ([], [])
    config.cluster.workers = 8
    config.cluster.device = "cuda"
    config.model.size = "3b"
    refused, _ = stale_reasons(FOUND, config, MACHINE, "d1")
    assert refused == ["model nano -> 3b", "device cpu -> cuda", "world size 2 -> 8"]
    on_gpu = {**FOUND, "device": "cuda", "gpus": ["A100"], "model": "3b", "world_size": 8}
    assert stale_reasons(on_gpu, config, MACHINE, "d1")[0] == ["GPU A100 -> H200"]
    with pytest.raises(ConfigError, match=r"world size 2 -> 8(.|\n)*accept_stale=true"):
        refuse_stale(refused, accept=False)
    refuse_stale(refused, accept=True)
    assert promised(FOUND) == RATE
    assert promised({}) is None


def test_checkpoints_come_at_every_multiple_and_at_the_end(tmp_path: Path) -> None:
    plan = TrainingPlan(
        folder=tmp_path,
        config=config_with(),
        data_id="",
        num_steps=10,
        save_every=4,
        identity={},
    )
    assert [plan.steps_to_save(step) for step in (0, 3, 4, 8, 9)] == [4, 1, 4, 2, 1]
    assert replace(plan, save_every=0).steps_to_save(3) == 7
    assert plan.samples_per_step == 8


def test_books_take_back_steps_that_run_again_and_lose_a_torn_line(tmp_path: Path) -> None:
    path, clock = tmp_path / "train.jsonl", FakeClock()
    books, reader = Books(path, clock), BooksReader(path)
    books.write("started", 0)
    for step in range(6):
        books.write("step", step, loss=1.0 + step)
    assert [line["event"] for line in reader.news()] == ["started"] + ["step"] * 6
    assert reader.news() == []
    books.close()
    with path.open("a") as file:
        file.write('{"event": "step", "st')
    assert reader.news() == []
    again = Books(path, clock)
    again.write("started", 4)
    again.write("step", 4, loss=float("inf"))
    assert [line["step"] for line in reader.news()] == [4, 4]
    again.close()
    steps = steps_of(read_books(path))
    assert [(line["step"], line["loss"]) for line in steps] == [
        (0, 1.0),
        (1, 2.0),
        (2, 3.0),
        (3, 4.0),
        (4, "inf"),
    ]
    assert BooksReader(path, from_end=True).news() == []
    assert BooksReader(tmp_path / "none").news() == []


def test_an_action_error_that_is_no_number_is_a_word_in_json_and_prose(tmp_path: Path) -> None:
    nan, path = float("nan"), tmp_path / "train.jsonl"
    books = Books(path, FakeClock())
    error = {"scaled": nan, "by_group": {"arm": nan}, "num_samples": 4, "num_episodes": 1}
    books.write("action_error", 3, held_out=True, **error)
    books.close()
    assert "NaN" not in path.read_text()
    (line,) = read_books(path)
    assert (line["scaled"], line["by_group"]) == ("nan", {"arm": "nan"})
    assert "nan normalised; in the robot's units: arm nan" in action_error_words(line)


def _steps(rate: float, num_steps: int = 60) -> list[float]:
    rng = np.random.default_rng(0)
    noise = 1 + 0.003 * rng.standard_normal(num_steps)
    return [8 / rate * float(item) for item in noise]


@pytest.mark.parametrize(
    ("rate", "word"), [(100.0, "as promised"), (80.0, "stale"), (130.0, "faster")]
)
def test_the_canary_compares_with_the_promise(rate: float, word: str) -> None:
    step_s = _steps(rate)
    verdict = canary(step_s, [0.0] * 60, 8, RATE, 0.02)
    assert verdict is not None
    assert verdict.word == word
    assert verdict.measured is not None
    assert verdict.measured.value == pytest.approx(rate, rel=0.01)


def test_the_canary_names_data_and_waits_for_steady_steps() -> None:
    step_s = _steps(80.0)
    stale = canary(step_s, [item / 5 for item in step_s], 8, RATE, 0.02)
    assert stale is not None
    assert "20% of the time is spent waiting for data" in stale.text
    assert canary(step_s[:10], [0.0] * 10, 8, RATE, 0.02) is None
    falling = np.geomspace(0.3, 0.01, 400).tolist()
    assert canary(falling[:39], [0.0] * 39, 8, RATE, 0.02) is None
    never = canary(falling[:60], [0.0] * 60, 8, RATE, 0.02)
    assert never is not None
    assert (never.word, never.measured) == ("stale", None)
    assert "even the fastest of 60 steps" in never.text
    unsettled = canary(falling, [0.0] * 400, 8, RATE, 0.02)
    assert unsettled is not None
    assert unsettled.word == "undetermined"
