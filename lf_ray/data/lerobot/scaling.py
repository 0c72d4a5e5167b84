"""From raw joint values to numbers near [-1, 1], group by group.

Letters: B samples, T action horizon, D width of all groups together.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from lf_ray.data.lerobot.modality import Group, Scaling
from lf_ray.data.lerobot.statistics import ColumnStats

Vector = NDArray[np.float32]
_SAME = 1e-8
_BOUNDS = {Scaling.MIN_MAX: ("min", "max"), Scaling.PERCENTILE: ("q01", "q99")}


class VectorScaler:
    """Scales the concatenation of groups.

    Min-max (or 1 % to 99 %) lands in [-1, 1] and is clipped there; mean-std is not clipped. A
    dimension that never changes becomes 0.

    Args:
        groups: in the order of the vector.
        stats: of each group's values, sliced to the group: [D] or, by horizon step, [T, D].
    """

    def __init__(self, groups: Sequence[Group], stats: Mapping[str, ColumnStats]) -> None:
        parts = [_affine(group, stats[group.name]) for group in groups]
        self._shift = _joined([shift for shift, _, _ in parts])
        self._factor = _joined([factor for _, factor, _ in parts])
        self._limit = _joined([limit for _, _, limit in parts])

    def scaled(self, values: Vector) -> Vector:
        """Returns the numbers that the model sees, for [..., D] or [..., T, D]."""
        out = (values - self._shift) * self._factor
        return np.clip(out, -self._limit, self._limit, out=out)

    def unscaled(self, values: Vector) -> Vector:
        """Returns joint values again, within their bounds; of a constant dimension its value."""
        with np.errstate(divide="ignore", invalid="ignore"):
            within = np.clip(values, -self._limit, self._limit)
            raw = np.where(self._factor == 0, 0.0, within / self._factor) + self._shift
        return np.asarray(raw, np.float32)


def _affine(group: Group, stats: ColumnStats) -> tuple[Vector, Vector, Vector]:
    """Returns shift, factor and limit: (x - shift) * factor, clipped to +-limit."""
    if group.scaling is Scaling.MEAN_STD:
        shift, half = stats["mean"], stats["std"]
    else:
        low, high = (stats[name] for name in _BOUNDS[group.scaling])
        shift, half = (high + low) / 2, (high - low) / 2
    is_constant = half < _SAME
    factor = np.where(is_constant, 0.0, 1.0 / np.where(is_constant, 1.0, half))
    limit = np.inf if group.scaling is Scaling.MEAN_STD else 1.0
    return (
        np.asarray(shift, np.float32),
        np.asarray(factor, np.float32),
        np.full_like(shift, limit, dtype=np.float32),
    )


def _joined(parts: list[Vector]) -> Vector:
    """Returns [D], or [T, D] where any part has a row for each horizon step."""
    num_steps = max(part.shape[0] if part.ndim == 2 else 1 for part in parts)
    if all(part.ndim == 1 for part in parts):
        return np.concatenate(parts)
    return np.concatenate(
        [np.broadcast_to(part, (num_steps, part.shape[-1])) for part in parts], axis=1
    )
