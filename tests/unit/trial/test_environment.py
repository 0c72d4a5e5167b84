"""What workers start with, and that they really do."""

import pytest

from lf_ray.errors import MachineError
from lf_ray.settings import MemoryBackend, SweepConfig
from lf_ray.trial.environment import check_environment, forwarded, worker_environment


def on_gpu() -> SweepConfig:
    config = SweepConfig()
    config.cluster.device = "cuda"
    return config


def test_on_a_cpu_the_knobs_set_nothing() -> None:
    assert worker_environment(SweepConfig(), {}) == {"OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("backend", "value"),
    [
        (MemoryBackend.expandable, "expandable_segments:True"),
        (MemoryBackend.caching, "expandable_segments:False"),
        (MemoryBackend.arena, "expandable_segments:False"),
    ],
)
def test_the_allocator_follows_its_knob(backend: MemoryBackend, value: str) -> None:
    config = on_gpu()
    config.memory.backend = backend
    assert worker_environment(config, {})["PYTORCH_ALLOC_CONF"] == value


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_what_a_user_set_stays_but_for_what_the_knob_says(name: str) -> None:
    given = {name: "max_split_size_mb:128, expandable_segments:True"}
    environment = worker_environment(on_gpu(), given)
    assert environment["PYTORCH_ALLOC_CONF"] == "max_split_size_mb:128,expandable_segments:False"
    assert "PYTORCH_CUDA_ALLOC_CONF" not in environment


def test_one_group_s_choice_is_not_the_next_one_s() -> None:
    config = on_gpu()
    config.nccl.algo, config.nccl.max_ctas = "ring", 8
    first = worker_environment(config, {})
    assert (first["NCCL_ALGO"], first["NCCL_MAX_CTAS"]) == ("Ring", "8")
    config.nccl.algo, config.nccl.max_ctas = "default", 0
    second = worker_environment(config, {})
    assert "NCCL_ALGO" not in second
    assert "NCCL_MAX_CTAS" not in second


def test_only_what_is_meant_for_workers_is_passed_on() -> None:
    environ = {
        "NCCL_DEBUG": "INFO",
        "GLOO_SOCKET_IFNAME": "eth0",
        "PYTORCH_ALLOC_CONF": "x:1",
        "HF_HOME": "/cache",
        "HF_TOKEN": "secret",
        "PATH": "/bin",
    }
    assert set(forwarded(environ)) == set(environ) - {"HF_TOKEN", "PATH"}


def test_another_environment_is_refused_by_name_and_both_values() -> None:
    check_environment({"A": "1"}, {"A": "1", "B": "2"})
    with pytest.raises(MachineError, match="NCCL_ALGO=None, not 'Ring'"):
        check_environment({"NCCL_ALGO": "Ring"}, {})
