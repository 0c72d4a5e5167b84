"""Embodiments: which modality and which of the model's slots a data set is trained with."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lf_ray.data.lerobot.meta import Info
from lf_ray.data.lerobot.modality import Modality, parse_modality, read_modality
from lf_ray.errors import DataError, four_parts, nearest

FALLBACK = "new_embodiment"


def _poses(names: str, gripper_width: int = 1, scaling: str = "min_max") -> dict[str, Any]:
    """Returns groups of one value each, and a gripper at the end."""
    groups: dict[str, Any] = {
        name: {"start": index, "end": index + 1, "scaling": scaling}
        for index, name in enumerate(names.split())
    }
    start = len(groups)
    return groups | {"gripper": {"start": start, "end": start + gripper_width}}


def _cameras(names: str) -> dict[str, Any]:
    return {name: {"original_key": f"observation.images.{name}"} for name in names.split()}


# The public sets that are used without a modality.json of their own.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "libero_panda": {
        "state": _poses("x y z roll pitch yaw", gripper_width=2),
        "action": _poses("x y z roll pitch yaw"),
        "video": _cameras("image wrist_image"),
    },
    "oxe_widowx": {
        "state": _poses("x y z roll pitch yaw pad", scaling="mean_std"),
        "action": _poses("x y z roll pitch yaw", scaling="mean_std"),
        "video": _cameras("image_0"),
        "action_horizon": 8,
    },
    "oxe_google": {
        "state": _poses("x y z rx ry rz rw"),
        "action": _poses("x y z roll pitch yaw"),
        "video": _cameras("image"),
        "action_horizon": 8,
    },
}


@dataclass(frozen=True, slots=True)
class Embodiment:
    """An embodiment tag and its slot in the model's category-specific layers."""

    tag: str
    slot: int


def choose_embodiment(info: Info, tag: str | None, slots: Mapping[str, int]) -> Embodiment:
    """Returns the asked-for embodiment, else the one that the robot's name starts with.

    Raises:
        DataError: the model has no slot of that name.
    """
    if tag is None:
        robot = info.robot_type.lower()
        named = [name for name in slots if robot.startswith(name)]
        tag = max(named, key=len) if named else FALLBACK
    if tag not in slots:
        raise DataError(
            four_parts(
                "choosing the embodiment",
                f"the model has slots for {', '.join(sorted(slots))}",
                f"{tag!r}",
                f"Set data.embodiment to one of them; the nearest are {nearest(tag, slots)}.",
            )
        )
    return Embodiment(tag, slots[tag])


def choose_modality(info: Info, embodiment: Embodiment, override: str | None) -> Modality:
    """Returns the modality of `override`, of the data set, or of the embodiment, in this order.

    Raises:
        DataError: there is none, or it is malformed.
    """
    if override is not None:
        return read_modality(Path(override).expanduser())
    own = info.root / "meta" / "modality.json"
    if own.exists():
        return read_modality(own)
    if embodiment.tag in DEFAULTS:
        return parse_modality(DEFAULTS[embodiment.tag], f"the default of {embodiment.tag}")
    raise DataError(
        four_parts(
            "choosing the modality",
            f"a data set of {embodiment.tag} needs meta/modality.json or data.modality=FILE",
            f"neither in {info.root}",
            f"Draft one: `python -m lf_ray.data check {info.root} --write-modality`, then split "
            "the vectors into the robot's parts.",
        )
    )
