"""Where a sweep or a training keeps its files: a fresh folder, and the log in it."""

import logging
from datetime import UTC, datetime
from pathlib import Path

from lf_ray.clock import Clock
from lf_ray.errors import RecordError, four_parts

_MOST_A_SECOND = 100


def new_folder(parent: Path, clock: Clock) -> Path:
    """Makes a fresh result folder, named after the date so that ids sort; returns where it is.

    Raises:
        RecordError: a hundred were made in this second.
    """
    stamp = datetime.fromtimestamp(clock.wall_s(), UTC).strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{number}" for number in range(2, _MOST_A_SECOND + 1))):
        folder = parent / f"{stamp}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise RecordError(
        four_parts(
            "making a result folder",
            "each sweep and each training has its own",
            f"{_MOST_A_SECOND} of the same second in {parent}",
            "Give another output.dir.",
        )
    )


def log_to(path: Path) -> None:
    """Sends what lf_ray logs to this file, and to no other any more."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logger = logging.getLogger("lf_ray")
    for old in list(logger.handlers):
        logger.removeHandler(old)
        old.close()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
