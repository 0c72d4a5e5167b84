"""The pool that the other rank tests stand on."""

import os
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from lf_ray.testing.ranks import RankError, RankPlace, RankPool

Ranks = Callable[[int], RankPool]


def _sum_of_ranks(place: RankPlace, start: int) -> tuple[int, int]:
    value = torch.tensor(start + place.rank)
    dist.all_reduce(value, group=place.work_group)
    return int(value), os.getpid()


def _fail_on(place: RankPlace, rank: int) -> None:
    if place.rank == rank:
        raise ValueError("boom")
    dist.all_reduce(torch.zeros(1), group=place.work_group)


def _late_on(place: RankPlace, rank: int) -> None:
    if place.rank == rank:
        time.sleep(60)


def test_cases_share_the_processes(ranks: Ranks) -> None:
    first = ranks(2).run(_sum_of_ranks, 10)
    second = ranks(2).run(_sum_of_ranks, 20)
    assert [value for value, _ in first] == [21, 21]
    assert [value for value, _ in second] == [41, 41]
    assert [pid for _, pid in first] == [pid for _, pid in second]


def test_failure_names_rank_and_error_and_the_next_case_has_new_ranks() -> None:
    pool = RankPool(2)
    try:
        with pytest.raises(RankError, match=r"rank 1: (.|\n)*ValueError: boom"):
            pool.run(_fail_on, 1)
        assert [value for value, _ in pool.run(_sum_of_ranks, 0)] == [1, 1]
        with pytest.raises(RankError, match=r"from ranks \[0\]"):
            pool.run(_late_on, 0, deadline_s=0.5)
    finally:
        pool.close()
