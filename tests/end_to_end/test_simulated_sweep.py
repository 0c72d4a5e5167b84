"""A sweep on a simulated cluster: the whole command in seconds, labelled as a prediction."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lf_ray.launch import Groups, Launch
from lf_ray.machine import Machine
from lf_ray.search.command import run_sweep
from lf_ray.settings import SweepConfig

LAPTOP = Machine(num_cores=2, memory_bytes=2**34, shm_bytes=2**33)


def _never_prepared(config: SweepConfig) -> str:
    raise AssertionError("a simulated sweep reads no data")


@contextmanager
def _never_opened(config: SweepConfig, folder: Path) -> Iterator[Groups]:
    raise AssertionError("a simulated sweep starts no workers")
    yield


@pytest.mark.slow
def test_it_needs_no_workers_and_says_that_it_is_a_prediction(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    mlflow_database: Callable[[Path], str],
) -> None:
    monkeypatch.chdir(tmp_path)
    mlflow_database(tmp_path / "mlflow.db")
    launch = Launch(prepare_data=_never_prepared, open_groups=_never_opened)
    words = ["cluster=sim_2xh200", "graph.scope=step+optimizer", "sweep.trials=3"]
    space = {"overlap.ratio": [0.0, 0.5, 1.0]}
    assert run_sweep("overlap", space, words, launch, machine=LAPTOP) == 0
    said = capsys.readouterr().out
    assert "none was measured" in said
    (result,) = (tmp_path / "outputs" / "overlap").iterdir()
    summary = json.loads((result / "summary.json").read_text())
    assert summary["outcomes"]["completed"] == 3
    assert summary["gpu_seconds"] > 0
    assert "sim_2xh200" in (result / "best.yaml").read_text()
