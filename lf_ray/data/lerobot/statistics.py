"""Statistics of vector columns: read from a data set's meta folder, or computed from its rows.

Letters: N rows, D width of a column, T action horizon.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lf_ray.data.files import entry, read_json, read_json_lines
from lf_ray.data.lerobot.meta import Info
from lf_ray.errors import DataError, four_parts

NAMES = ("min", "max", "mean", "std", "q01", "q99")
ColumnStats = Mapping[str, NDArray[np.float64]]
"""Values by statistic: each [D], or [T, D] for relative actions."""


def read_statistics(info: Info) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Returns the statistics of each column that the meta folder has any of.

    Raises:
        DataError: a statistics file is malformed, or holds values that are not finite.
    """
    path = info.root / "meta" / "stats.json"
    if path.exists():
        return _parsed(str(path), read_json(path))
    path = info.root / "meta" / "episodes_stats.jsonl"
    if path.exists():
        rows = [
            _parsed(f"{path}, line {number}", entry(path, row, "stats", dict))
            for number, row in enumerate(read_json_lines(path), 1)
        ]
        return merged_statistics(rows)
    return {}


def compute_statistics(values_ND: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
    """Returns the statistics over the first axis."""
    values = np.asarray(values_ND, np.float64)
    q01, q99 = np.quantile(values, (0.01, 0.99), axis=0)
    return {
        "min": values.min(axis=0),
        "max": values.max(axis=0),
        "mean": values.mean(axis=0),
        "std": values.std(axis=0),
        "q01": q01,
        "q99": q99,
    }


def merged_statistics(
    episodes: list[dict[str, dict[str, NDArray[np.float64]]]],
) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Returns the statistics of a whole set from those of its episodes.

    Quantiles can't be merged and are left out: who needs them computes them.
    """
    merged = {}
    for column in episodes[0]:
        parts = [episode[column] for episode in episodes if column in episode]
        if any(
            name not in part for part in parts for name in ("min", "max", "mean", "std", "count")
        ):
            continue
        count_E1 = np.array([part["count"].reshape(-1)[:1] for part in parts])
        share_E1 = count_E1 / count_E1.sum()
        mean_ED = np.stack([part["mean"].reshape(-1) for part in parts])
        std_ED = np.stack([part["std"].reshape(-1) for part in parts])
        mean_D = (share_E1 * mean_ED).sum(axis=0)
        variance_D = (share_E1 * (std_ED**2 + (mean_ED - mean_D) ** 2)).sum(axis=0)
        merged[column] = {
            "min": np.min([part["min"].reshape(-1) for part in parts], axis=0),
            "max": np.max([part["max"].reshape(-1) for part in parts], axis=0),
            "mean": mean_D,
            "std": np.sqrt(variance_D),
        }
    return merged


def _parsed(source: str, values: Mapping[str, Any]) -> dict[str, dict[str, NDArray[np.float64]]]:
    return {
        column: {
            name: _finite(source, column, name, stats[name])
            for name in (*NAMES, "count")
            if name in stats
        }
        for column, stats in values.items()
        if isinstance(stats, dict)
    }


def _finite(source: str, column: str, name: str, value: Any) -> NDArray[np.float64]:
    try:
        array = np.array(value, np.float64)
    except (TypeError, ValueError):
        array = np.array([np.nan])
    if not np.isfinite(array).all():
        raise DataError(
            four_parts(
                f"reading {source}",
                "statistics must be finite numbers",
                f"{name} of {column}: {str(value)[:80]}",
                "Recompute the file, or delete it: lf-ray then computes what it needs.",
            )
        )
    return array
