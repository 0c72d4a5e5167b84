"""What a sweep leaves behind: files that agree with each other, and text that can't bite."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from lf_ray.analysis.answer import Answer, answer_of
from lf_ray.analysis.report.folder import write_result
from lf_ray.analysis.report.tables import changed_settings
from lf_ray.analysis.report.words import duration, headline, labels, sentences
from lf_ray.compose import compose
from lf_ray.errors import RecordError
from lf_ray.machine import Machine
from lf_ray.protocol import TrialOutcome
from lf_ray.record.history import SweepHistory
from lf_ray.settings import SweepConfig, knobs_of, plain

History = Callable[..., SweepHistory]
MACHINE = Machine(num_cores=2, memory_bytes=2**34, shm_bytes=2**30)


@pytest.fixture(scope="module")
def written(
    seeded_history: History, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Answer]:
    folder = tmp_path_factory.mktemp("result")
    tracked = {"experiment": "overlap", "parent_run": "abc"}
    return folder, write_result(folder, seeded_history("peaked"), mlflow=tracked)


def test_the_folder_is_complete(written: tuple[Path, Answer]) -> None:
    folder, _ = written
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {
        "best.yaml",
        "knee.yaml",
        "report.html",
        "report.md",
        "summary.json",
        *(
            f"figures/{name}.svg"
            for name in ("throughput", "slices", "step", "phases", "loss", "memory", "timeline")
        ),
    }


def test_summary_has_exactly_the_promised_keys(written: tuple[Path, Answer]) -> None:
    found = json.loads((written[0] / "summary.json").read_text())
    assert list(found) == [
        "sweep",
        "id",
        "baseline",
        "best",
        "knee",
        "gain",
        "outcomes",
        "seconds",
        "gpu_seconds",
        "mlflow",
    ]
    assert found["knee"]["overlap.ratio"] == {
        "value": 0.6,
        "lo": 0.6,
        "hi": 0.8,
        "status": "resolved",
    }
    assert set(found["gain"]) == {"ratio", "lo", "hi"}
    assert set(found["outcomes"]) == {"completed", "pruned", "infeasible", "failed", "invalid"}
    assert set(found["seconds"]) == {
        "measured",
        "warmup",
        "startup",
        "between",
        "searcher",
        "total",
    }
    assert found["mlflow"] == {"experiment": "overlap", "parent_run": "abc"}
    assert found["gpu_seconds"] == 0.0


@pytest.mark.parametrize("name", ["best", "knee"])
def test_the_yaml_files_compose_back(written: tuple[Path, Answer], name: str) -> None:
    folder, answer = written
    path = folder / f"{name}.yaml"
    config = compose("overlap", ["--config", str(path)], MACHINE)
    expected = answer.knee_knobs
    if name == "best":
        assert answer.winner is not None
        expected = answer.winner.knobs
    assert knobs_of(config) == expected
    found = yaml.safe_load(path.read_text())["found"]
    assert found["world_size"] == 2
    assert found["model"] == "nano"
    assert found["baseline_knobs"] == answer.history.header.baseline_knobs
    assert found["throughput_samples_per_s"]["num_visits"] >= 2


def test_an_override_changes_what_was_found(written: tuple[Path, Answer]) -> None:
    path = str(written[0] / "best.yaml")
    config = compose("overlap", ["--config", path, "overlap.ratio=0.1"], MACHINE)
    assert config.overlap.ratio == 0.1


class _Watch(HTMLParser):
    """Collects what a browser would fetch, and tags that are never closed."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data") and value:
                self.fetched.append(value)


def test_the_page_fetches_nothing_and_shows_everything(written: tuple[Path, Answer]) -> None:
    folder, answer = written
    text = (folder / "report.html").read_text()
    watch = _Watch()
    watch.feed(text)
    assert all(link.startswith(("#", "data:")) for link in watch.fetched)
    assert "script" not in watch.tags
    assert "@import" not in text
    assert watch.tags.count("svg") == 7
    for point in answer.gathered.points:
        assert f">{point.id}</td>" in text
    assert headline(answer) in text
    assert not re.search(r"url\((?!#)", text)


def test_each_figure_has_its_own_ids(written: tuple[Path, Answer]) -> None:
    text = (written[0] / "report.html").read_text()
    clips = re.findall(r'<clipPath id="([^"]+)"', text)
    assert len(clips) == len(set(clips))


