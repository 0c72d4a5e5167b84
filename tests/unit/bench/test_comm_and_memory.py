"""The all-reduce and memory benchmarks: their arithmetic, their refusals, one run on a CPU."""

import json
import math
from collections.abc import Callable

import pytest
import torch

from lf_ray.bench.arguments import json_line
from lf_ray.bench.comm import CommBench, summary
from lf_ray.bench.comm import main as comm_main
from lf_ray.bench.data import main as data_main
from lf_ray.bench.memory import GIB, MemoryBench, backend_row, table
from lf_ray.bench.memory import main as memory_main
from lf_ray.bench.overhead import main as overhead_main
from lf_ray.bench.search import main as search_main
from lf_ray.bench.step import main as step_main
from lf_ray.testing.ranks import RankPlace


def test_bus_bandwidth_is_what_a_link_carries_in_a_ring() -> None:
    bench = CommBench((1.0, 64.0), "bf16", 3)
    fast, slow = [[0.001] * 3, [0.010] * 3], [[0.002] * 3, [0.008] * 3]
    small, large = summary([fast, slow, fast, slow], bench, "ring")
    assert small["median_ms"] == 2.0  # the slowest rank counts
    assert small["bus_gb_per_s"] == pytest.approx(2**20 * 1.5 / 0.002 / 1e9)
    assert large["median_ms"] == 10.0
    assert (large["algo"], large["num_ranks"], large["mib"]) == ("ring", 4, 64.0)


@pytest.mark.parametrize("words", [["--algos", "star"], ["--gpus", "1"]])
def test_comm_refuses_what_it_cannot_measure(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert comm_main(words) == 2
    assert words[1] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("main", "words", "said"),
    [
        (comm_main, ["--mib", "4,large"], "takes numbers, but got 'large'"),
        (comm_main, ["--repeats", "0"], "must be 1 or more, but got 0"),
        (memory_main, ["--batches", "8,x"], "takes whole numbers, but got 'x'"),
        (memory_main, ["--mode", "magic"], "'magic'"),
        (step_main, ["--steps", "0"], "must be 1 or more, but got 0"),
        (step_main, ["--ratio", "0,2"], "must be from 0 to 1, but got 2"),
        (step_main, ["--comm", "fp8"], "must be of fp32, bf16, but got 'fp8'"),
        (search_main, ["--seeds", "none"], "takes whole numbers"),
        (overhead_main, ["--trials", "1"], "must be 2 or more"),
        (data_main, ["somewhere", "--workers", "-1"], "must be 0 or more"),
    ],
)
def test_a_wrong_word_is_refused_with_the_rule(
    main: Callable[[list[str]], int],
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_table_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert search_main(["--tables", "sim_9xh900", "--procs", "1"]) == 2
    assert "sim_9xh900" in capsys.readouterr().err


def test_the_last_line_is_json_whatever_was_measured() -> None:
    text = json_line({"loss": math.nan, "rows": [{"hi": math.inf, "n": 3}]})
    assert json.loads(text) == {"loss": "nan", "rows": [{"hi": "inf", "n": 3}]}


def test_a_backend_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert memory_main(["--backends", "caching,slab"]) == 2
    assert "slab" in capsys.readouterr().err


def test_the_memory_table_stands_side_by_side() -> None:
    memory = {"peak": 31.0 * GIB, "peak_reserved": 33.0 * GIB, "peak_blocks": 34.0 * GIB}
    row = {
        "backend": "arena:analysed",
        "ladder": "0.25-4.875",
        "step_ms": 66.6,
        "fastest_ms": 66.0,
        "slowest_ms": 70.1,
        "memory_bytes": {**memory, "fallback_frac": 0.04, "predicted_fallback_frac": 0.03},
        "gap_bytes": 2.5 * GIB,
        "largest_batch": 64,
    }
    text = table([row, {"backend": "expandable", "error": "no compiler"}])
    assert [part for part in text.splitlines()[1].split() if part] == [
        *("arena:analysed", "66.60", "[66.00,", "70.10]", "2.50", "31.00", "34.00"),
        *("4.0%", "3.0%", "64", "0.25-4.875"),
    ]
    assert "no compiler" in text


def test_an_analysed_arena_is_asked_for_by_name() -> None:
    bench = MemoryBench("nano", 56, 2, 4, (4,), 20.0, "graph")
    config = bench.config("arena:analysed")
    assert (config.memory.backend.value, config.memory.block_sizes) == ("arena", "analysed")
    assert bench.config("arena:1-2").memory.limit_gb == 20.0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the whole command is run instead")
def test_a_row_is_measured_on_a_cpu_and_json_both_ways() -> None:
    bench = MemoryBench("nano", 56, 1, 4, (2,), None, "graph")
    row = backend_row(RankPlace(0, 1, None, None), bench, "caching")
    assert json.loads(json.dumps(row)) == row
    assert row["ladder"] == "none"
    assert row["step_ms"] > 0
    assert row["memory_bytes"]["peak"] > 0
