"""The statistics that a data set's groups are scaled by: its own, else computed and kept.

Letters: N rows, B samples, T action horizon, D width of a group.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lf_ray.data.files import joined_hash, read_json, remembered
from lf_ray.data.lerobot.columns import Columns, columns_key
from lf_ray.data.lerobot.meta import Meta
from lf_ray.data.lerobot.modality import Group, Modality, Scaling
from lf_ray.data.lerobot.statistics import ColumnStats, compute_statistics, read_statistics

_NEEDED = {
    Scaling.MIN_MAX: ("min", "max"),
    Scaling.PERCENTILE: ("q01", "q99"),
    Scaling.MEAN_STD: ("mean", "std"),
}


def group_slices(groups: Sequence[Group]) -> dict[str, slice]:
    """Returns where each group lies in the vector of all groups."""
    slices, start = {}, 0
    for group in groups:
        slices[group.name] = slice(start, start + group.width)
        start += group.width
    return slices


class GroupStatistics:
    """Statistics by group, for one data set.

    The data set's own stats.json or episodes_stats.jsonl is taken where it has what the scaling
    needs; relative_stats.json likewise. The rest is computed from the rows once and kept in the
    cache folder, never in the data set's.
    """

    def __init__(
        self, meta: Meta, modality: Modality, columns: Columns, cache_dir: Path | None
    ) -> None:
        self._meta = meta
        self._modality = modality
        self._columns = columns
        self._cache_dir = cache_dir
        self._known = read_statistics(meta.info)

    def state(self) -> dict[str, ColumnStats]:
        """Returns the statistics of each state group."""
        slices = group_slices(self._modality.state)
        return {
            group.name: self._absolute(group, self._columns.state[:, slices[group.name]])
            for group in self._modality.state
        }

    def action(self) -> dict[str, ColumnStats]:
        """Returns the statistics of each action group; by horizon step where it is relative."""
        slices = group_slices(self._modality.action)
        return {
            group.name: self._relative(group)
            if group.is_relative
            else self._absolute(group, self._columns.action[:, slices[group.name]])
            for group in self._modality.action
        }

    def _absolute(self, group: Group, values_ND: NDArray[Any]) -> ColumnStats:
        known = self._known.get(group.column, {})
        needed = _NEEDED[group.scaling]
        if all(name in known and len(known[name]) >= group.end for name in needed):
            return {name: known[name][group.start : group.end] for name in needed}
        return self._kept(group, lambda: compute_statistics(values_ND))

    def _relative(self, group: Group) -> ColumnStats:
        path = self._meta.root / "meta" / "relative_stats.json"
        needed = _NEEDED[group.scaling]
        shape = (self._modality.horizon, group.width)
        if path.exists():
            own = read_json(path).get(group.name) or {}
            stats = {name: np.array(own[name], np.float64) for name in needed if name in own}
            if len(stats) == len(needed) and all(item.shape == shape for item in stats.values()):
                return stats
        return self._kept(group, lambda: self._relative_statistics(group))

    def _relative_statistics(self, group: Group) -> Mapping[str, NDArray[np.float64]]:
        """Returns [T, D] statistics of action minus state, over all samples."""
        horizon = self._modality.horizon
        action = self._columns.action[:, group_slices(self._modality.action)[group.name]]
        state = self._columns.state[:, group_slices(self._modality.state)[group.name]]
        lengths = [episode.num_frames for episode in self._meta.episodes]
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        rows_B = np.concatenate(
            [start + np.arange(max(n - horizon + 1, 0)) for start, n in zip(starts, lengths)]
        ).astype(np.int64)
        steps = [
            compute_statistics(action[rows_B + step] - state[rows_B]) for step in range(horizon)
        ]
        return {name: np.stack([step[name] for step in steps]) for name in steps[0]}

    def _kept(
        self, group: Group, compute: Callable[[], Mapping[str, NDArray[np.float64]]]
    ) -> ColumnStats:
        def as_lists() -> dict[str, Any]:
            return {name: value.tolist() for name, value in compute().items()}

        if self._cache_dir is None:
            return compute()
        rows = columns_key(self._meta, self._modality)
        key = joined_hash([rows, repr(group), str(self._modality.horizon)])
        values = remembered(self._cache_dir / "statistics" / f"{key}.json", as_lists)
        return {name: np.array(value, np.float64) for name, value in values.items()}
