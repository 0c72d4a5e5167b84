"""Fixtures and rules that every test shares."""

import os
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"

STARTS_RAY = frozenset(
    {
        "test_bench_live.py",
        "test_data_command.py",
        "test_eight_workers.py",
        "test_faults_data.py",
        "test_faults_driver.py",
        "test_faults_resume.py",
        "test_faults_sweep.py",
        "test_faults_workers.py",
        "test_group_native.py",
        "test_group_nodes.py",
        "test_group_ray.py",
        "test_loongforge_command.py",
        "test_overlap_command.py",
        "test_peers_as_tune_calls_them.py",
        "test_search_tune.py",
        "test_train_run.py",
    }
)
"""One process has them all: two Rays that start at once on two cores are late for each other."""
_ENOUGH_FOR_THE_REST = 3


def _beside(name: str) -> Path:
    path = SHARED / name
    if not path.is_dir():
        pytest.skip(f"needs {name} in ../shared/data beside the project")
    return path


@pytest.fixture
def gr1_path() -> Path:
    """The real GR00T data set, read in place."""
    return _beside("gr1_pick_place")


@pytest.fixture
def eagle_tokenizer_path() -> Path:
    """The tokenizer of the public checkpoint, read in place."""
    return _beside("eagle_tokenizer")


@pytest.fixture(scope="session")
def mlflow_database(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], str]:
    """Puts MLflow's empty tables at a path and returns its URI.

    Making them takes seconds, copying nothing. That a sweep makes its own is for those tests to
    show that begin without.
    """
    own = tmp_path_factory.getbasetemp()
    tables = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "mlflow-tables.db"

    def put(path: Path) -> str:
        if not tables.exists():
            _make_mlflow_tables(own / "made.db", tables)
        with closing(sqlite3.connect(tables)) as source, closing(sqlite3.connect(path)) as copy:
            source.backup(copy)
        return f"sqlite:///{path}"

    return put


def _make_mlflow_tables(made: Path, target: Path) -> None:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    MlflowClient(tracking_uri=f"sqlite:///{made}").search_experiments()
    beside = target.with_name(f"{target.name}.{os.getpid()}")
    with closing(sqlite3.connect(made)) as source, closing(sqlite3.connect(beside)) as copy:
        source.backup(copy)
    beside.replace(target)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Returns who hands out the tests: a file stays in one process, and so do some that share."""
    from xdist.scheduler import LoadFileScheduling

    scheduler = LoadFileScheduling(config, log)
    # Where there are others for the rest, one process has all that starts several of its own: ranks
    # wait spinning, and a sweep's workers starve beside them.
    apart = (config.getoption("numprocesses") or 0) < _ENOUGH_FOR_THE_REST
    scheduler._split_scope = partial(_kept_together, apart=apart)
    return scheduler


def _kept_together(test: str, apart: bool) -> str:
    file = Path(test.split("::", 1)[0])
    if file.name in STARTS_RAY:
        return "ray"
    # Their pools of two, four and eight ranks are a process's own.
    if file.parent.name == "ranks":
        return "ranks" if apart else "ray"
    return str(file)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by folder, so that no file has to remember to."""
    for item in items:
        folder = Path(str(item.fspath)).relative_to(ROOT / "tests").parts[0]
        if folder == "gpu":
            item.add_marker(pytest.mark.gpu)


@pytest.fixture
def loongforge_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command line of a sweep whose trainer is the stand-in for LoongForge's program."""
    checkout, data = tmp_path / "checkout", tmp_path / "data"
    program = checkout / "loongforge" / "embodied" / "train.py"
    program.parent.mkdir(parents=True)
    program.write_text((ROOT / "tests" / "loongforge_stand_in" / "train.py").read_text())
    for name in ("transformers", "diffusers", "torchdata", "flash_attn", "lerobot"):
        (checkout / name).mkdir()
        (checkout / name / "__init__.py").touch()
    (checkout / "lerobot" / "datasets").mkdir()
    (checkout / "lerobot" / "datasets" / "lerobot_dataset.py").write_text(
        "class MultiLeRobotDataset: ..."
    )
    (data / "meta").mkdir(parents=True)
    (data / "meta" / "info.json").write_text('{"codebase_version": "v3.0"}')
    eagle = tmp_path / "eagle-processor"
    eagle.mkdir()
    (eagle / "config.json").write_text("{}")
    monkeypatch.delenv("EAGLE_LOCAL_PATH", raising=False)
    return [
        "trainer=loongforge",
        "model=3b",
        "cluster=cpu",
        "measure=smoke",
        "batch.per_gpu=4",
        f"loongforge.path={checkout}",
        f"loongforge.python={sys.executable}",
        f"model.tokenizer={eagle}",
        f"data.path={data}",
    ]
