"""What the benchmarks run on ranks: messages of every size sum right, an eager step settles."""

from collections.abc import Callable, Sequence

import pytest
import torch

from lf_ray.bench.comm import CommBench, messages, summary
from lf_ray.bench.steps.settling import MAX_BLOCKS, settled_times
from lf_ray.errors import LfRayError
from lf_ray.runtime.update.collectives import NoCollective
from lf_ray.testing.ranks import RankPlace, RankPool

Ranks = Callable[[int], RankPool]


@pytest.mark.parametrize(("world_size", "comm_dtype"), [(2, "fp32"), (2, "bf16"), (8, "bf16")])
def test_every_size_is_summed_and_timed(ranks: Ranks, world_size: int, comm_dtype: str) -> None:
    bench = CommBench((1 / 1024, 0.25), comm_dtype, 3)
    rows = summary(ranks(world_size).run(messages, bench), bench, "default")
    assert [row["mib"] for row in rows] == [1 / 1024, 0.25]
    for row in rows:
        assert row["num_ranks"] == world_size
        assert 0 < row["fastest_ms"] <= row["median_ms"] <= row["slowest_ms"]
        assert row["bus_gb_per_s"] > 0


class Doubling(NoCollective):
    """A link that delivers twice what was sent."""

    def start(self, values_N: torch.Tensor) -> None:
        values_N.mul_(4.0)

    def wait(self) -> None:
        pass


def _wrong_sum(place: RankPlace) -> str:
    bench = CommBench((1 / 1024,), "fp32", 1)
    try:
        messages(place, bench, lambda group, device: Doubling())
    except LfRayError as error:
        return str(error)
    return ""


def test_a_wrong_sum_ends_the_measurement(ranks: Ranks) -> None:
    for text in ranks(2).run(_wrong_sum):
        assert "the sum of ones over 2 ranks is 2" in text


def _settling(place: RankPlace, falls_for: int) -> tuple[int, list[int]]:
    """Rank 1 alone would go on forever: rank 0 decides."""
    asked: list[int] = []

    def times_s(num_steps: int) -> Sequence[float]:
        asked.append(num_steps)
        first = sum(asked[:-1])
        if place.rank == 1:
            return [1e-3 * 1.1 ** (first + index) for index in range(num_steps)]
        return [
            1e-3 * (1 + max(0, falls_for - first - index) / 20) * (1 + 0.001 * (index % 3))
            for index in range(num_steps)
        ]

    return len(settled_times(times_s, 30, place)), asked


@pytest.mark.parametrize(("falls_for", "least"), [(0, 60), (100, 120)])
def test_blocks_go_on_until_the_step_is_steady(ranks: Ranks, falls_for: int, least: int) -> None:
    first, second = ranks(2).run(_settling, falls_for)
    assert first == second
    assert least <= first[0] <= 30 * MAX_BLOCKS
