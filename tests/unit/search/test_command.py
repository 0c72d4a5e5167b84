"""The sweep command with seeded objectives in the workers' place: refusals, answer, resume."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lf_ray.clock import FakeClock
from lf_ray.compose import compose
from lf_ray.errors import DataError
from lf_ray.launch import Groups, Launch
from lf_ray.machine import Machine
from lf_ray.record.journal import Journal
from lf_ray.search import command
from lf_ray.search.command import EXIT_REFUSED, Opened, conductor_of, run_sweep
from lf_ray.search.conductor import run_in_process
from lf_ray.search.ladder import BucketLadder
from lf_ray.search.space import Literal, space_from_literal
from lf_ray.search.stages.stage import Stages, whole_space
from lf_ray.search.start.prior import Prior
from lf_ray.settings import SweepConfig, knobs_of
from lf_ray.testing.objectives import KneeObjective

LAPTOP = Machine(num_cores=2, memory_bytes=2**34, shm_bytes=2**33)
SPACE: Literal = {"overlap.bucket_size_mb": BucketLadder(), "overlap.ratio": [0.0, 0.5, 1.0]}


class _NeverOpened:
    """Stands for data and groups that must not be reached."""

    def __init__(self, data_error: str = "") -> None:
        self.opened = False
        self._data_error = data_error

    def prepare(self, config: SweepConfig) -> str:
        if self._data_error:
            raise DataError(self._data_error)
        return "data"

    @contextmanager
    def open(self, config: SweepConfig, folder: Path) -> Iterator[Groups]:
        self.opened = True
        yield Groups(trainable=None)

    @property
    def launch(self) -> Launch:
        return Launch(prepare_data=self.prepare, open_groups=self.open)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["overlap.ratioo=1"], "overlap.ratio"),
        (["model=5b"], "3b, nano"),
        (["overlap.ratio=7"], "from 0 to 1"),
        (["cluster.workers=1"], "at least two workers"),
        (["cluster.workers=64"], "cluster.workers=8 or less"),
        (["tracking.uri=carrier-pigeon://loft"], "tracking.uri"),
        (["tracking.uri=./mlruns"], "sqlite:///"),
        (["output.dir=/proc/nowhere"], "output.dir"),
        (["resume=20000101-000000"], "resume"),
        (["--config", "absent.yaml"], "absent.yaml"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_starts(
    words: list[str],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    parts = _NeverOpened()
    assert run_sweep("overlap", SPACE, words, parts.launch, machine=LAPTOP) == EXIT_REFUSED
    said = capsys.readouterr().err
    assert says in said
    assert said.startswith("While ")
    assert "Got" in said
    assert not parts.opened
    assert not list(tmp_path.rglob("journal.jsonl"))


def test_data_that_cannot_be_trained_on_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parts = _NeverOpened("While reading x: no. Got y. Do z.")
    assert run_sweep("overlap", SPACE, [], parts.launch, machine=LAPTOP) == EXIT_REFUSED
    assert "Do z." in capsys.readouterr().err
    assert not parts.opened


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_sweep("overlap", SPACE, ["--help"], _NeverOpened().launch, about="About it.") == 0
    said = capsys.readouterr().out
    assert "About it." in said
    assert "example:" in said


def test_a_changed_space_is_refused_on_resume_with_a_diff(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parts = _NeverOpened()
    folder = tmp_path / "outputs" / "overlap" / "20260101-000000"
    folder.mkdir(parents=True)
    _write_header(folder, {"overlap.ratio": [0.0, 1.0]})
    words = ["resume=20260101-000000"]
    assert run_sweep("overlap", SPACE, words, parts.launch, machine=LAPTOP) == EXIT_REFUSED
    said = capsys.readouterr().err
    assert "overlap.ratio choices [0.0, 1.0] -> [0.0, 0.5, 1.0]" in said
    assert "overlap.bucket_size_mb added" in said
    assert "new_lineage" in said


def _write_header(folder: Path, space: dict[str, list[float]]) -> None:
    header = {
        "event": "sweep",
        "v": 1,
        "wall_s": 1.0,
        "id": folder.name,
        "name": "overlap",
        "config": {},
        "space": space,
        "space_hash": "x",
        "baseline_knobs": {"overlap.ratio": 1.0},
        "machine": {"label": LAPTOP.label},
        "versions": {},
        "data_id": "data",
        "seed": 0,
    }
    (folder / "journal.jsonl").write_text(json.dumps(header) + "\n")


def test_each_stage_tries_its_own_part_of_what_is_suggested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prior = Prior({"graph.scope": "step", "overlap.ratio": 0.3}, "suggested by a test")
    monkeypatch.setattr(command, "prior_of", lambda *_: prior)
    stages: Stages = {
        "graph": {"graph.scope": ["off", "step", "step+optimizer"]},
        "overlap": {"overlap.ratio": [0.0, 0.3, 0.5, 1.0]},
    }
    config = compose("joint", ["cluster=sim_2xh200", "sweep.trials=6"], LAPTOP)
    clock = FakeClock()
    with Journal(tmp_path / "journal.jsonl", clock) as journal:
        opened = Opened(
            config=config,
            space=space_from_literal(whole_space(stages), knobs_of(config)),
            folder=tmp_path,
            journal=journal,
            header={"id": "x", "name": "joint", "machine": {"gpus": []}},
            events=(),
            clock=clock,
            searches=stages,
        )
        run_in_process(conductor_of(opened, (), 1), KneeObjective(clock=clock))
    events = [json.loads(line) for line in journal.path.read_text().splitlines()]
    rounds = [event for event in events if event["event"] == "round"]
    first = [event["suggestions"] for event in rounds if event["source"] == "enqueued"]
    assert [point["graph.scope"] for point in first[0]] == ["step"]
    assert 0.3 in [point["overlap.ratio"] for point in first[1]]
    assert any(event.get("text") == "suggested by a test" for event in events)
