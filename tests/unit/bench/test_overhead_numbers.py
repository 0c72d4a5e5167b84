"""The numbers of the overhead benchmark, from given time stamps."""

import json

import pytest

from lf_ray.bench.overhead import (
    Side,
    Span,
    plain_limit_s,
    plain_spans,
    requests,
    summary,
    table,
)
from lf_ray.errors import LfRayError
from lf_ray.settings import SweepConfig


def side(name: str, gap_s: float, num_trials: int = 4) -> Side:
    spans = tuple(
        Span(first_step_s=index * (3 + gap_s), last_step_s=index * (3 + gap_s) + 3)
        for index in range(num_trials)
    )
    return Side(name=name, spans=spans, total_s=100.0, start_s=12.0)


def test_between_is_from_last_step_to_first_step() -> None:
    assert side("ours", 0.25).between_s == pytest.approx([0.25] * 3)


def test_the_ratio_is_plain_over_ours() -> None:
    numbers = summary(side("ours", 0.5), side("plain", 15.0), 30)
    assert numbers["ratio_between_trials"] == pytest.approx(30.0)
    assert numbers["between_s"] == pytest.approx(0.5)
    assert numbers["num_between"] == 3
    assert json.loads(json.dumps(numbers)) == numbers


def test_the_table_names_both_sides_and_the_start() -> None:
    lines = table(side("ours", 0.5), side("plain", 15.0)).splitlines()
    assert "0.500 s (0.500 to 0.500)" in lines[1]
    assert "12.0 s" in lines[2]


def test_trials_differ_in_a_hot_knob_and_run_the_same_steps() -> None:
    trials = requests(SweepConfig(), 7, 33)
    assert len({item.id for item in trials}) == 7
    assert {item.budget.max_steps for item in trials} == {33}
    assert len({item.knobs["overlap.bucket_size_mb"] for item in trials}) == 5


def test_a_plain_sweep_has_a_deadline_and_says_how_far_it_came() -> None:
    trials = requests(SweepConfig(), 3, 33)
    limits = trials[0].deadlines
    each_s = limits.start_s + limits.first_batch_s + limits.step_s + 20.0
    assert plain_limit_s(trials, 2.0) == pytest.approx(3 * each_s)
    done = {"first_step": 1.0, "last_step": 2.0}
    assert plain_spans([done] * 3, 3, 60.0) == [Span(first_step_s=1.0, last_step_s=2.0)] * 3
    with pytest.raises(LfRayError, match=r"within 60 s\. Got 2 that did"):
        plain_spans([done, done, {}], 3, 60.0)
