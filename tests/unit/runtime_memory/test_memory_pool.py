"""The article's pool without a GPU: the same checks, a scope that changes nothing and says so."""

import pytest
import torch

from lf_ray.errors import ConfigError, MachineError
from lf_ray.runtime.memory import MemoryPool, arena_refusal, capture_room

CPU = torch.device("cpu")


def test_the_article_snippet_runs_and_says_that_it_is_emulated() -> None:
    pool = MemoryPool(
        total_size_gb=78, block_sizes=[1, 2, 4, 8, 16, 32], enable_defrag=True, device=CPU
    )
    with pool.scope():
        assert float(torch.ones(4).sum()) == 4.0
    assert pool.stats().emulated
    assert any("emulated" in word for word in pool.words)
    assert pool.release() == 0
    assert pool.close() == 0


def test_a_ladder_may_be_given_by_name() -> None:
    assert MemoryPool(8, "1-2-4", device=CPU).block_sizes == (1, 2, 4)


@pytest.mark.parametrize(
    "arguments",
    [
        {"block_sizes": []},
        {"block_sizes": [1, -2]},
        {"block_sizes": "analysed"},
        {"total_size_gb": 0.5, "block_sizes": [1, 2]},
        {"backend": "slab"},
    ],
)
def test_the_checks_are_those_of_a_gpu(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        MemoryPool(device=CPU, **arguments)  # type: ignore[arg-type]


def test_one_pool_is_in_force_at_a_time() -> None:
    first, second = MemoryPool(device=CPU), MemoryPool(device=CPU)
    with first.scope():
        with pytest.raises(MachineError, match="one pool is in force"), second.scope():
            pass
        with pytest.raises(MachineError, match="Leave the scope"):
            first.release()
    with second.scope():
        pass


def test_a_scope_is_left_after_an_error() -> None:
    pool = MemoryPool(device=CPU)
    with pytest.raises(ZeroDivisionError), pool.scope():
        raise ZeroDivisionError
    with pool.scope(), capture_room(CPU) as pool_id:
        assert pool_id is None


def test_a_cpu_has_no_arena_and_the_reason_is_a_value() -> None:
    reason = arena_refusal(CPU)
    assert reason is not None
    assert "cpu" in reason
