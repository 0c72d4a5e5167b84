"""More than one machine: a group on each node that holds one, trials in parallel, a node lost.

The nodes are Ray nodes of one machine.
"""

import json
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune
from ray.cluster_utils import Cluster

from lf_ray.errors import MachineError
from lf_ray.launch import Groups
from lf_ray.protocol import Budget, OutcomeKind, TrialRecord
from lf_ray.settings import SweepConfig
from lf_ray.testing.group_contract import request
from lf_ray.testing.ray_groups import cpu_workers
from lf_ray.testing.sessions import FakeFactory
from lf_ray.trial.launch import open_groups

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

ONE_SECOND = Budget(min_steps=100, max_steps=100, max_s=100.0, target_frac=1e-9)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """Three nodes for all tests; the one that loses a node comes last."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(2):
        cluster.add_node(num_cpus=2)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def joining(nodes: Cluster) -> SweepConfig:
    config = cpu_workers()
    config.cluster.kind, config.cluster.address = "ray", nodes.address
    return config


def swept(groups: Groups, folder: Path, num_trials: int) -> list[TrialRecord]:
    names = [json.dumps(request(f"t{index:03d}", budget=ONE_SECOND)) for index in range(num_trials)]
    results = tune.Tuner(
        tune.with_resources(groups.trainable, dict(groups.resources or {})),
        param_space={"request": tune.grid_search(names)},
        tune_config=tune.TuneConfig(
            max_concurrent_trials=groups.num_groups,
            reuse_actors=True,
            trial_dirname_creator=lambda trial: str(trial.trial_id),
        ),
        run_config=tune.RunConfig(name="nodes", storage_path=str(folder), verbose=0),
    ).fit()
    metrics: list[dict[str, Any]] = [dict(item.metrics or {}) for item in results]
    records = [TrialRecord.from_json(json.loads(item["record"])) for item in metrics]
    return sorted(records, key=lambda item: item.clock_s["first_step"])


def test_no_cluster_at_the_address_is_said_so(tmp_path: Path) -> None:
    config = cpu_workers()
    config.cluster.kind, config.cluster.address = "ray", "127.0.0.1:1"
    with (
        pytest.raises(MachineError, match=r"joining Ray at 127\.0\.0\.1:1"),
        open_groups(config, tmp_path, FakeFactory()),
    ):
        pass


def test_groups_run_side_by_side_and_alone_on_their_node(nodes: Cluster, tmp_path: Path) -> None:
    with open_groups(joining(nodes), tmp_path, FakeFactory()) as groups:
        assert groups.num_groups == 2
        records = swept(groups, tmp_path, 6)
    assert {item.outcome.kind for item in records} == {OutcomeKind.COMPLETED}
    by_node: dict[Any, list[TrialRecord]] = {}
    for item in records:
        by_node.setdefault(item.outcome.effective["node"], []).append(item)
    assert len(by_node) == 2
    for visits in by_node.values():
        for one, following in pairwise(visits):
            assert one.clock_s["last_step"] <= following.clock_s["first_step"]
    first, second = by_node.values()
    assert any(
        one.clock_s["first_step"] < other.clock_s["last_step"]
        and other.clock_s["first_step"] < one.clock_s["last_step"]
        for one in first
        for other in second
    ), "the two groups never measured at the same time"
    assert groups.left_over == []


def test_a_cluster_without_room_is_refused(nodes: Cluster, tmp_path: Path) -> None:
    config = joining(nodes)
    config.cluster.workers = 8
    with (
        pytest.raises(MachineError, match="a node must offer CPU 8"),
        open_groups(config, tmp_path, FakeFactory()),
    ):
        pass


def test_a_lost_node_s_trial_is_run_by_another_group(nodes: Cluster, tmp_path: Path) -> None:
    with open_groups(joining(nodes), tmp_path, FakeFactory()) as groups:
        swept(groups, tmp_path / "warm", 2)

        def lose() -> None:
            time.sleep(4.0)
            nodes.remove_node(next(iter(nodes.worker_nodes)))

        thread = threading.Thread(target=lose)
        thread.start()
        records = swept(groups, tmp_path / "lost", 10)
        thread.join()
    assert [item.outcome.kind for item in records] == [OutcomeKind.COMPLETED] * 10
    assert len({item.request.id for item in records}) == 10
    after = [item.outcome.effective["node"] for item in records[-3:]]
    assert len(set(after)) == 1
    assert [text for text in groups.left_over if "placement group" in text] == []
