"""Writes checkpoints beside the training: the steps go on while the disk is busy."""

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from lf_ray.clock import Clock
from lf_ray.training.checkpoint.folder import remove_partial, write_checkpoint
from lf_ray.training.checkpoint.manifest import Manifest

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """How a write ended; `error` is empty where the checkpoint is on the disk."""

    step: int
    path: str
    seconds: float
    error: str = ""


class Saver:
    """Writes one checkpoint at a time in a thread.

    Args:
        folder: that checkpoints go into.
        keep: how many stay.
        clock: times the writes.
    """

    def __init__(self, folder: Path, keep: int, clock: Clock) -> None:
        self._folder, self._keep, self._clock = folder, keep, clock
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="lf-ray-checkpoint")
        self._pending: Future[Saved] | None = None
        self._news: list[Saved] = []

    def save(self, manifest: Manifest, state: Mapping[str, Tensor]) -> None:
        """Begins to write; waits first where the write before is not done.

        `state` is the saver's from now on: nothing may be written into its tensors.
        """
        self.wait()
        self._pending = self._pool.submit(self._write, manifest, state)

    def news(self) -> list[Saved]:
        """Returns the writes that have ended since the last call."""
        if self._pending is not None and self._pending.done():
            self.wait()
        news, self._news = self._news, []
        return news

    def wait(self) -> None:
        """Waits until nothing is being written."""
        if self._pending is not None:
            self._news.append(self._pending.result())
            self._pending = None

    def close(self) -> None:
        """Ends the thread when it has written what it was given."""
        self._pool.shutdown(wait=True)

    def _write(self, manifest: Manifest, state: Mapping[str, Tensor]) -> Saved:
        began_s = self._clock.monotonic_s()
        path, error = self._folder, ""
        try:
            path = write_checkpoint(self._folder, manifest, state, self._keep)
        except Exception as raised:
            # A full disk must not end a training that could go on: whoever watches is told.
            _log.exception("checkpoint of step %d", manifest.step)
            error = f"{type(raised).__name__}: {raised}"
            # Half a checkpoint would keep the room that the next one needs.
            remove_partial(self._folder)
        seconds = self._clock.monotonic_s() - began_s
        return Saved(step=manifest.step, path=str(path), seconds=seconds, error=error)
