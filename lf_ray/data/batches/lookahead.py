"""Pictures for the next batches, decoded together while the present ones are used.

What is not in an arena is decoded for a window of batches at once: frames that share a keyframe
are then decoded in one run, whichever batch they belong to, and while a window is used the next one
is decoded.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from lf_ray.data.batches.training_set import BatchSource, Pictures
from lf_ray.data.frames.pool import DecoderPool
from lf_ray.data.frames.request import DecodeReply
from lf_ray.data.stream import Picks
from lf_ray.data.video import Frame

WINDOW_BYTES = 192 << 20
"""Decoded pictures of one window; two are held."""

_MAX_BATCHES = 16


@dataclass
class _Window:
    start: int
    batch_size: int
    picks: list[Picks]
    replies: list[Future[DecodeReply]]
    pictures: dict[int, dict[int, Frame]] = field(default_factory=dict)
    is_collected: bool = False


class Lookahead:
    """Picks and pictures of batches, window by window.

    Args:
        source: the training set.
        picks_at: returns the picks of the batch that starts at a position.
        step: positions between two batches of one rank, by batch size.
    """

    def __init__(
        self,
        source: BatchSource,
        picks_at: Callable[[int, int], Picks],
        step: Callable[[int], int],
    ) -> None:
        self._source = source
        self._picks_at = picks_at
        self._step = step
        self._windows: list[_Window] = []

    def batch(self, position: int, batch_size: int, pool: DecoderPool) -> tuple[Picks, Pictures]:
        """Returns the picks and pictures of the batch at a position."""
        step = self._step(batch_size)
        while True:
            if not self._windows or self._windows[0].batch_size != batch_size:
                self._windows = [self._open(position, batch_size, pool)]
            window = self._windows[0]
            place, rest = divmod(position - window.start, step)
            if 0 <= place < len(window.picks) and not rest:
                break
            # The next window where the order goes on, else anew.
            follows = position == window.start + step * len(window.picks)
            self._windows = self._windows[1:] if follows else []
        if len(self._windows) == 1:
            end = window.start + step * len(window.picks)
            self._windows.append(self._open(end, batch_size, pool))
        return window.picks[place], self._collected(window)

    def again(self, picks: Picks, pool: DecoderPool) -> Pictures:
        """Returns the pictures of picks that no window foresaw."""
        replies = pool.submit(self._source.requests([picks]))
        return self._collected(_Window(0, 0, [picks], replies))

    def forget(self) -> None:
        """Drops what was decoded ahead."""
        for window in self._windows:
            for reply in window.replies:
                reply.cancel()
        self._windows = []

    def _open(self, start: int, batch_size: int, pool: DecoderPool) -> _Window:
        batch_bytes = int(np.prod(self._source.image_shape(batch_size)))
        num_batches = min(max(WINDOW_BYTES // max(batch_bytes, 1), 1), _MAX_BATCHES)
        step = self._step(batch_size)
        picks = [self._picks_at(start + step * n, batch_size) for n in range(num_batches)]
        replies = pool.submit(self._source.requests(picks))
        return _Window(start, batch_size, picks, replies)

    def _collected(self, window: _Window) -> Pictures:
        if not window.is_collected:
            for future in window.replies:
                reply = future.result()
                self._source.accept(reply)
                window.pictures.setdefault(reply.camera, {}).update(reply.frames)
            window.is_collected = True
            window.replies = []
        return window.pictures
