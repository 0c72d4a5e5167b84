"""The step benchmark's arithmetic: the slowest rank counts, and a failure is a row."""

import pytest

from lf_ray.bench.step import StepBench, main
from lf_ray.bench.steps.rows import RankRow, summary, table


def reading(step_s: float, loss: float = 1.0) -> RankRow:
    times_s = [step_s * (1 + 0.001 * (index % 3)) for index in range(30)]
    return RankRow(16, "graph", "fp32", times_s, loss, 2.0**30, 1.5, {"update": 0.01})


def test_the_slowest_rank_and_all_samples_count() -> None:
    row = summary([reading(0.1), reading(0.2)], floor_s=0.05)
    assert row["samples_per_s"]["value"] == pytest.approx(2 * 16 / 0.2002, rel=1e-3)
    assert row["floor_share"] == pytest.approx(0.05 / 0.2002, rel=1e-3)
    assert row["phases_ms"] == {"update": 10.0}


def test_a_rank_without_memory_makes_the_row_an_error() -> None:
    row = summary([reading(0.1), RankRow(16, "graph", "fp32", [], error="out of memory")], 0.0)
    assert row == {"batch": 16, "mode": "graph", "comm": "fp32", "error": "out of memory"}
    assert "out of memory" in table([row])


def test_the_table_has_a_line_a_row_with_its_interval() -> None:
    text = table([summary([reading(0.1)], 0.0)])
    assert len(text.splitlines()) == 2
    assert "159." in text
    assert "[" in text


def test_a_mode_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--modes", "graph,magic"]) == 2
    assert "magic" in capsys.readouterr().err


def test_requests_name_every_knob_of_their_mode() -> None:
    bench = StepBench(
        size="nano",
        image_px=56,
        batches=(4,),
        modes=("pipelined",),
        num_steps=5,
        num_ranks=1,
        comm_dtypes=("bf16",),
        bucket_size_mb=8.0,
        ratio=0.5,
    )
    knobs = bench.request(4, "pipelined", "bf16").knobs
    assert knobs["pipeline.prefix"] == "on"
    assert knobs["graph.scope"] == "step+optimizer"
    assert knobs["overlap.comm_dtype"] == "bf16"
    assert knobs["batch.per_gpu"] == 4
