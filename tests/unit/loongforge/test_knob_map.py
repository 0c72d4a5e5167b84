"""Knobs as LoongForge's flags: what is sent is what was asked, and what it lacks is refused."""

import runpy
from pathlib import Path

import pytest

from lf_ray.errors import ConfigError
from lf_ray.loongforge.knob_map import TRAINABLE_ELEMENTS, offered, translated
from lf_ray.protocol import KnobValue
from lf_ray.search.ladder import BucketLadder
from lf_ray.search.space import BASELINE_ONLY
from lf_ray.settings import SweepConfig, knobs_of, with_knobs

ROOT = Path(__file__).resolve().parents[3]


def _translated(**knobs: KnobValue) -> tuple[list[str], dict[str, KnobValue]]:
    config = SweepConfig()
    config.cluster.workers = 2
    named = {name.replace("__", "."): value for name, value in knobs.items()}
    found = translated(with_knobs(config, named), 8, 40)
    return list(found.flags), dict(found.effective)


def _flag(flags: list[str], name: str) -> str:
    return flags[flags.index(name) + 1]


@pytest.mark.parametrize(("dtype", "counted"), [("fp32", "64"), ("bf16", "128")])
def test_a_bucket_after_the_graph_is_counted_at_four_bytes(dtype: str, counted: str) -> None:
    flags, effective = _translated(
        graph__scope="step",
        overlap__ratio=0.0,
        overlap__bucket_size_mb=64.0,
        overlap__comm_dtype=dtype,
    )
    assert _flag(flags, "--cuda-graph-grad-sync-bucket-mb") == counted
    assert _flag(flags, "--cuda-graph-grad-sync-dtype") == dtype
    assert "--no-cuda-graph-ddp-sync-in-graph" in flags
    assert "--ddp-bucket-cap-mb" not in flags
    assert effective["bucket_size_mb"] == 64.0


def test_during_backward_it_is_ddp_that_cuts_buckets() -> None:
    flags, effective = _translated(
        overlap__ratio=1.0, overlap__bucket_size_mb=25.2, overlap__comm_dtype="bf16"
    )
    assert _flag(flags, "--ddp-bucket-cap-mb") == "50"
    assert _flag(flags, "--ddp-comm-hook") == "bf16_compress_hook"
    assert _flag(flags, "--cuda-graph-impl") == "none"
    assert effective["bucket_size_mb"] == 25.0
    assert effective["gradient_bytes"] == 2 * TRAINABLE_ELEMENTS
    graphed, _ = _translated(overlap__ratio=1.0, graph__scope="step")
    assert "--cuda-graph-ddp-sync-in-graph" in graphed
    assert _flag(graphed, "--cuda-graph-scope") == "per_microbatch"


def test_batch_and_rate_follow_the_rule() -> None:
    flags, effective = _translated(batch__per_gpu=8, batch__accumulation=2, batch__lr_rule="linear")
    assert effective["global_batch"] == 32
    assert float(_flag(flags, "--lr-base")) == pytest.approx(4e-4)
    assert _flag(flags, "--per-device-batch-size") == "8"
    assert _flag(flags, "--gradient-accumulation-steps") == "2"


@pytest.mark.parametrize(
    ("knobs", "word"),
    [
        ({"graph__scope": "step+optimizer"}, "full_iteration"),
        ({"overlap__ratio": 0.8, "graph__scope": "step"}, "Use 0 or 1"),
        ({"overlap__ratio": 0.0}, "graph.scope=step"),
        ({"pipeline__prefix": "on"}, "prefix"),
        ({"memory__backend": "arena"}, "caching"),
    ],
)
def test_what_it_lacks_is_refused(knobs: dict[str, KnobValue], word: str) -> None:
    with pytest.raises(ConfigError, match=word.replace("+", r"\+")):
        _translated(**knobs)


def test_the_space_keeps_what_loongforge_has() -> None:
    ratios = [0.0, 0.4, 0.8, 1.0]
    literal = {
        "overlap.bucket_size_mb": BucketLadder(),
        "overlap.ratio": ratios,
        "graph.scope": ["off", "step", "step+optimizer"],
        "pipeline.prefix": ["off", "on"],
        "memory.block_sizes": ["1-2-4-8"],
        "data.cache": [False, True],
        "data.decode_threads": [1, 2],
    }
    kept = offered(literal, knobs_of(SweepConfig()))
    assert kept["overlap.ratio"] == [0.0, 1.0]
    assert kept["graph.scope"] == ["off", "step"]
    assert kept["pipeline.prefix"] == ["off"]
    assert not {"memory.block_sizes", "data.cache", "data.decode_threads"} & set(kept)
    assert kept["overlap.bucket_size_mb"][0] == 25.0
    assert kept["overlap.bucket_size_mb"][-1] == 4096.0
    eager = {name: literal[name] for name in ("overlap.bucket_size_mb", "overlap.ratio")}
    assert offered(eager, knobs_of(SweepConfig()))["overlap.ratio"] == [1.0]


@pytest.mark.parametrize("script", sorted((ROOT / "sweeps").glob("*.py")), ids=lambda p: p.stem)
def test_what_every_sweep_keeps_are_plain_values(script: Path) -> None:
    baseline = knobs_of(SweepConfig())
    kept = offered(runpy.run_path(str(script))["SPACE"], baseline)
    assert all(isinstance(value, int | float | str) for values in kept.values() for value in values)
    if script.stem == "batch_lr":
        assert baseline["batch.per_gpu"] in kept["batch.per_gpu"]
        assert len(kept["batch.per_gpu"]) > 2


def test_a_sweep_that_varies_nothing_stays_one() -> None:
    assert offered(BASELINE_ONLY, knobs_of(SweepConfig())) is BASELINE_ONLY


def test_a_space_without_anything_to_vary_is_refused() -> None:
    with pytest.raises(ConfigError, match="two values or more"):
        offered({"overlap.ratio": [0.0, 0.5, 1.0]}, knobs_of(SweepConfig()))
