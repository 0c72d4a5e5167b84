"""A Tune that does not end after a signal, and a Ray that ends under the sweep."""

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from lf_ray.search.sweep import Interruption, _TuneStuck


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    """The process of a sweep whose Ray is gone ends; this one goes on, and collects again."""
    yield
    gc.enable()


def wait_for_ever(within_s: float = 30.0) -> None:
    """Stands for Tune's loop: it takes errors for its own and goes on."""
    ends_s = time.monotonic() + within_s
    while time.monotonic() < ends_s:
        try:
            time.sleep(0.05)
        except Exception:
            continue
    pytest.fail("nobody ended it")


def hear_nothing() -> None:
    """Stands for a Tune that is told to end and does not."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.kill(os.getpid(), signal.SIGTERM)
    wait_for_ever()


def test_a_ray_that_ends_under_the_sweep_ends_it_with_the_reason() -> None:
    interruption = Interruption(leave_at_once=lambda code: None)
    with (
        interruption.armed(),
        pytest.raises(_TuneStuck),
        interruption.in_tune(lambda: "Ray's raylet ended"),
    ):
        wait_for_ever()
    assert interruption.reason == "Ray's raylet ended under the sweep"
    assert interruption.gone == "Ray's raylet ended"
    assert not gc.isenabled()


def test_where_the_sweep_s_thread_is_held_another_one_ends_it() -> None:
    """Signals are not heard inside Ray's own code; here they are ignored instead."""
    left: list[int] = []
    interruption = Interruption(leave_at_once=left.append)
    ended = threading.Event()
    with interruption.armed():
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        with interruption.in_tune(lambda: "Ray's gcs_server ended", ended.set):
            assert ended.wait(30.0)
    assert interruption.gone == "Ray's gcs_server ended"
    assert left == [130]


def test_patience_with_tune_has_an_end() -> None:
    interruption = Interruption(leave_at_once=lambda code: None, patience_s=0.6)
    with interruption.armed(), pytest.raises(_TuneStuck), interruption.in_tune():
        hear_nothing()
    assert interruption.reason == "ended by SIGTERM"
    assert interruption.gone == ""


def test_a_tune_that_ends_is_left_alone() -> None:
    interruption = Interruption(leave_at_once=lambda code: None, patience_s=0.1)
    before = signal.getsignal(signal.SIGUSR2)
    with interruption.armed(), interruption.in_tune():
        time.sleep(0.7)
    assert interruption.reason == ""
    assert signal.getsignal(signal.SIGUSR2) == before


def test_only_where_ray_is_gone_the_process_is_ended_at_once() -> None:
    left: list[int] = []
    interruption = Interruption(leave_at_once=left.append)
    assert interruption.end_process(130) == 130
    assert left == []
    interruption.gone = "Ray's gcs_server ended"
    interruption.end_process(130)
    assert left == [130]
