"""Delivers updates in a thread of low priority, in order, through outages.

Knows no MLflow: what delivers is handed in. While it fails, updates wait in a spool.
"""

import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from lf_ray.clock import Clock
from lf_ray.record.mirror.updates import RunUpdate
from lf_ray.record.spool import Spool

RETRY_S = 5.0
_NICENESS = 5  # the trials' cores are not ours

_log = logging.getLogger(__name__)


class RefusedError(Exception):
    """The receiver answered that an update is wrong: sending it again would not help."""


def first_line(error: BaseException) -> str:
    """Returns the first line of what an error says."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def to_stderr(text: str) -> None:
    """Shows a warning to whoever watches."""
    sys.stderr.write(f"warning: {text}\n")
    sys.stderr.flush()


class Courier:
    """Takes updates without waiting and delivers them when it can.

    Args:
        deliver: sends one update; raises OSError while the receiver is away. What else it raises
            costs that update, with a warning.
        spool: where updates wait during an outage; what an earlier process left is dropped, since
            a resumed sweep sends everything again.
        clock: tells when to try again.
        receiver: its name in messages.
        notify: is told when the receiver goes and comes.

    Attributes:
        warnings: what a person should still know at the end.
    """

    def __init__(
        self,
        deliver: Callable[[RunUpdate], None],
        spool: Spool,
        clock: Clock,
        receiver: str,
        notify: Callable[[str], object] = to_stderr,
    ) -> None:
        self.warnings: list[str] = []
        self._deliver_one = deliver
        self._spool = spool
        self._clock = clock
        self._receiver = receiver
        self._notify = notify
        self._inbox: queue.SimpleQueue[RunUpdate | None] = queue.SimpleQueue()
        self._first = threading.Event()
        self._in_hand: RunUpdate | None = None
        self._away = False
        self._retry_at_s = 0.0
        self._thread = threading.Thread(target=self._work, name="courier", daemon=True)

    def start(self) -> None:
        """Begins to deliver."""
        self._spool.keep([])
        self._thread.start()

    def send(self, updates: Iterable[RunUpdate]) -> None:
        """Takes updates and returns at once."""
        for update in updates:
            self._inbox.put(update)

    def wait_for_first(self, timeout_s: float) -> None:
        """Waits until the first update was delivered or could not be."""
        if self._thread.is_alive():
            self._first.wait(timeout_s)

    def close(self, timeout_s: float) -> int:
        """Delivers what it can within the time, and returns how many updates wait in the spool."""
        self._inbox.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._in_hand is not None:  # stuck in a call: to send it twice would do no harm
            self._spool.add(self._in_hand)
        with suppress(queue.Empty):
            while True:  # and what it did not get to
                update = self._inbox.get_nowait()
                if update is not None:
                    self._spool.add(update)
        return len(self._spool.read())

    def warn(self, text: str) -> None:
        """Keeps a warning for the end and tells it now, once."""
        if text not in self.warnings:
            _log.warning(text)
            self.warnings.append(text)
            self._notify(text)

    def _work(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            try:
                update = self._inbox.get(timeout=RETRY_S if self._away else None)
            except queue.Empty:
                self._flush()
                continue
            if update is None:
                self._flush(last=True)
                return
            self._in_hand = update
            if not (self._flush() and self._deliver(update)):
                self._spool.add(update)
            self._in_hand = None

    def _flush(self, *, last: bool = False) -> bool:
        """Sends what waits, if it is time to try; returns whether nothing waits any more."""
        if not self._away:
            return True
        if not last and self._clock.monotonic_s() < self._retry_at_s:
            return False
        waiting = self._spool.read()
        for index, update in enumerate(waiting):
            if not self._deliver(update):
                self._spool.keep(waiting[index:])
                return False
        self._spool.keep([])
        self._away = False
        self._notify(f"{self._receiver} is back; what waited was sent.")
        return True

    def _deliver(self, update: RunUpdate) -> bool:
        """Sends one update; returns whether it is off our hands."""
        try:
            self._deliver_one(update)
        except OSError as error:
            self._leave(error)
            return False
        except Exception as error:
            # Refused, or a defect of ours: it would be so again, and the others may still go.
            self.warn(f"{self._receiver} did not take an update: {type(error).__name__}: {error}")
        finally:
            self._first.set()
        return True

    def _leave(self, error: OSError) -> None:
        self._retry_at_s = self._clock.monotonic_s() + RETRY_S
        if self._away:
            return
        self._away = True
        text = (
            f"{self._receiver} is away ({first_line(error)}). The sweep goes on; its updates wait "
            f"in {self._spool.path.name} and are sent when it is back."
        )
        _log.warning(text)
        self._notify(text)
