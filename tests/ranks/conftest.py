"""The pools of gloo ranks, one a world size, shared by all tests of a session."""

from collections.abc import Callable, Iterator

import pytest

from lf_ray.testing.ranks import RankPool

# A dispatch mode, as an emulated graph has one, brings torch's compiler: 4 CPU seconds a rank.
IMPORTED = ("pytest", "torch._dynamo", "lf_ray.runtime.session", "lf_ray.testing.toy")


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[[int], RankPool]]:
    """Returns the pool of a world size; it is started by its first case."""
    pools: dict[int, RankPool] = {}
    yield lambda world_size: pools.setdefault(world_size, RankPool(world_size, imported=IMPORTED))
    for pool in pools.values():
        pool.close()
