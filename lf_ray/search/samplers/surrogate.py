"""How much the points not yet tried may still give: a small Gaussian process over the space.

Used to stop a search, not to call anything best. Coordinates are places on the ladders, so that
doubling a bucket counts the same at both ends.
"""

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from lf_ray.protocol import Knobs
from lf_ray.search.plan.state import SweepState
from lf_ray.search.space import Space

# P points measured, C candidates, K coordinates.
Floats = NDArray[np.float64]

_LENGTHS = (0.2, 0.4, 0.8, 1.6)
_MAX_CANDIDATES = 2000
_FLOOR_FRAC = 0.003


def expected_gain_frac(state: SweepState) -> float:
    """Returns the largest expected improvement over the best, as a share of the best.

    Infinite while fewer than four points are measured, zero where nothing is left to try.
    """
    measured = [p for p in state.points.values() if p.throughput is not None]
    candidates = [
        knobs
        for knobs in itertools.islice(state.space.points(), _MAX_CANDIDATES)
        if state.ruled_out(knobs) is None
    ]
    if not candidates:
        return 0.0
    if len(measured) < 4 or state.best is None:
        return math.inf
    values = np.array([p.throughput.value for p in measured if p.throughput])
    errors = np.array([p.throughput.half_width_frac / 1.96 for p in measured if p.throughput])
    known_PK = np.array([coordinates(state.space, p.knobs) for p in measured])
    wanted_CK = np.array([coordinates(state.space, knobs) for knobs in candidates])
    mean_C, sd_C = _posterior(known_PK, values / values.max(), errors, wanted_CK)
    return float(_expected_improvement(mean_C, sd_C, _best_share(state, values.max())).max())


def coordinates(space: Space, knobs: Knobs) -> list[float]:
    """Returns a point as numbers in [0, 1]: places on number ladders, one per word otherwise."""
    found: list[float] = []
    for name, values in space.choices.items():
        if len(values) < 2:
            continue
        value = knobs[name]
        if all(isinstance(item, int | float) for item in values):
            numbers = [float(item) for item in values]
            place = float(np.interp(float(value), numbers, np.arange(len(numbers))))
            found.append(place / (len(numbers) - 1))
        else:
            found.extend(0.5 * (item == value) for item in values)
    return found


def _best_share(state: SweepState, top: float) -> float:
    best = state.best
    assert best is not None
    assert best.throughput is not None
    return best.throughput.value / top


def _posterior(
    known_PK: Floats, values_P: Floats, errors_P: Floats, wanted_CK: Floats
) -> tuple[Floats, Floats]:
    """Returns mean and standard deviation at the candidates, for the likeliest length scale."""
    mean = float(values_P.mean())
    scale = float(max(values_P.std(), 1e-4))
    y_P = (values_P - mean) / scale
    noise_P = (np.maximum(errors_P, _FLOOR_FRAC) / scale) ** 2
    best: tuple[float, Floats, Floats] | None = None
    for length in _LENGTHS:
        cov_PP = _matern(known_PK, known_PK, length) + np.diag(noise_P)
        lower_PP = np.linalg.cholesky(cov_PP + 1e-9 * np.eye(len(y_P)))
        white_P = np.linalg.solve(lower_PP, y_P)
        likelihood = -0.5 * float(white_P @ white_P) - float(np.log(np.diag(lower_PP)).sum())
        if best is None or likelihood > best[0]:
            cross_PC = np.linalg.solve(lower_PP, _matern(known_PK, wanted_CK, length))
            variance_C = np.maximum(1 - (cross_PC**2).sum(axis=0), 1e-12)
            best = (likelihood, cross_PC.T @ white_P, np.sqrt(variance_C))
    assert best is not None
    return mean + scale * best[1], scale * best[2]


def _matern(a: Floats, b: Floats, length: float) -> Floats:
    distance = np.sqrt(((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)) / length
    root = math.sqrt(5) * distance
    result: Floats = (1 + root + root**2 / 3) * np.exp(-root)
    return result


def _expected_improvement(mean_C: Floats, sd_C: Floats, best: float) -> Floats:
    z_C = (mean_C - best) / sd_C
    density_C = np.exp(-0.5 * z_C**2) / math.sqrt(2 * math.pi)
    cumulative_C = np.array([0.5 * (1 + math.erf(z / math.sqrt(2))) for z in z_C])
    result: Floats = ((mean_C - best) * cumulative_C + sd_C * density_C) / best
    return result
