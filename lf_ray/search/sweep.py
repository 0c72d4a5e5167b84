"""A sweep on Ray Tune: starts the Tuner, keeps its files and its talk to itself, ends in order.

Is handed what runs trials; knows neither workers nor torch.
"""

import gc
import logging
import os
import signal
import sys
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
_PATIENCE_ENDS_ON = signal.SIGUSR2
_PATIENCE_S = 20.0
"""How long Tune may take to end in order after a signal."""
_LOOK_EVERY_S = 0.5
_STUCK_S = 5.0
"""How long Tune may take to be left where Ray is gone. Ray's own code waits for its control
process without a look at signals, and ends this one after a minute."""


class _TuneStuck(BaseException):
    """The way out of a Tune that does not end; no Exception, or Tune would catch it."""


class Interruption:
    """What Ctrl-C and SIGTERM do while a sweep runs: the first ends in order, the second at once.

    Args:
        leave_at_once: what the second one calls with the exit code.
        patience_s: how long Tune may take to end after the first one.

    Attributes:
        reason: what came first, empty while nothing has.
        gone: what of Ray has ended under the sweep; then nothing of Ray answers any more.
        held: what a Tune that had to be left was doing. It is kept, since its objects tell Ray
            when they are freed, and wait for it.
    """

    def __init__(
        self, leave_at_once: Callable[[int], Any] = os._exit, patience_s: float = _PATIENCE_S
    ) -> None:
        self.reason = ""
        self.gone = ""
        self.held: BaseException | None = None
        self._leave_at_once = leave_at_once
        self._patience_s = patience_s
        self._in_tune = False

    def arm(self) -> None:
        """Takes the signals (back): Tune takes SIGINT for itself when it starts."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                signal.signal(number, self._handle)
            signal.signal(_PATIENCE_ENDS_ON, self._leave_tune)

    @contextmanager
    def armed(self) -> Iterator["Interruption"]:
        """Holds the signals for a while, and gives them back to who had them."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        taken = (*_SIGNALS, _TUNE_STOPS_ON, _PATIENCE_ENDS_ON)
        before = {number: signal.getsignal(number) for number in taken}
        self.arm()
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def in_tune(
        self, gone: Callable[[], str] = lambda: "", when_stuck: Callable[[], Any] | None = None
    ) -> Iterator[None]:
        """Passes the first signal on to Tune's own orderly end, which has its deadline.

        `gone` says what of Ray has ended; a Tune without Ray would wait for it, and then Ray's
        own code would end the process. `when_stuck` is called on another thread where Tune can't
        be left even so; then the process is ended, and this thread does not go on meanwhile. Where
        Ray is gone, nothing is collected any more in this process.
        """
        self._in_tune = True
        left = threading.Event()
        watch = threading.Thread(target=self._watch, args=(gone, when_stuck, left), daemon=True)
        watch.start()
        try:
            yield
        finally:
            self._in_tune = False
            left.set()
            # Its signal must not come once the handlers are given back: it would end the process.
            watch.join()

    def _watch(
        self, gone: Callable[[], str], when_stuck: Callable[[], Any] | None, left: threading.Event
    ) -> None:
        waited_s, gone_s = 0.0, 0.0
        while not left.wait(_LOOK_EVERY_S):
            self.gone = gone()
            if self.gone:
                self.reason = self.reason or f"{self.gone} under the sweep"
                # Tune's objects tell Ray when they are freed, and wait for it.
                gc.disable()
            waited_s += _LOOK_EVERY_S if self.reason else 0.0
            gone_s += _LOOK_EVERY_S if self.gone else 0.0
            if gone_s > _STUCK_S and when_stuck is not None:
                try:
                    when_stuck()
                finally:
                    self._leave_at_once(INTERRUPTED)
                return
            if self.gone or waited_s > self._patience_s:
                # Again and again: what it raises may meet code that takes it for its own.
                os.kill(os.getpid(), _PATIENCE_ENDS_ON)

    def end_process(self, exit_code: int) -> int:
        """Returns the exit code; ends the process with it where Ray's own code would do worse."""
        if self.gone:
            sys.stdout.flush()
            sys.stderr.flush()
            self._leave_at_once(exit_code)
        return exit_code

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.reason:
            self._leave_at_once(INTERRUPTED)
            return
        self.reason = "interrupted by Ctrl-C" if number == signal.SIGINT else "ended by SIGTERM"
        if self._in_tune:
            os.kill(os.getpid(), _TUNE_STOPS_ON)

    def _leave_tune(self, number: int, frame: FrameType | None) -> None:
        if self._in_tune:
            raise _TuneStuck


def run_on_tune(  # noqa: PLR0913 - the one entrance to Tune
    conductor: Conductor,
    trainable: Any,
    folder: Path,
    *,
    num_groups: int = 1,
    resources: Mapping[str, float] | None = None,
    interruption: Interruption | None = None,
    gone: Callable[[], str] = lambda: "",
    when_stuck: Callable[[Stop], Any] | None = None,
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
        gone: returns what of Ray has ended, "" while all of it runs.
        when_stuck: called on another thread, with why the sweep ended, where Ray is gone and this
            thread can't get out of its code; the process is ended after it.

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
                gone=gone,
                when_stuck=when_stuck,
            )

    def give_up() -> None:
        conductor.interrupt(interruption.reason)
        assert conductor.stop is not None
        assert when_stuck is not None
        when_stuck(conductor.stop)

    searcher = SweepSearcher(
        conductor,
        num_groups,
        on_ask=_once(interruption.arm),
        is_ending=lambda: bool(interruption.reason or gone()),
    )
    tuner = _tuner(searcher, trainable, folder, resources)
    try:
        with _quiet_tune(), interruption.in_tune(gone, give_up if when_stuck else None):
            if not interruption.reason:
                tuner.fit()
    except (KeyboardInterrupt, _TuneStuck) as error:
        interruption.held = error
        interruption.reason = interruption.reason or "interrupted by Ctrl-C"
    except Exception:
        # Tune wraps what its searcher raised, or says something of its own about it. Once a signal
        # has come, Ray may have got it too: then its errors say nothing new.
        if conductor.broken is None and not interruption.reason:
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
