"""Which slices of which columns a sample is made of: modality.json, or an embodiment's default."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from lf_ray.data.files import read_json
from lf_ray.data.lerobot.meta import Feature, Info
from lf_ray.errors import DataError, four_parts

DEFAULT_HORIZON = 16


class Scaling(StrEnum):
    """How values become numbers near [-1, 1]."""

    MIN_MAX = "min_max"
    PERCENTILE = "percentile"
    MEAN_STD = "mean_std"


@dataclass(frozen=True, slots=True)
class Group:
    """A named slice of a column, for example the left arm's joints.

    Attributes:
        is_relative: actions are taken relative to the state's group of the same name.
    """

    name: str
    column: str
    start: int
    end: int
    scaling: Scaling = Scaling.MIN_MAX
    is_relative: bool = False

    @property
    def width(self) -> int:
        """Returns the number of values."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class View:
    """A camera: its name in the model's prompt order and its feature in info.json."""

    name: str
    feature: str


@dataclass(frozen=True, slots=True)
class Modality:
    """What a sample is made of.

    Attributes:
        task_column: holds the index of the task text of each row.
        horizon: action steps of a sample.
        source: where this came from, for messages.
    """

    state: tuple[Group, ...]
    action: tuple[Group, ...]
    views: tuple[View, ...]
    task_column: str
    horizon: int
    source: str

    @property
    def columns(self) -> list[str]:
        """Returns the columns that hold its vectors, each once."""
        return list(dict.fromkeys(group.column for group in (*self.state, *self.action)))


def read_modality(path: Path) -> Modality:
    """Returns what a modality.json says.

    Raises:
        DataError: the file is missing, malformed, or lacks state, action or video.
    """
    values = read_json(path)
    return parse_modality(values, str(path))


def parse_modality(values: Mapping[str, Any], source: str) -> Modality:
    """Returns the modality that a mapping in the form of modality.json describes."""
    for part in ("state", "action", "video"):
        if not isinstance(values.get(part), dict) or not values[part]:
            _refuse(f"{source} must have a non-empty {part!r}", f"{values.get(part)!r}")
    views = tuple(
        View(name, (item or {}).get("original_key", f"observation.images.{name}"))
        for name, item in values["video"].items()
    )
    return Modality(
        state=_groups(values["state"], "observation.state", source),
        action=_groups(values["action"], "action", source),
        views=views,
        task_column=_task_column(values.get("annotation") or {}),
        horizon=int(values.get("action_horizon") or DEFAULT_HORIZON),
        source=source,
    )


def _groups(values: Mapping[str, Any], column: str, source: str) -> tuple[Group, ...]:
    groups = []
    for name, item in values.items():
        try:
            group = Group(
                name=name,
                column=item.get("original_key", column),
                start=int(item["start"]),
                end=int(item["end"]),
                scaling=Scaling(item.get("scaling", Scaling.MIN_MAX)),
                is_relative=bool(item.get("relative", False)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _refuse(f"{name!r} in {source} must have integers start and end", f"{item!r} ({error})")
        if not 0 <= group.start < group.end:
            _refuse(f"{name!r} in {source} must have 0 <= start < end", f"{item!r}")
        groups.append(group)
    return tuple(groups)


def _task_column(annotation: Mapping[str, Any]) -> str:
    names = [name for name in annotation if "task" in name or "description" in name]
    if not names:
        return "task_index"
    item = annotation[names[0]] or {}
    return str(item.get("original_key", f"annotation.{names[0]}"))


def _refuse(rule: str, got: str) -> None:
    raise DataError(
        four_parts(
            "reading the modality",
            rule,
            got,
            "Correct it, or draft a new one with `python -m lf_ray.data check PATH "
            "--write-modality`.",
        )
    )


def draft_modality(info: Info) -> dict[str, Any]:
    """Returns a first modality.json for a data set without one: whole vectors, every camera.

    Cameras without any file are left out. Grippers and joints are best split by hand: groups are
    normalised alike, but relative actions and the model's robot expect their own names.
    """

    def whole(name: str, label: str) -> dict[str, Any]:
        feature = info.features.get(name)
        width = feature.shape[0] if feature and feature.shape else 1
        return {label: {"start": 0, "end": width, "original_key": name}}

    cameras = [item for item in info.features.values() if item.is_camera and has_files(info, item)]
    return {
        "state": whole("observation.state", "state"),
        "action": whole("action", "action"),
        "video": {
            item.name.removeprefix("observation.images."): {"original_key": item.name}
            for item in cameras
        },
        "annotation": {"human.action.task_description": {"original_key": "task_index"}},
    }


def has_files(info: Info, feature: Feature) -> bool:
    """Returns whether any file of a camera is there; pictures inside parquet count."""
    if feature.dtype == "image":
        return True
    pattern = re.sub(r"\{(?!video_key)[^}]*\}", "*", info.video_pattern)
    return any(info.root.glob(pattern.format(video_key=feature.name)))
