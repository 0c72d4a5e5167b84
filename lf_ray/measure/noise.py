"""What a short series of step times says about its own noise: scale, memory, variance of a mean."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]

SCALE_FLOOR_FRAC = 0.002
"""Timers and schedulers make steps differ by this much even where none seems to."""


@dataclass(frozen=True, slots=True)
class Level:
    """A typical step and how far steps usually lie from it; spikes count for nothing."""

    step_s: float
    scale_s: float


def level_of(steps_s: Series) -> Level:
    """Returns median and scaled median deviation."""
    middle = _median(steps_s)
    deviation = _median(np.abs(steps_s - middle)) * 1.4826
    return Level(middle, max(deviation, SCALE_FLOOR_FRAC * middle))


def _median(values: Series) -> float:
    # numpy's own takes ten times as long on so few, and is asked twice a look at a visit.
    ordered, half = np.sort(values), values.size // 2
    if values.size % 2:
        return float(ordered[half])
    return float(ordered[half - 1] + ordered[half]) / 2


def lag_correlation(residuals_s: Series, num_fitted: int = 1) -> float:
    """Returns the correlation of neighbouring steps, corrected for its bias in short series.

    Args:
        residuals_s: steps less what was fitted to them.
        num_fitted: numbers (means, slope) taken out of the series to get these residuals.
    """
    total = float(residuals_s @ residuals_s)
    if total <= 0:
        return 0.0
    raw = float(residuals_s[1:] @ residuals_s[:-1]) / total
    corrected = raw + (num_fitted + 3 * max(raw, 0.0)) / residuals_s.size
    return min(max(corrected, 0.0), 0.8)


def inflation(phi: float, num_steps: int) -> float:
    """Returns n Var(mean of n steps) / Var(step) for a first-order series."""
    if num_steps < 1:
        return 1.0
    full = (1 + phi) / (1 - phi)
    return float(full - 2 * phi * (1 - phi**num_steps) / (num_steps * (1 - phi) ** 2))
