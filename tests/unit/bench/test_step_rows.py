"""The step benchmark's arithmetic: the slowest rank counts, and a failure is a row."""

from dataclasses import replace

import pytest

from lf_ray.bench.step import main
from lf_ray.bench.steps.kernel_classes import OTHER, by_class, kernel_class
from lf_ray.bench.steps.native import Case, StepBench, nccl_environment
from lf_ray.bench.steps.readings import bought, gaps, scaling, words
from lf_ray.bench.steps.rows import RankRow, summary, table


def reading(step_s: float, loss: float = 1.0) -> RankRow:
    times_s = [step_s * (1 + 0.001 * (index % 3)) for index in range(30)]
    return RankRow(16, "graph", "fp32", times_s, loss, 2.0**30, {"start": 1.5}, {"update": 0.01})


def test_the_slowest_rank_and_all_samples_count() -> None:
    row = summary([reading(0.1), reading(0.2)], {"matrix": 0.05})
    assert row["samples_per_s"]["value"] == pytest.approx(2 * 16 / 0.2002, rel=1e-3)
    assert row["floor_share"] == pytest.approx(0.05 / 0.2002, rel=1e-3)
    assert row["phases_ms"] == {"update": 10.0}


def test_a_rank_without_memory_makes_the_row_an_error() -> None:
    row = summary([reading(0.1), RankRow(16, "graph", "fp32", [], error="out of memory")], {})
    head = {"batch": 16, "mode": "graph", "comm": "fp32", "num_ranks": 2}
    assert row == {**head, "error": "out of memory"}
    assert "out of memory" in table([row])


def test_the_table_has_a_line_a_row_with_its_interval() -> None:
    text = table([summary([reading(0.1)], {})])
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
        bucket_sizes_mb=(8.0,),
        ratios=(0.5, 1.0),
        rounds=2,
    )
    case = Case(4, "pipelined", "bf16", 0.5, 8.0, "whole")
    assert bench.label(case) == "pipelined r0.5"
    sizes, updates = (25.0, 2048.0), ("whole", "sharded")
    two = replace(bench, num_ranks=2, bucket_sizes_mb=sizes, updates=updates)
    large = replace(case, mode="graph", bucket_size_mb=2048.0, update="sharded")
    assert two.label(large) == "graph r0.5 b2048 sharded"
    assert len(list(two.cases(("pipelined",)))) == 16
    # An eager step and a lone rank have no update to share.
    assert len(list(two.cases(("eager",)))) == 8
    assert len(list(replace(two, num_ranks=1).cases(("pipelined",)))) == 8
    assert replace(bench, algo="tree", ratios=(1.0,)).label(case) == "pipelined tree"
    assert nccl_environment("tree") == {"NCCL_ALGO": "Tree"}
    assert nccl_environment("default") == {}
    assert len(list(bench.cases(("pipelined",)))) == 4
    assert bench.request(large).knobs["update.sharded"] == "on"
    knobs = bench.request(case).knobs
    assert knobs["update.sharded"] == "off"
    assert knobs["pipeline.prefix"] == "on"
    assert knobs["graph.scope"] == "step+optimizer"
    assert knobs["overlap.comm_dtype"] == "bf16"
    assert knobs["batch.per_gpu"] == 4


def row(mode: str, rate: float, **changes: object) -> dict[str, object]:
    return {
        "image_px": 224,
        "num_ranks": 1,
        "batch": 16,
        "mode": mode,
        "comm": "fp32",
        "samples_per_s": {"value": rate, "lo": rate * 0.99, "hi": rate * 1.01},
        **changes,
    }


def test_each_mode_is_set_against_the_one_before_it_at_its_own_wire() -> None:
    rows = [row("ddp", 50.0), row("graph", 100.0), row("graph", 102.0), row("fused", 121.2)]
    rows += [row("graph", 110.0, comm="bf16")]
    items = {(item["comm"], item["mode"]): item for item in bought(rows)}
    assert items["fp32", "graph"]["over_previous"] == pytest.approx(101 / 50)
    assert items["fp32", "fused"]["over_previous"] == pytest.approx(1.2)
    assert items["fp32", "fused"]["over_first"] == pytest.approx(121.2 / 50)
    assert items["bf16", "graph"]["over_previous"] == pytest.approx(2.2)
    for item in items.values():
        assert item["lo"] < item["over_previous"] < item["hi"]


def test_scaling_is_a_share_of_the_fewest_ranks() -> None:
    rows = [row("graph", 100.0 * n * (1 - 0.01 * (n - 1)), num_ranks=n) for n in (4, 1, 2)]
    efficiencies = [(item["num_ranks"], item["efficiency"]) for item in scaling(rows)]
    assert efficiencies == [(2, pytest.approx(0.99)), (4, pytest.approx(0.97))]
    assert scaling([row("graph", 1.0)]) == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "communication"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "matrix"),
        ("nvjet_hsh_192x192_64x4_1x2_h_bz_TNT", "matrix"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop", "attention"),
        ("adamw", "update"),
        ("_add_norm", "prefix"),
        ("triton_poi_fused_add_gelu_3", "compiled"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        ("void at::native::vectorized_elementwise_kernel<4, ...>", OTHER),
    ],
)
def test_kernels_have_a_class_by_name(name: str, kind: str) -> None:
    assert kernel_class(name) == kind


def test_classes_add_up_and_their_gap_is_what_no_floor_explains() -> None:
    classes_s = by_class([("gemm", 3000.0), ("gemm", 1000.0), ("adamw", 2000.0)], num_steps=2)
    assert classes_s == {"matrix": pytest.approx(2e-3), "update": pytest.approx(1e-3)}
    profiled = {
        "classes_ms": {"matrix": 2.0, "other": 1.0},
        "floors_ms": {"matrix": 1.5},
        "launches": 12.0,
    }
    assert [item["gap_ms"] for item in gaps(profiled)] == [0.5, 1.0]
    text = "\n".join(words([row("graph", 100.0, **profiled)]))
    assert "12 launches a step" in text
    assert "floor 1.5" in text
