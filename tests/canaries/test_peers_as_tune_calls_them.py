"""`bench search` calls Ray's OptunaSearch directly; a live Tune run must see the same points.

When this fails, look at how Tune's loop calls a searcher (order of suggest and on_trial_complete,
what a raised trial becomes) before changing `lf_ray.bench.peers`.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune
from ray.tune.search import ConcurrencyLimiter

from lf_ray.bench.peers import METRIC, RayOptuna
from lf_ray.protocol import KnobValue
from lf_ray.search.space import Space

NUM_TRIALS = 14
CHOICES: dict[str, tuple[KnobValue, ...]] = {
    "batch.per_gpu": (16, 32, 64, 128),
    "overlap.ratio": (0.0, 0.5, 1.0),
    "graph.scope": ("off", "step"),
}
FIRST: list[dict[str, KnobValue]] = [
    {"batch.per_gpu": 16, "overlap.ratio": 1.0, "graph.scope": "off"}
]


def rate(config: dict[str, Any]) -> float | None:
    """Samples a second of a made-up point; None where it does not fit."""
    if config["batch.per_gpu"] > 64:
        return None
    scope = 1.5 if config["graph.scope"] == "step" else 1.0
    return float(config["batch.per_gpu"] * scope * (1 + 0.1 * config["overlap.ratio"]))


def train(config: dict[str, Any]) -> dict[str, float]:
    value = rate(config)
    if value is None:
        raise RuntimeError("CUDA out of memory")
    return {METRIC: value}


@pytest.fixture
def local_ray() -> Iterator[None]:
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_a_live_tune_run_is_given_the_same_points(local_ray: None, tmp_path: Path) -> None:
    space = Space({}, CHOICES, {})
    live = RayOptuna(space, 7, FIRST).searcher
    results = tune.Tuner(
        train,
        tune_config=tune.TuneConfig(
            search_alg=ConcurrencyLimiter(live, max_concurrent=1),
            num_samples=NUM_TRIALS,
            reuse_actors=True,  # the searcher is asked alike, without a process for each trial
        ),
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    seen = [tuple(result.config[name] for name in CHOICES) for result in results]

    driven = RayOptuna(space, 7, FIRST)
    direct: list[dict[str, KnobValue]] = []
    for _ in itertools.repeat(None, NUM_TRIALS):
        point = driven.ask()
        assert point is not None
        direct.append(point)
        driven.tell(rate(point))
    points = [tuple(point[name] for name in CHOICES) for point in direct]
    assert sorted(map(repr, seen)) == sorted(map(repr, points))
    assert sum(rate(point) is None for point in direct) >= 2
