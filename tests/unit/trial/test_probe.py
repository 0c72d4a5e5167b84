"""Whether a link is plausible, and which one is not."""

import pytest

from lf_ray.clock import FakeClock
from lf_ray.errors import GroupError
from lf_ray.trial.ranks.probe import (
    PLAUSIBLE,
    Plausible,
    Reading,
    neighbours,
    odd_links,
    read_link,
    refuse_implausible,
)

FLOOR = Plausible(large_bytes=64 * 2**20, floor_bytes_per_s=100e6)


def test_a_reading_leaves_out_the_first_message_and_one_slow_one() -> None:
    clock, calls = FakeClock(), 0

    def all_reduce(num_bytes: int) -> None:
        nonlocal calls
        calls += 1
        opening = calls in (1, 7)
        hiccup = calls == 4
        clock.sleep(1e-4 + num_bytes / 1e9 + (5.0 if opening or hiccup else 0.0))

    reading = read_link(all_reduce, lambda value: value, clock, 10**9)
    assert reading.latency_s == pytest.approx(1e-4 + 4096 / 1e9)
    assert reading.bytes_per_s == pytest.approx(1e9, rel=1e-3)


def test_the_slowest_rank_counts() -> None:
    clock = FakeClock()
    reading = read_link(lambda _: clock.sleep(0.1), lambda value: 2 * value, clock, 10**6)
    assert reading.latency_s == pytest.approx(0.2)


def test_a_plausible_link_asks_nothing_more() -> None:
    def links() -> dict[tuple[int, int], float]:
        raise AssertionError("not asked")

    refuse_implausible(Reading(latency_s=1e-5, bytes_per_s=2e8), FLOOR, links)


def test_an_implausible_link_is_named_with_its_speed_and_the_floor() -> None:
    rates = {(0, 1): 4e9, (1, 2): 5e9, (2, 3): 2e6, (3, 0): 4e9}
    with pytest.raises(GroupError) as caught:
        refuse_implausible(Reading(latency_s=1.0, bytes_per_s=2e6), FLOOR, lambda: rates)
    text = str(caught.value)
    assert "ranks 2 and 3 at 2 MB/s" in text
    assert "100 MB/s" in text
    assert "ranks 0 and 1" not in text


def test_links_that_are_all_slow_are_said_to_be_alike() -> None:
    rates = {(0, 1): 1e6, (1, 2): 1.1e6, (2, 0): 0.9e6}
    assert odd_links(rates) == []
    with pytest.raises(GroupError, match="all links alike"):
        refuse_implausible(Reading(latency_s=1.0, bytes_per_s=1e6), FLOOR, lambda: rates)


def test_the_only_link_is_the_odd_one() -> None:
    assert odd_links({(0, 1): 1.0}) == [(0, 1)]


def test_a_ring_names_each_pair_once() -> None:
    assert neighbours(2) == [(0, 1)]
    assert neighbours(4) == [(0, 1), (1, 2), (2, 3), (3, 0)]


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_floors_leave_room_for_slow_but_working_links(backend: str) -> None:
    assert PLAUSIBLE[backend].floor_bytes_per_s < 0.5e9
