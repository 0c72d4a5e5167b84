"""Fills frame arenas beside training: each rank its share first, then what others still lack."""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lf_ray.data.frames.decoder import FrameDecoder
from lf_ray.data.frames.source import FrameSource

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FillUnit:
    """Rows of one camera and episode that the frame cache lacks."""

    source: FrameSource
    rows: NDArray[np.int64]


class ArenaFiller:
    """A thread that decodes what is missing, once.

    Args:
        units: what is missing.
        rank: of this process; it starts with every world_size-th unit.
        world_size: ranks that fill the same arenas.
    """

    def __init__(self, units: Sequence[FillUnit], rank: int, world_size: int) -> None:
        own = list(units[rank::world_size])
        # From the end, so that ranks which finish early meet the others as late as possible.
        rest = [unit for place, unit in enumerate(units) if place % world_size != rank][::-1]
        self._units = own + rest
        self._closing = threading.Event()
        self._done = threading.Event()
        self.seconds = 0.0
        self._thread: threading.Thread | None = None
        if not self._units:
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
        decoder = FrameDecoder()
        try:
            for unit in self._units:
                if self._closing.is_set():
                    return
                missing = np.intersect1d(unit.rows, unit.source.missing(), assume_unique=True)
                if len(missing):
                    unit.source.fill(missing, decoder)
            for source in {id(unit.source): unit.source for unit in self._units}.values():
                source.sync()
        except Exception:
            # A batch that needs the frame meets the same error, and has a caller to tell it to.
            _log.warning("the frame cache was not filled", exc_info=True)
        finally:
            decoder.close()
            self.seconds = time.monotonic() - started_s
            self._done.set()

    def close(self) -> None:
        """Ends the thread after the unit it works on."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
