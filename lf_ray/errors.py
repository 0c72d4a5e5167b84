"""Errors that people meet. Every message has four parts; every class pickles.

Parts: what was being done, the rule, what it got (by name), what to change.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class LfRayError(Exception):
    """Root of the errors that this project raises on purpose."""


class ConfigError(LfRayError, ValueError):
    """A setting, override or search space that can't be used."""


class DataError(LfRayError, ValueError):
    """A data set that can't be trained on, or a file of it that can't be read."""


class CheckpointError(LfRayError, ValueError):
    """A checkpoint that can't be loaded, or is of another model."""


class RecordError(LfRayError, ValueError):
    """A journal or record that can't be read, or belongs to another sweep."""


class MachineError(LfRayError, RuntimeError):
    """This machine can't hold what was asked of it."""


class CaptureError(LfRayError, RuntimeError):
    """A step that can't be captured as a CUDA graph."""


class GroupError(LfRayError, RuntimeError):
    """A worker group that could not start, or died."""


class TrainerError(LfRayError, RuntimeError):
    """An outside trainer's process that failed; the worker that watched it is untouched."""


class TrainerHungError(TrainerError):
    """An outside trainer's process that takes no step any more."""


def four_parts(doing: str, rule: str, got: str, change: str) -> str:
    """Returns the one message shape of this project, from its four parts."""
    return f"While {doing}: {rule}. Got {got}. {change}"


def nearest(name: str, known: Iterable[str], limit: int = 3) -> str:
    """Returns the known names closest to `name` as prose, all of them where few are known."""
    names = sorted(known)
    close = get_close_matches(name, names, n=limit, cutoff=0.5)
    if not close and len(names) <= 12:
        close = names
    return ", ".join(close) if close else f"{', '.join(names[:12])}, ..."
