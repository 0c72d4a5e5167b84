"""How much the frame cache may hold: a bound for all data sets together, and the disk's own.

The arenas that were opened longest ago go first; one that a process has open stays.
"""

import contextlib
import fcntl
import shutil
from collections.abc import Mapping
from pathlib import Path

SPARE_BYTES = 1 << 30
"""Left free on the disk for everybody else."""


def make_room(folder: Path, wanted_bytes: Mapping[str, int], max_bytes: int) -> dict[str, int]:
    """Removes old arenas where the new ones need their room; returns each one's byte limit.

    Args:
        folder: of the arenas.
        wanted_bytes: what each arena that is about to be opened needs, by name.
        max_bytes: of all arenas in the folder.

    Raises:
        OSError: the folder can't be made or read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    others = [path for path in folder.glob("*.frames") if path.stem not in wanted_bytes]
    others.sort(key=lambda path: path.with_suffix(".use").stat().st_mtime_ns)
    wanted = sum(wanted_bytes.values())
    kept_bytes = sum(map(_allocated_bytes, others))
    for path in others:
        if wanted + kept_bytes <= max_bytes and _missing_bytes(folder, wanted_bytes) <= 0:
            break
        freed = _allocated_bytes(path)
        if _removed(path):
            kept_bytes -= freed
    limit = max(min(max_bytes - kept_bytes, wanted - _missing_bytes(folder, wanted_bytes)), 0)
    share = min(limit / max(wanted, 1), 1.0)
    return {name: int(num_bytes * share) for name, num_bytes in wanted_bytes.items()}


def _missing_bytes(folder: Path, wanted_bytes: Mapping[str, int]) -> int:
    """Returns what the disk lacks for the wanted arenas to be full."""
    own = sum(_allocated_bytes(folder / f"{name}.frames") for name in wanted_bytes)
    free = shutil.disk_usage(folder).free - SPARE_BYTES
    return sum(wanted_bytes.values()) - own - free


def _allocated_bytes(path: Path) -> int:
    """Returns what a sparse file really takes."""
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def _removed(path: Path) -> bool:
    """Returns whether an arena was removed; not while anybody has it open."""
    with contextlib.suppress(OSError), path.with_suffix(".use").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for suffix in (".frames", ".state", ".boot"):
            path.with_suffix(suffix).unlink(missing_ok=True)
        return True
    return False
