"""The command line: what it gives, and what it refuses with which words."""

from pathlib import Path

import pytest
import yaml

from lf_ray.compose import as_nested, compose, from_nested, read_found
from lf_ray.errors import ConfigError
from lf_ray.machine import Machine
from lf_ray.settings import (
    GraphScope,
    LrRule,
    MeasureLevel,
    SweepConfig,
    Switch,
    Trainer,
    knobs_of,
    with_knobs,
)

LAPTOP = Machine(num_cores=2, memory_bytes=2**34, shm_bytes=2**33)
BOX = Machine(num_cores=96, memory_bytes=2**40, shm_bytes=2**39, gpus=("NVIDIA H200",) * 8)


def _compose(*words: str, machine: Machine = LAPTOP) -> SweepConfig:
    return compose("overlap", words, machine)


def test_a_laptop_gets_the_small_model_and_two_workers() -> None:
    config = _compose()
    assert (config.model.size, config.num_workers, config.cluster.device) == ("nano", 2, "cpu")
    assert config.measure.level is MeasureLevel.smoke


def test_a_box_gets_the_public_model_on_all_gpus() -> None:
    config = _compose(machine=BOX)
    assert (config.model.size, config.num_workers, config.cluster.device) == ("3b", 8, "cuda")
    assert config.measure.level is MeasureLevel.standard
    assert config.batch.per_gpu == 64


def test_cpu_on_a_box_is_the_laptop() -> None:
    config = _compose("cluster=cpu", machine=BOX)
    assert (config.model.size, config.num_workers, config.cluster.device) == ("nano", 2, "cpu")


def test_a_simulated_cluster_is_of_the_public_model() -> None:
    config = _compose("cluster=sim_8xa100")
    assert (config.model.size, config.num_workers) == ("3b", 8)


def test_a_path_means_a_lerobot_data_set() -> None:
    config = _compose("data.path=/set with = and (brackets), too")
    assert config.data.source == "lerobot"
    assert config.data.paths == ["/set with = and (brackets), too"]
    assert _compose("data.path=[a,b]").data.paths == ["a", "b"]


def test_knobs_on_the_command_line_set_the_baseline() -> None:
    config = _compose(
        "graph.scope=step+optimizer", "pipeline.prefix=on", "batch.lr_rule=sqrt", "overlap.ratio=0"
    )
    assert config.graph.scope is GraphScope.step_optimizer
    assert config.pipeline.prefix is Switch.on
    assert config.batch.lr_rule is LrRule.sqrt
    assert knobs_of(config)["overlap.ratio"] == 0.0


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("modle=3b", "model.size"),
        ("model=4b", "options of model are 3b, nano"),
        ("overlap.bukket_size_mb=3", "Nearest: overlap.bucket_size_mb"),
        ("overlap.ratio=fast", "overlap.ratio"),
        ("overlap.ratio=1.5", "from 0 to 1"),
        ("overlap.bucket_size_mb=0", "at least 1/64 MiB"),
        ("graph.scope=all", "off, step, step\\+optimizer"),
        ("pipeline.prefix=maybe", "off, on"),
        ("batch.per_gpu=0", "at least 1"),
        ("batch.per_gpu=1.5", "batch.per_gpu"),
        ("sweep.trials=0", "at least 1"),
        ("cluster.workers=0", "at least 1"),
        ("memory.limit_gb=0", "above 0"),
        ("sweep.minutes=0", "above 0"),
        ("sweep.trials=-3", "at least 1"),
        ("measure.min_steps=5", "at least 20"),
        ("faster", "group=option"),
        ("+new.key=1", "group=option"),
        ("overlap.ratio=[1", "overlap.ratio|viable"),
    ],
)
def test_a_wrong_word_is_refused_with_what_would_be_right(word: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        _compose(word)
    assert str(caught.value).startswith("While ")


def test_a_configuration_survives_plain_values() -> None:
    config = _compose("graph.scope=step+optimizer", "trainer=loongforge")
    assert config.trainer is Trainer.loongforge
    assert from_nested(as_nested(config)) == config


def test_a_best_yaml_composes_back_and_can_be_overridden(tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    nested = {
        "overlap": {"bucket_size_mb": 8.0, "ratio": 0.4},
        "pipeline": {"prefix": "off"},
        "graph": {"scope": "step+optimizer"},
        "found": {"sweep": "overlap"},
    }
    path.write_text(yaml.safe_dump(nested))
    config = _compose("--config", str(path), "overlap.ratio=0.6")
    assert (config.overlap.bucket_size_mb, config.overlap.ratio) == (8.0, 0.6)
    assert config.graph.scope is GraphScope.step_optimizer
    assert read_found(str(path)) == {"sweep": "overlap"}


def test_workers_that_can_not_share_an_update_evenly_are_refused() -> None:
    assert _compose("update.sharded=on", "cluster.workers=4").update.sharded is Switch.on
    with pytest.raises(ConfigError, match=r"3 workers can't share every bucket evenly"):
        _compose("update.sharded=on", "cluster.workers=3")


@pytest.mark.parametrize("word", ["trainer=loongforge", "cluster=sim_2xh200"])
def test_a_memory_limit_that_nobody_would_keep_is_refused(word: str) -> None:
    assert _compose("memory.limit_gb=40").memory.limit_gb == 40
    with pytest.raises(ConfigError, match=r"memory\.limit_gb must be left out"):
        _compose("memory.limit_gb=40", word)


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "!!python/object/apply:os.system ['true']"])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "best.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"--config|mapping"):
        _compose("--config", str(path))


def test_a_key_of_another_version_in_a_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    path.write_text("overlap: {bukket: 3}\n")
    with pytest.raises(ConfigError, match="bukket"):
        _compose("--config", str(path))


def test_knobs_go_in_and_out() -> None:
    config = with_knobs(_compose(), {"graph.scope": "step", "batch.per_gpu": 16})
    assert knobs_of(config)["graph.scope"] == "step"
    assert config.batch.per_gpu == 16
    with pytest.raises(ConfigError, match="off, step"):
        with_knobs(config, {"graph.scope": "everything"})
    with pytest.raises(ConfigError, match=r"overlap\.bucket"):
        with_knobs(config, {"overlap.bucket": 1})


def test_a_group_on_the_command_line_wins_over_a_configuration_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    nested = as_nested(_compose("model=nano", "data.workers=3", "overlap.ratio=0.5"))
    nested["cluster"]["workers"] = 16
    path.write_text(yaml.safe_dump(nested))
    kept = _compose("--config", str(path), "cluster.workers=2")
    assert (kept.model.size, kept.data.workers, kept.overlap.ratio) == ("nano", 3, 0.5)
    chosen = _compose("--config", str(path), "model=3b", "data=synthetic", "cluster=cpu")
    assert (chosen.model.size, chosen.model.image_px, chosen.batch.per_gpu) == ("3b", 252, 64)
    assert (chosen.data.source, chosen.data.workers) == ("synthetic", 3)
    assert (chosen.num_workers, chosen.overlap.ratio) == (2, 0.5)
