"""Batches for one rank, made ahead of the step by a thread.

The order is a function of seed and position alone (`lf_ray.data.stream`): workers, prefetch and
cache change when a batch is ready, never what is in it.
"""

import logging
import threading
import time
from collections import deque
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from lf_ray.data.batches.lookahead import Lookahead
from lf_ray.data.batches.opening import open_training_set
from lf_ray.data.batches.sizes import groot_config
from lf_ray.data.batches.skipped import NONE_SKIPPED, Skipped
from lf_ray.data.batches.synthetic import SyntheticSet
from lf_ray.data.batches.training_set import BatchSource
from lf_ray.data.frames.decoder import BadFrame
from lf_ray.data.frames.fill import ArenaFiller
from lf_ray.data.frames.pool import DecoderPool
from lf_ray.data.stream import Picks, SampleStream, rank_positions
from lf_ray.errors import DataError, four_parts
from lf_ray.protocol import KnobValue
from lf_ray.settings import SweepConfig

Batch = dict[str, Tensor]

FIRST_BATCH_S = 600.0
"""How long `next` waits by default: first use decodes whole videos."""

_FILL_FIRST_S = 20.0
"""How long the first batch waits for the frame cache; a larger set is filled beside training."""

_MAX_SUBSTITUTES = 64
_GOLDEN_SHARE = 0.618033988749895
_log = logging.getLogger(__name__)


def open_batch_source(config: SweepConfig) -> BatchSource:
    """Returns what the configuration's batches are made of.

    Raises:
        DataError: the data can't be trained on.
    """
    if config.data.source == "synthetic":
        return SyntheticSet(groot_config(config.model))
    return open_training_set(config.data, config.model)


