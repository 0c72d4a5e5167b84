"""What `lf_ray.train` refuses before anything starts, with exit code 2 and the cure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lf_ray.clock import FakeClock
from lf_ray.machine import Machine
from lf_ray.train import main

MACHINE = Machine(num_cores=4, memory_bytes=2**36, shm_bytes=2**33, python=(3, 11))
Refused = Callable[..., str]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def refused(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs the command, which must refuse; returns what it said."""

    def run(*words: str) -> str:
        places = [
            f"output.dir={tmp_path}/out",
            f"tracking.uri=sqlite:///{tmp_path}/mlflow.db",
            f"data.cache_dir={cache}",
        ]
        assert main([*places, *words], MACHINE, FakeClock()) == 2
        assert not list(tmp_path.glob("out/train/*/train.jsonl"))
        return capsys.readouterr().err

    return run


def _best(folder: Path, **found: Any) -> str:
    path = folder / "best.yaml"
    known = {"kind": "best", "model": "nano", "world_size": 2, "device": "cpu", **found}
    path.write_text(yaml.safe_dump({"batch": {"per_gpu": 2}, "found": known}))
    return str(path)


def test_a_configuration_from_elsewhere(refused: Refused, tmp_path: Path) -> None:
    said = refused("--config", _best(tmp_path, world_size=8, device="cuda"))
    assert "device cuda -> cpu; world size 8 -> 2" in said
    assert "train.accept_stale=true" in said
    assert not list((tmp_path / "out" / "train").glob("*"))


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["train.max_steps=3", "train.max_samples=3"], "exclude each other"),
        (["resume=none"], "There are: none"),
        (["trainer=loongforge"], "its own step"),
        (["cluster=sim_2xh200"], "real workers"),
        (["tracking.uri=nowhere"], "sqlite:///mlflow.db"),
        (["cluster.workers=64"], "at most 4 workers share a core"),
        (["data.path=missing"], "missing"),
        (["model.weights=missing"], "a path that does not exist"),
        (["train.mx_steps=3"], "max_steps"),
        (["data.holdout_episodes=8"], "8 of 8"),
    ],
)
def test_settings_that_can_not_be_trained_with(
    refused: Refused, words: list[str], rule: str
) -> None:
    source = [] if "data.path" in words[0] else ["data=sample"]
    assert rule in refused(*source, *words)


def test_weights_of_another_kind(refused: Refused, tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    place.mkdir()
    (place / "checkpoint.json").write_text("{}")
    assert "resume=<id>" in refused(f"model.weights={place}")


def test_too_little_disk(refused: Refused, tmp_path: Path) -> None:
    said = refused("data=sample", "train.keep=100000000")
    assert "100000000 kept" in said
    assert "train.keep=1." in said
    assert not list((tmp_path / "out" / "train").glob("*"))


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "python -m lf_ray.train --config" in capsys.readouterr().out
