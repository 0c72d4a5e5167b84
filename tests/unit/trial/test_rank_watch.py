"""What a rank tells of its phases: nothing inside them, where it stands when one is too long."""

import time
from collections.abc import Mapping
from typing import Any

from lf_ray.trial.ranks.serve import Order, RankWatch


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []

    def next_order(self, after: int) -> Order:
        return Order()

    def tell(self, what: str, value: Mapping[str, Any]) -> None:
        self.events.append((what, value))

    def late(self) -> list[Mapping[str, Any]]:
        return [value for what, value in self.events if what == "late"]


def test_a_phase_in_time_tells_only_that_it_begins() -> None:
    link = Told()
    watch = RankWatch(link, 1)
    for phase in ("build", "steps", "gate"):
        watch.enter(phase, 30.0)
    watch.close()
    assert [value["phase"] for _, value in link.events] == ["build", "steps", "gate"]


def test_a_phase_that_is_too_long_tells_once_where_the_rank_stands() -> None:
    link = Told()
    watch = RankWatch(link, 1)
    watch.enter("steps", 0.05)
    time.sleep(0.4)
    watch.close()
    (late,) = link.late()
    assert (late["rank"], late["phase"]) == (1, "steps")
    assert "test_rank_watch.py" in late["where"]
    assert not late["waiting"]


def test_waiting_for_work_is_never_late() -> None:
    link = Told()
    watch = RankWatch(link, 0)
    watch.enter("steps", 0.05)
    watch.enter("idle", None)
    time.sleep(0.3)
    watch.close()
    assert link.late() == []