class BatchLoader:
    """Batches of one rank in a fixed order.

    Args:
        config: settings; `data` and `model` are read.
        rank: of this process in the group.
        world_size: ranks of the group.
        seed: of the order and the augmentation.
        batch_size: samples of a rank's batch.
        device: "cuda" pins the batches' memory.
        source: opened data, to share between loaders; None opens it.

    Attributes:
        bad_frames: frames that could not be had so far, each once.
    """

    def __init__(
        self,
        config: SweepConfig,
        rank: int,
        world_size: int,
        seed: int,
        batch_size: int,
        device: str | torch.device = "cpu",
        source: BatchSource | None = None,
    ) -> None:
        self._owns_source = source is None
        self.source = source or open_batch_source(config)
        self.bad_frames: list[BadFrame] = []
        self._skips = config.data.skip_corrupt
        source = self.source
        self._stream = SampleStream(source.sizes, source.weights, seed, source.blocks, world_size)
        self._rank, self._world_size, self._seed = rank, world_size, seed
        self._batch_size = batch_size
        self._prefetch = max(config.data.prefetch, 1)
        self._is_pinned = torch.device(device).type == "cuda"
        self._decode_threads = config.data.decode_threads
        self._num_workers = config.data.workers
        self._pool = DecoderPool(self._num_workers, self._decode_threads)
        self._lookahead = Lookahead(self.source, self._picks_at, lambda size: size * world_size)
        # Held while a batch is made: who decodes, and whether it is kept, changes in between only.
        self._making = threading.Lock()
        self._changed = threading.Condition()
        self._ready: deque[tuple[Batch, int, Skipped]] = deque()
        self._skipped = NONE_SKIPPED
        self._told_lost = 0
        self._made_position = 0
        self._taken_position = 0
        self._generation = 0
        self._error: Exception | None = None
        self._is_closed = False
        self._caches = config.data.cache
        self.source.use_cache(self._caches)
        self._filler = self._new_filler()
        self._thread = threading.Thread(target=self._produce, name="lf-ray-data", daemon=True)
        self._thread.start()

    @property
    def data_id(self) -> str:
        """Returns the content hash of the data."""
        return self.source.data_id

    @property
    def position(self) -> int:
        """Returns the sample index that the next batch starts at, counted over all ranks."""
        return self._taken_position

    @property
    def epoch_samples(self) -> int:
        """Returns the samples of an epoch over all ranks."""
        return self._stream.epoch_samples

    def worker_pids(self) -> list[int]:
        """Returns the ids of the decoding processes that were started."""
        return self._pool.pids()

    @property
    def is_filling(self) -> bool:
        """Returns whether the frame cache is being filled; a timed block must not run then."""
        return not self._filler.is_done

    def fill(self, deadline_s: float = FIRST_BATCH_S) -> bool:
        """Waits until the frame cache is filled and returns whether it was, in time."""
        return self._filler.wait(deadline_s)

    def in_force(self) -> dict[str, KnobValue]:
        """Returns what feeds the step now, by name; `CacheState` says what data_cache may be."""
        return {
            "data_workers": self._num_workers,
            "data_prefetch": self._prefetch,
            "data_decode_threads": self._decode_threads,
            "data_cache": str(self.source.cache_state()),
        }

    def news(self) -> list[str]:
        """Returns in words what went wrong since it was asked last, and was got over."""
        before, self._told_lost = self._told_lost, self._pool.num_lost
        lost = self._told_lost - before
        times = "once" if lost == 1 else f"{lost} times"
        return [f"a decoding process died {times} and was replaced"] if lost else []

    def take_skipped(self) -> Skipped:
        """Returns what the batches that were taken since the last call lack."""
        with self._changed:
            taken, self._skipped = self._skipped, NONE_SKIPPED
        return taken

    def next(self, deadline_s: float = FIRST_BATCH_S) -> tuple[Batch, float]:
        """Returns the next batch, and the seconds that were waited for it.

        The tensors are the caller's: nothing is written to them again.

        Raises:
            DataError: a frame can't be decoded and is not to be skipped, or the deadline passed.
        """
        started_s = time.monotonic()
        with self._changed:
            while not self._ready:
                if self._error is not None:
                    raise self._error
                left_s = started_s + deadline_s - time.monotonic()
                if self._is_closed or left_s <= 0:
                    raise self._late(deadline_s)
                self._changed.wait(left_s)
            batch, self._taken_position, skipped = self._ready.popleft()
            self._skipped += skipped
            self._changed.notify_all()
        return batch, time.monotonic() - started_s

    def seek(self, sample_index: int) -> None:
        """Goes on at a sample index, counted over all ranks; drops what was made ahead."""
        with self._changed:
            self._restart(sample_index)

    def set(
        self,
        workers: int | None = None,
        prefetch: int | None = None,
        batch_size: int | None = None,
        cache: bool | None = None,
        decode_threads: int | None = None,
    ) -> None:
        """Changes knobs while open; the order of samples stays.

        A cache that is turned on is filled beside what runs: see `fill`.
        """
        self._use_decoders(
            self._num_workers if workers is None else workers,
            self._decode_threads if decode_threads is None else decode_threads,
            self._caches if cache is None else cache,
        )
        with self._changed:
            if prefetch is not None:
                self._prefetch = max(prefetch, 1)
            if batch_size is not None and batch_size != self._batch_size:
                self._batch_size = batch_size
                self._restart(self._taken_position)
            self._changed.notify_all()

    def _use_decoders(self, num_workers: int, threads: int, caches: bool) -> None:
        """Changes who decodes and whether it is kept, between two batches."""
        if (num_workers, threads, caches) == (
            self._num_workers,
            self._decode_threads,
            self._caches,
        ):
            return
        with self._making:
            self._lookahead.forget()
            self._pool.close()
            self._num_workers, self._decode_threads = num_workers, threads
            self._pool, self._told_lost = DecoderPool(num_workers, threads), 0
            if caches != self._caches:
                self._filler.close()
                self._caches = caches
                self.source.use_cache(caches)
                self._filler = self._new_filler()

    def _new_filler(self) -> ArenaFiller:
        return ArenaFiller(
            self.source.unfilled(),
            self._rank,
            self._world_size,
            DecoderPool(self._num_workers, self._decode_threads),
        )

    def _restart(self, position: int) -> None:
        self._ready.clear()
        self._made_position = self._taken_position = position
        self._generation += 1
        self._error = None
        self._changed.notify_all()

    def _late(self, deadline_s: float) -> DataError:
        state = "the loader is closed" if self._is_closed else f"nothing after {deadline_s:.0f} s"
        return DataError(
            four_parts(
                f"waiting for a batch on rank {self._rank}",
                "the loader must deliver before its deadline",
                f"{state}, at sample {self._taken_position}",
                "See data.workers and data.cache, or whether the disk answers.",
            )
        )

    def _produce(self) -> None:
        self._filler.wait(_FILL_FIRST_S)
        while True:
            with self._changed:
                while not self._is_closed and (
                    len(self._ready) >= self._prefetch or self._error is not None
                ):
                    self._changed.wait()
                if self._is_closed:
                    return
                generation, position = self._generation, self._made_position
                batch_size = self._batch_size
            skipped = NONE_SKIPPED
            try:
                with self._making:
                    batch, skipped = self._make(position, batch_size)
                error = None
            except Exception as raised:
                batch, error = {}, raised
            with self._changed:
                if generation == self._generation:
                    self._made_position = position + batch_size * self._world_size
                    self._error = error
                    if error is None:
                        self._ready.append((batch, self._made_position, skipped))
                    self._changed.notify_all()

    def _make(self, position: int, batch_size: int) -> tuple[Batch, Skipped]:
        skipped = NONE_SKIPPED
        picks, pictures = self._lookahead.batch(position, batch_size, self._pool)
        images = torch.empty(
            self.source.image_shape(batch_size), dtype=torch.uint8, pin_memory=self._is_pinned
        )
        for _ in range(_MAX_SUBSTITUTES):
            fields, bad = self.source.arrays(picks, self._seed, pictures, images.numpy())
            if not bad:
                break
            picks = self._substituted(picks, bad)
            skipped += Skipped(len(bad), frozenset(map(str, bad.values())))
            pictures = self._lookahead.again(picks, self._pool)
        else:
            raise _unreadable(next(iter(bad.values())))
        batch = {name: torch.from_numpy(np.ascontiguousarray(fields[name])) for name in fields}
        if self._is_pinned:
            batch = {name: tensor.pin_memory() for name, tensor in batch.items()}
        return {"images_BKHWC": images, **batch}, skipped

    def _picks_at(self, position: int, batch_size: int) -> Picks:
        positions = rank_positions(position, batch_size, self._rank, self._world_size)
        return self._stream.at(positions)

    def _substituted(self, picks: Picks, bad: dict[int, BadFrame]) -> Picks:
        """Returns the picks with other samples in the place of unreadable ones."""
        samples = picks.sample.copy()
        for place, frame in bad.items():
            if not self._skips:
                raise _unreadable(frame)
            if frame not in self.bad_frames:
                _log.warning("skipped %s", frame)
                self.bad_frames.append(frame)
            size = self.source.sizes[int(picks.part[place])]
            samples[place] = (samples[place] + max(round(size * _GOLDEN_SHARE), 1)) % size
        return picks._replace(sample=samples)

    def close(self) -> None:
        """Ends the thread and closes all files; `next` raises from then on."""
        with self._changed:
            self._is_closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._filler.close()
        self._pool.stop()
        self._thread.join()
        self._lookahead.forget()
        self._pool.close()
        if self._owns_source:
            self.source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _unreadable(frame: BadFrame) -> DataError:
    return DataError(
        four_parts(
            "decoding frames for a batch",
            "every frame of a used camera must be decodable",
            str(frame),
            "Restore the file, or set data.skip_corrupt=true to leave such frames out.",
        )
    )
