"""Fills the frame cache before anything is timed: a sweep waits here, not in its trials. No torch.

A training does not wait: its ranks fill the cache beside the first epoch (`lf_ray.data.loader`).
"""

import os
from collections.abc import Callable

from lf_ray.data.batches.training_set import TrainingSet
from lf_ray.data.frames.fill import ArenaFiller
from lf_ray.data.frames.pool import DecoderPool
from lf_ray.errors import DataError, four_parts

SILENT_S = 600.0
"""A filler that has not finished an episode of a camera for so long is stuck."""

_FEW_FRAMES = 4000
"""Decoded sooner by a thread than processes start."""

_TELL_S = 10.0


def fill_cache(
    training_set: TrainingSet, say: Callable[[str], object], *, silent_s: float = SILENT_S
) -> None:
    """Decodes what the frame cache lacks, by one process a core, and says how far it is.

    What does not fit the cache, and what can't be decoded, is left out.

    Args:
        training_set: opened; nobody else reads from it yet.
        say: takes a line.
        silent_s: how long it may go on without progress.

    Raises:
        DataError: it made no progress.
    """
    training_set.use_cache(True)
    units = training_set.unfilled()
    num_frames = sum(len(unit.rows) for unit in units)
    num_workers = 0 if num_frames < _FEW_FRAMES else os.cpu_count() or 1
    filler = ArenaFiller(units, 0, 1, DecoderPool(num_workers, 1))
    try:
        quiet_s, told = 0.0, -1
        while not filler.wait(min(_TELL_S, silent_s)):
            done = filler.num_done
            quiet_s = 0.0 if done > told else quiet_s + min(_TELL_S, silent_s)
            told = done
            if quiet_s >= silent_s:
                raise _stuck(done, len(units), silent_s)
            say(
                f"Decoding {num_frames} frames into the cache, once for all trials: "
                f"{done / len(units):.0%} (data.cache=false goes without)"
            )
    finally:
        filler.close()


def _stuck(num_done: int, num_units: int, silent_s: float) -> DataError:
    return DataError(
        four_parts(
            "filling the frame cache",
            f"an episode must be decoded within {silent_s:.0f} s",
            f"no progress after {num_done} of {num_units}",
            "See whether the disks of data.path and data.cache_dir answer, or set "
            "data.cache=false.",
        )
    )
