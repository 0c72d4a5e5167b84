"""The courier: order kept through outages, nothing lost, nobody kept waiting."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lf_ray.clock import FakeClock
from lf_ray.record.courier import RETRY_S, Courier, RefusedError
from lf_ray.record.mirror.updates import RunUpdate
from lf_ray.record.spool import Spool

WAIT_S = 20.0


class Receiver:
    """Takes updates, or is away, or refuses some, or hangs."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.away = False
        self.refused: set[str] = set()
        self.hang = threading.Event()
        self.hang.set()

    def deliver(self, update: RunUpdate) -> None:
        self.hang.wait(WAIT_S)
        if self.away:
            raise ConnectionError("refused\nand more")
        if update.key in self.refused:
            raise RefusedError(update.key)
        self.got.append(update.key)


@pytest.fixture
def made(tmp_path: Path) -> tuple[Receiver, Courier, FakeClock, list[str], Spool]:
    receiver, clock, said = Receiver(), FakeClock(), list[str]()
    spool = Spool(tmp_path / "spool.jsonl")
    courier = Courier(receiver.deliver, spool, clock, "MLflow", said.append)
    return receiver, courier, clock, said, spool


Made = tuple[Receiver, Courier, FakeClock, list[str], Spool]


def _updates(keys: str) -> list[RunUpdate]:
    return [RunUpdate(key=key) for key in keys]


def _wait(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_updates_arrive_in_order(made: Made) -> None:
    receiver, courier, _, said, spool = made
    courier.start()
    courier.send(_updates("abc"))
    assert courier.close(WAIT_S) == 0
    assert (receiver.got, said, courier.warnings) == (["a", "b", "c"], [], [])
    assert not spool.path.exists()


def test_an_outage_keeps_the_order(made: Made) -> None:
    receiver, courier, clock, said, spool = made
    courier.start()
    receiver.away = True
    courier.send(_updates("ab"))
    _wait(lambda: len(spool.read()) == 2)
    assert len(said) == 1
    assert "away (refused)" in said[0]
    receiver.away = False
    courier.send(_updates("c"))
    _wait(lambda: len(spool.read()) == 3)  # not yet time to try again
    clock.sleep(RETRY_S)
    courier.send(_updates("d"))
    assert courier.close(WAIT_S) == 0
    assert receiver.got == ["a", "b", "c", "d"]
    assert "what waited was sent" in said[1]
    assert courier.warnings == []


def test_away_to_the_end_everything_waits_in_the_spool(made: Made) -> None:
    receiver, courier, _, said, spool = made
    receiver.away = True
    courier.start()
    courier.send(_updates("abc"))
    assert courier.close(WAIT_S) == 3
    assert [update.key for update in spool.read()] == ["a", "b", "c"]
    assert len(said) == 1


def test_one_that_is_refused_does_not_hold_up_the_others(made: Made) -> None:
    receiver, courier, _, said, _ = made
    receiver.refused = {"b"}
    courier.start()
    courier.send(_updates("abc"))
    assert courier.close(WAIT_S) == 0
    assert receiver.got == ["a", "c"]
    assert courier.warnings == said == ["MLflow did not take an update: RefusedError: b"]


def test_a_receiver_that_hangs_holds_nobody(made: Made) -> None:
    receiver, courier, _, _, spool = made
    receiver.hang.clear()
    courier.start()
    began_s = time.monotonic()
    courier.send(_updates("abc"))
    assert courier.close(0.2) == 3  # the first too, though the call that hangs may yet get through
    assert time.monotonic() - began_s < 5.0
    assert [update.key for update in spool.read()] == ["a", "b", "c"]
    receiver.hang.set()


def test_what_an_earlier_process_left_is_dropped(made: Made) -> None:
    _, courier, _, _, spool = made
    spool.add(RunUpdate(key="old"))
    courier.start()
    assert courier.close(WAIT_S) == 0


def test_closing_before_starting_is_fine(made: Made) -> None:
    _, courier, _, _, _ = made
    courier.wait_for_first(WAIT_S)
    assert courier.close(WAIT_S) == 0