def test_reasons_are_escaped(seeded_history: History, tmp_path: Path) -> None:
    history = seeded_history("peaked")
    evil = "<script>alert(1)</script> | `x`"
    records = tuple(
        replace(r, outcome=replace(r.outcome, reason=evil)) if r.request.id == "t005" else r
        for r in history.records
    )
    assert isinstance(records[0].outcome, TrialOutcome)
    write_result(tmp_path, replace(history, records=records))
    assert "<script>" not in (tmp_path / "report.html").read_text()
    lines = (tmp_path / "report.md").read_text().splitlines()
    (row,) = [line for line in lines if line.startswith("| t005")]
    assert r"\<script>" in row
    assert r"\| \`x\`" in row


@pytest.mark.parametrize("case", ["flat", "data_bound", "no_baseline", "interrupted"])
def test_every_kind_of_answer_can_be_written(
    seeded_history: History, tmp_path: Path, case: str
) -> None:
    answer = write_result(tmp_path, seeded_history(case))
    if case == "no_baseline":
        _check_that_nothing_is_left_empty((tmp_path / "report.html").read_text())
    found = json.loads((tmp_path / "summary.json").read_text())
    config = compose("overlap", ["--config", str(tmp_path / "best.yaml")], MACHINE)
    if case in ("flat", "data_bound"):
        assert found["best"]["trial"] == "t000"
        assert found["gain"]["ratio"] == 1.0
    if case != "interrupted":
        assert knobs_of(config) == answer.history.header.baseline_knobs
    if case == "no_baseline":
        assert found["best"] is None
        assert "rank 1 died" in headline(answer)


def test_headlines(seeded_history: History) -> None:
    said = {case: headline(answer_of(seeded_history(case))) for case in ("flat", "data_bound")}
    assert said["flat"].startswith("Keep the baseline")
    assert said["data_bound"].startswith("Data-bound")
    assert "faster than the baseline" in headline(answer_of(seeded_history("peaked")))


def test_the_last_words_say_what_the_answer_does_not_cover(seeded_history: History) -> None:
    answer = answer_of(seeded_history("peaked"))
    assert labels(answer) == ("Random weights, sample data: this tunes speed only.",)
    assert sentences(answer)[-1] == labels(answer)[-1]
    header = answer.history.header
    config = {**header.config, "cluster": {"kind": "sim_8xa100", "workers": 8}}
    simulated = replace(answer.history, header=replace(header, config=config))
    answer = answer_of(simulated)
    assert "Simulated cluster" in labels(answer)[0]
    assert answer.gpu_seconds == pytest.approx(8 * answer.seconds.total)


def test_settings_that_differ_become_words_that_compose() -> None:
    config = plain(SweepConfig())
    config["overlap"]["ratio"] = 0.5
    config["data"]["path"] = "/data/my set"
    words = changed_settings(config)
    assert words == ["data.path='/data/my set'", "overlap.ratio=0.5"]
    for path in (["/data/a", "/data/my set"], "/data/it's"):
        config["data"]["path"] = path
        typed = shlex.split(" ".join(changed_settings(config)))
        assert compose("overlap", typed, MACHINE).data.path == path


def test_a_folder_that_cannot_be_written_is_said(seeded_history: History, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="must be writable"):
        write_result(tmp_path / "file", seeded_history("no_baseline"))


@pytest.mark.parametrize(
    ("seconds", "said"), [(12.3, "12 s"), (600.0, "10 min"), (9000.0, "2.5 h")]
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_the_markdown_has_the_page_s_headings_and_figures_in_its_order(
    written: tuple[Path, Answer],
) -> None:
    page = (written[0] / "report.html").read_text()
    text = (written[0] / "report.md").read_text()
    shown = re.findall(r'<h2>([^<]+)</h2>|<figure id="(\w+)"', page)
    told = re.findall(r"^## (.+)$|^!\[\w+\]\(figures/(\w+)\.svg\)$", text, re.MULTILINE)
    told.remove(("Slice points", ""))  # folded, on the page
    assert told == shown


def _check_that_nothing_is_left_empty(page: str) -> None:
    assert "No answer: the baseline failed: rank 1 died" in page
    assert re.findall(r"<h2>([^<]+)</h2>", page) == [
        "Trials",
        "Ledger",
        "Use it, reproduce it",
        "Ran on and with",
    ]
    assert "best.yaml" not in page
