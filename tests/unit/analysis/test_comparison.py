"""Tables over sweeps, and the configuration that a person chooses."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from lf_ray.analysis import comparison
from lf_ray.analysis.answer import answer_of
from lf_ray.errors import ConfigError, RecordError
from lf_ray.record.history import SweepHistory

History = Callable[..., SweepHistory]
JOURNALS = Path(__file__).resolve().parents[2] / "data" / "journals"


def test_sweeps_side_by_side(seeded_history: History) -> None:
    answers = [answer_of(seeded_history(case)) for case in ("peaked", "flat", "no_baseline")]
    rows = comparison.sweep_rows(answers)
    assert [row["verdict"] for row in rows] == ["improved", "keep the baseline", "no baseline"]
    assert rows[0]["gain lo"] < rows[0]["gain"] < rows[0]["gain hi"]
    assert rows[2]["best samples/s"] is None


def test_recorded_journals_load_oldest_first_and_their_knees_stand_below_each_other() -> None:
    answers = comparison.load_journals(JOURNALS.glob("*/journal.jsonl"))
    dates = [answer.history.header.wall_s for answer in answers]
    assert dates == sorted(dates)
    rows = comparison.knob_rows_of_all(answers)
    knobs = [row["knob"] for row in rows]
    assert knobs == sorted(knobs)
    assert knobs.count("overlap.ratio") == len(answers) == 2
    assert {row["same place"] for row in rows} == {True}
    with pytest.raises(RecordError, match="at least one journal"):
        comparison.load_journals([])


def test_a_tracking_uri_that_mlflow_cannot_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tracking\.uri"):
        comparison.load_mlflow("mlruns", tmp_path)


def test_a_database_that_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the database must be there"):
        comparison.load_mlflow(f"sqlite:///{tmp_path}/mistyped.db", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_knobs_points_and_frontier(seeded_history: History) -> None:
    answer = answer_of(seeded_history("peaked"))
    bucket, ratio = comparison.knob_rows(answer)
    assert (bucket["knee"], ratio["knee"]) == (2.0, 0.6)
    assert "going on to 1 MiB buys" in bucket["economics"]
    rates = [row["samples/s"] for row in comparison.point_rows(answer)]
    assert rates == sorted(rates, reverse=True)
    frontier = {row["trial"] for row in comparison.frontier_rows(answer)}
    assert "t004" in frontier
    assert "t000" not in frontier


def test_what_drives_throughput(seeded_history: History) -> None:
    rows = {row["knob"]: row for row in comparison.driver_rows(answer_of(seeded_history("peaked")))}
    bucket, ratio = rows["overlap.bucket_size_mb"], rows["overlap.ratio"]
    assert bucket["swing"] == pytest.approx(0.18, abs=0.03)
    assert ratio["swing"] == pytest.approx(0.22, abs=0.03)
    assert 0.05 < bucket["share"] < 1
    assert 0.05 < ratio["share"] < 1
    flat = comparison.driver_rows(answer_of(seeded_history("flat")))
    assert all(row["swing"] < 0.02 for row in flat)


def test_a_choice_is_a_gated_point(seeded_history: History, tmp_path: Path) -> None:
    answer = answer_of(seeded_history("peaked"))
    path = comparison.write_choice(answer, "t001", tmp_path / "new" / "mine.yaml")
    chosen = yaml.safe_load(path.read_text())
    assert chosen["overlap"]["bucket_size_mb"] == 32.0
    assert chosen["found"]["kind"] == "mine"
    with pytest.raises(RecordError, match="Choose one of t000"):
        comparison.write_choice(answer, "t005", tmp_path / "bad.yaml")
