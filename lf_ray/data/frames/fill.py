"""Fills frame arenas beside training: each rank its share first, then what others still lack."""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lf_ray.data.frames.pool import DecoderPool
from lf_ray.data.frames.request import DecodeReply
from lf_ray.data.frames.source import FrameSource

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FillUnit:
    """Rows of one camera and episode that the frame cache lacks."""

    source: FrameSource
    rows: NDArray[np.int64]


class ArenaFiller:
    """A thread that has decoded what is missing, once.

    Args:
        units: what is missing.
        rank: of this process; it starts with every world_size-th unit.
        world_size: ranks that fill the same arenas.
        pool: decodes; the filler closes it.

    Attributes:
        num_done: units that are decoded, or left out because there is no room.
        seconds: that it took, once it is done.
    """

    def __init__(
        self, units: Sequence[FillUnit], rank: int, world_size: int, pool: DecoderPool
    ) -> None:
        own = list(units[rank::world_size])
        # From the end, so that ranks which finish early meet the others as late as possible.
        rest = [unit for place, unit in enumerate(units) if place % world_size != rank][::-1]
        self._units = own + rest
        self._pool = pool
        self._closing = threading.Event()
        self._done = threading.Event()
        self.seconds = 0.0
        self.num_done = 0
        self._thread: threading.Thread | None = None
        if not self._units:
            pool.close()
            self._done.set()
            return
        self._thread = threading.Thread(target=self._fill, name="lf-ray-fill", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Returns whether there is nothing left to decode."""
        return self._done.is_set()

    def wait(self, deadline_s: float) -> bool:
        """Waits until all is filled and returns whether it was, in time."""
        return self._done.wait(deadline_s)

    def _fill(self) -> None:
        started_s = time.monotonic()
        try:
            self._decode_units()
            for source in {id(unit.source): unit.source for unit in self._units}.values():
                source.sync()
        except CancelledError:
            pass
        except Exception:
            # A batch that needs the frame meets the same error, and has a caller to tell it to.
            _log.warning("the frame cache was not filled", exc_info=True)
        finally:
            self._pool.close()
            self.seconds = time.monotonic() - started_s
            self._done.set()

    def _decode_units(self) -> None:
        waiting: deque[tuple[FillUnit, list[Future[DecodeReply]]]] = deque()
        for unit in self._units:
            if self._closing.is_set():
                return
            missing = np.intersect1d(unit.rows, unit.source.missing(), assume_unique=True)
            waiting.append((unit, self._pool.submit(unit.source.requests(missing))))
            if len(waiting) > self._pool.num_workers:
                self._accept(*waiting.popleft())
        for unit, replies in waiting:
            self._accept(unit, replies)

    def _accept(self, unit: FillUnit, replies: list[Future[DecodeReply]]) -> None:
        for reply in replies:
            unit.source.accept(reply.result())
        self.num_done += 1

    def close(self) -> None:
        """Ends the thread after the units that are being decoded."""
        self._closing.set()
        self._pool.stop()
        if self._thread is not None:
            self._thread.join()
