"""The probe on real gloo ranks."""

from collections.abc import Callable

from lf_ray.clock import SystemClock
from lf_ray.testing.ranks import RankPlace, RankPool


def probe(place: RankPlace) -> dict[str, float]:
    from lf_ray.trial.ranks.probe import probe_group

    return probe_group(place.work_group, "cpu", SystemClock())


def refused(place: RankPlace) -> str:
    from lf_ray.errors import GroupError
    from lf_ray.trial.ranks import probe

    floor = probe.Plausible(large_bytes=2**20, floor_bytes_per_s=1e15)
    try:
        probe.probe_group(place.work_group, "cpu", SystemClock(), {"gloo": floor})
    except GroupError as error:
        return str(error)
    return "accepted"


def probe_links(place: RankPlace) -> dict[tuple[int, int], float]:
    from lf_ray.trial.ranks.probe import _link_rates

    return _link_rates(place.work_group, "cpu", SystemClock(), 2**20)


def test_ranks_agree_on_a_plausible_reading(ranks: Callable[[int], RankPool]) -> None:
    results: list[dict[str, float]] = ranks(2).run(probe)
    assert results[0] == results[1]
    assert results[0]["probe_bytes_per_s"] > 1e6
    assert 0.0 < results[0]["probe_latency_s"] < 5.0


def test_a_link_below_the_floor_ends_every_rank_alike(
    ranks: Callable[[int], RankPool],
) -> None:
    texts = ranks(2).run(refused)
    assert texts[0] == texts[1]
    assert "ranks 0 and 1 at" in texts[0]


def test_every_link_of_the_ring_is_measured(ranks: Callable[[int], RankPool]) -> None:
    first, second = ranks(2).run(probe_links)
    assert first == second
    assert list(first) == [(0, 1)]
    assert first[0, 1] > 1e5
