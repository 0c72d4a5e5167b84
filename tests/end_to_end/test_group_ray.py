"""The contract of a worker group, kept by Ray's real workers."""

from collections.abc import Iterator

import pytest

from lf_ray.testing.group_contract import (
    LostWorkerContract,
    ReplacedContract,
    WarmContract,
    submitted,
)
from lf_ray.testing.ray_groups import RayGroup

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayGroup]:
    started = RayGroup(tmp_path_factory.mktemp("group"))
    yield started
    assert started.close() == []


class TestWarmWorkers(WarmContract):
    pass


class TestLostWorker(LostWorkerContract):
    pass


@pytest.mark.slow
class TestReplacedWorkers(ReplacedContract):
    pass


def test_the_workers_are_where_the_owner_says(group: RayGroup) -> None:
    submitted(group, "plain")
    members = group.state()["members"]
    assert sorted(members) == [0, 1]
    assert len({item["pid"] for item in members.values()}) == 2
