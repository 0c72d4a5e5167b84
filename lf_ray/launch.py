"""What a sweep is handed from above: where trials run, and what they train on. No torch here."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lf_ray.settings import SweepConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Groups:
    """Warm groups that are starting or up.

    Attributes:
        trainable: a Tune Trainable that answers config["request"] with result["record"].
        num_groups: how many requests may be under way at once.
        resources: of the trainable itself, as Tune takes them.
        left_over: filled when the groups have been closed: what had to be ended by force.
        gone: returns what has ended of what carries the groups, "" while all of it runs.
    """

    trainable: Any
    num_groups: int = 1
    resources: Mapping[str, float] | None = None
    left_over: list[str] = field(default_factory=list)
    gone: Callable[[], str] = lambda: ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """The parts of a sweep that know torch, Ray or the disk, as functions.

    Attributes:
        prepare_data: checks what is trained on, makes the sample set, and returns the data id;
            raises DataError.
        open_groups: starts Ray and the groups for a configuration, logging into a folder; closes
            them and Ray on the way out.
    """

    prepare_data: Callable[[SweepConfig], str]
    open_groups: Callable[[SweepConfig, Path], AbstractContextManager[Groups]]
