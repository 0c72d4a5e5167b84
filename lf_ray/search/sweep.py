"""A sweep on Ray Tune: starts the Tuner, keeps its files and its talk to itself, ends in order.

Is handed what runs trials; knows neither workers nor torch.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ray import tune

from lf_ray.search.conductor import INTERRUPTED, Conductor
from lf_ray.search.plan.decisions import Stop
from lf_ray.search.searcher import SweepSearcher

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Tune ends its loop in order on this one, whoever else handles the two above.
_TUNE_STOPS_ON = signal.SIGUSR1


class Interruption:
    """What Ctrl-C and SIGTERM do while a sweep runs: the first ends in order, the second at once.

    Attributes:
        reason: what came first, empty while nothing has.
    """

    def __init__(self, leave_at_once: Callable[[int], Any] = os._exit) -> None:
        self.reason = ""
        self._leave_at_once = leave_at_once
        self._in_tune = False

    def arm(self) -> None:
        """Takes the signals (back): Tune takes SIGINT for itself when it starts."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                signal.signal(number, self._handle)

    @contextmanager
    def armed(self) -> Iterator["Interruption"]:
        """Holds the signals for a while, and gives them back to who had them."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.getsignal(number) for number in (*_SIGNALS, _TUNE_STOPS_ON)}
        self.arm()
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def in_tune(self) -> Iterator[None]:
        """Passes the first signal on to Tune's own orderly end."""
        self._in_tune = True
        try:
            yield
        finally:
            self._in_tune = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.reason:
            self._leave_at_once(INTERRUPTED)
            return
        self.reason = "interrupted by Ctrl-C" if number == signal.SIGINT else "ended by SIGTERM"
        if self._in_tune:
            os.kill(os.getpid(), _TUNE_STOPS_ON)


def run_on_tune(
    conductor: Conductor,
    trainable: Any,
    folder: Path,
    *,
    num_groups: int = 1,
    resources: Mapping[str, float] | None = None,
    interruption: Interruption | None = None,
) -> Stop:
    """Runs a begun sweep to its end on a running Ray, and returns why it ended.

    Args:
        conductor: begun; holds journal and observers.
        trainable: a Tune Trainable (class, or wrapped by `tune.with_parameters`) that answers
            config["request"] with result["record"].
        folder: Tune's files go to <folder>/tune.
        num_groups: requests under way at once.
        resources: of the trainable itself, as Tune takes them.
        interruption: already armed by the caller; None arms one for this call.

    Raises:
        RecordError: the journal can't be written any more.
    """
    if interruption is None:
        interruption = Interruption()
        with interruption.armed():
            return run_on_tune(
                conductor,
                trainable,
                folder,
                num_groups=num_groups,
                resources=resources,
                interruption=interruption,
            )
    searcher = SweepSearcher(conductor, num_groups, on_ask=_once(interruption.arm))
    tuner = _tuner(searcher, trainable, folder, resources)
    try:
        with _quiet_tune(), interruption.in_tune():
            if not interruption.reason:
                tuner.fit()
    except KeyboardInterrupt:
        interruption.reason = interruption.reason or "interrupted by Ctrl-C"
    except Exception:
        # Tune wraps what its searcher raised, or says something of its own about it.
        if conductor.broken is None:
            raise
    if conductor.broken is not None:
        raise conductor.broken
    if conductor.stop is None:
        conductor.interrupt(interruption.reason or "Ray Tune ended before the sweep did")
    assert conductor.stop is not None
    return conductor.stop


def _tuner(
    searcher: SweepSearcher, trainable: Any, folder: Path, resources: Mapping[str, float] | None
) -> tune.Tuner:
    if resources is not None:
        trainable = tune.with_resources(trainable, dict(resources))
    return tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=searcher, num_samples=-1, reuse_actors=True, trial_dirname_creator=_dirname
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(Path(folder).resolve()),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            verbose=0,
        ),
    )


def _dirname(trial: Any) -> str:
    return f"trial_{trial.trial_id}"


def _once(call: Callable[[], None]) -> Callable[[], None]:
    """Returns a function that calls through the first time only."""
    calls = [call]

    def ask() -> None:
        if calls:
            calls.pop()()

    return ask


@contextmanager
def _quiet_tune() -> Iterator[None]:
    """Keeps what Tune's driver side says off the screen; errors still go to Ray's own log."""
    logger = logging.getLogger("ray.tune")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
