"""Does the modality fit the data set's columns and the model's sizes?"""

from collections.abc import Sequence

from lf_ray.data.checks.problem import Findings
from lf_ray.data.lerobot.meta import Info
from lf_ray.data.lerobot.modality import Group, Modality, has_files
from lf_ray.errors import nearest
from models.groot_n1_6.config import GrootConfig

_DOING = "comparing the modality with the data set"


def check_modality(found: Findings, info: Info, modality: Modality) -> None:
    """Adds problems between the modality and info.json."""
    for part, groups in (("state", modality.state), ("action", modality.action)):
        for group in groups:
            _check_group(found, info, f"{part}.{group.name}", group, modality.source)
    _check_relative(found, modality)
    cameras = {name for name, feature in info.features.items() if feature.is_camera}
    for view in modality.views:
        if view.feature not in cameras:
            found.add(
                _DOING,
                f"the view {view.name!r} of {modality.source} must name a camera of info.json",
                f"original_key {view.feature!r}",
                f"The nearest cameras are {nearest(view.feature, cameras) or 'none'}.",
            )
    unused = sorted(cameras - {view.feature for view in modality.views})
    for name in unused:
        if not has_files(info, info.features[name]):
            found.note(f"info.json lists the camera {name}, which has no files; nothing uses it.")
    if modality.task_column not in info.features and modality.task_column != "task_index":
        found.add(
            _DOING,
            "the annotation must name a column of info.json",
            f"{modality.task_column!r}",
            f"The nearest columns are {nearest(modality.task_column, info.features)}.",
        )


def _check_group(found: Findings, info: Info, name: str, group: Group, source: str) -> None:
    feature = info.features.get(group.column)
    if feature is None:
        found.add(
            _DOING,
            f"{name} of {source} must name a column of info.json",
            f"original_key {group.column!r}",
            f"The nearest columns are {nearest(group.column, info.features)}.",
        )
        return
    width = feature.shape[0] if feature.shape else 1
    if group.end > width:
        found.add(
            _DOING,
            f"{name} of {source} must lie within {group.column}, which has {width} values",
            f"start {group.start}, end {group.end}",
            "Correct start and end.",
        )


def _check_relative(found: Findings, modality: Modality) -> None:
    states = {group.name: group for group in modality.state}
    for group in modality.action:
        if not group.is_relative:
            continue
        state = states.get(group.name)
        if state is None or state.width != group.width:
            found.add(
                _DOING,
                f"the relative action {group.name!r} needs a state group of the same name and "
                f"width ({group.width})",
                f"width {state.width}" if state else f"state groups {', '.join(states)}",
                f"Add it to the state in {modality.source}, or make the action absolute.",
            )


def check_sizes(found: Findings, modality: Modality, config: GrootConfig) -> None:
    """Adds problems between the modality and the model."""
    doing = f"fitting the data to the model {config.size}"
    if not 0 < modality.horizon <= config.action_horizon:
        found.add(
            doing,
            f"action_horizon must be 1 to {config.action_horizon}",
            f"{modality.horizon} in {modality.source}",
            "Lower it, or take the larger model.",
        )
    sums: Sequence[tuple[str, tuple[Group, ...], int]] = (
        ("state", modality.state, config.max_state_dim),
        ("action", modality.action, config.max_action_dim),
    )
    for part, groups, limit in sums:
        width = sum(group.width for group in groups)
        if width > limit:
            found.add(
                doing,
                f"the {part} groups together may have {limit} values",
                f"{width} in {modality.source}",
                "Leave groups out, or take the larger model.",
            )
