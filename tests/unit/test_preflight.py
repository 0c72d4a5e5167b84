"""What is refused before a worker starts, and with which cure."""

from dataclasses import replace
from pathlib import Path

import pytest

from lf_ray.compose import compose
from lf_ray.errors import ConfigError, MachineError
from lf_ray.machine import Machine
from lf_ray.search.start.preflight import check_folder, check_machine, describe_versions

LAPTOP = Machine(num_cores=2, memory_bytes=2**34, shm_bytes=2**33)
BOX = Machine(num_cores=96, memory_bytes=2**40, shm_bytes=2**39, gpus=("NVIDIA H200",) * 8)


def test_a_laptop_and_a_box_pass() -> None:
    check_machine(compose("overlap", [], LAPTOP), LAPTOP)
    check_machine(compose("overlap", [], BOX), BOX, lambda: "")


def test_eight_gloo_ranks_can_be_tried_out_on_a_laptop() -> None:
    check_machine(compose("overlap", ["cluster.workers=8"], LAPTOP), LAPTOP)


def test_the_eight_gpus_of_a_box_are_a_group_of_their_own() -> None:
    config = compose("overlap", ["cluster=one_node_8gpu", "data=synthetic"], BOX)
    assert (config.num_workers, config.cluster.device, config.model.size) == (8, "cuda", "3b")
    check_machine(config, BOX, lambda: "")
    with pytest.raises(MachineError, match=r"cluster\.workers=1 or less"):
        check_machine(config, replace(BOX, gpus=BOX.gpus[:1]), lambda: "")


def test_one_worker_has_nothing_to_overlap() -> None:
    config = compose("overlap", ["cluster.workers=1"], LAPTOP)
    with pytest.raises(ConfigError, match=r"baseline\.py"):
        check_machine(config, LAPTOP)
    check_machine(compose("memory", ["cluster.workers=1"], LAPTOP), LAPTOP)


@pytest.mark.parametrize(
    ("machine", "words", "says"),
    [
        (LAPTOP, ["cluster.workers=9"], "cluster.workers=8 or less"),
        (BOX, ["cluster.workers=9"], "cluster.workers=8 or less"),
        (replace(LAPTOP, memory_bytes=10**9), [], "GB of memory"),
        (replace(LAPTOP, shm_bytes=64 * 10**6), [], "--shm-size"),
        (replace(LAPTOP, python=(3, 10)), [], "3.11"),
    ],
)
def test_a_machine_too_small_is_refused(machine: Machine, words: list[str], says: str) -> None:
    with pytest.raises(MachineError, match=says):
        check_machine(compose("overlap", words, machine), machine)


def test_gpus_that_torch_cannot_use_are_no_silent_cpu_run() -> None:
    with pytest.raises(MachineError, match="TORCH_INDEX"):
        check_machine(compose("overlap", [], BOX), BOX, lambda: "torch 2.13 CPU build")
    check_machine(compose("overlap", ["cluster=cpu"], BOX), BOX, lambda: "not asked")


def test_a_simulated_cluster_needs_no_machine() -> None:
    tiny = replace(LAPTOP, memory_bytes=1, shm_bytes=0)
    check_machine(compose("overlap", ["cluster=sim_8xh200"], tiny), tiny)


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(ConfigError, match=r"output\.dir"):
        check_folder(tmp_path / "taken" / "inside", "output.dir")
    assert check_folder(tmp_path / "a" / "b", "output.dir").is_dir()
    assert not list((tmp_path / "a" / "b").iterdir())


def test_versions_name_torch_and_ray() -> None:
    assert {"python", "torch", "ray"} <= set(describe_versions())
