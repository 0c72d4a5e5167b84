"""What the points not yet tried may give: a small Gaussian process over the space.

Picks among a sampler's candidates and says when a search may end; calls nothing best.
Coordinates are places on the ladders, so that doubling a bucket counts the same at both ends.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lf_ray.protocol import Knobs
from lf_ray.search.space import Space

# P points measured, C candidates, K coordinates, S length scales.
Floats = NDArray[np.float64]

_LENGTHS = (0.15, 0.3, 0.6, 1.2, 2.4)
_FLOOR_FRAC = 0.003
MIN_POINTS = 4
MAX_CLASSES = 2


@dataclass(frozen=True, slots=True)
class Measured:
    """A point and its throughput, with the standard error as a share."""

    knobs: Knobs
    samples_per_s: float
    error_frac: float


def expected_gain_frac(
    space: Space, measured: Sequence[Measured], candidates: Sequence[Knobs]
) -> float:
    """Returns the largest expected improvement over the best, as a share of it.

    The best is what the model makes of the points measured, not the luckiest reading. Infinite
    while too few points are measured, zero where nothing is left to try.
    """
    if not candidates:
        return 0.0
    if len(measured) < MIN_POINTS:
        return math.inf
    model = _Model.of(space, measured)
    wanted_CK = np.array([coordinates(space, knobs) for knobs in candidates])
    best = float(model.posterior(model.known_PK)[0].max())
    return float(model.improvement(wanted_CK, best).max()) / best


def picked(
    space: Space,
    measured: Sequence[Measured],
    candidates: Sequence[Knobs],
    count: int,
    classes: Sequence[object] = (),
) -> list[int]:
    """Returns the indices of the `count` candidates that promise most together.

    Each pick is believed to come out as expected before the next one is made, so that a round
    spreads. Before anything can be modelled the picks lie as far from all others as they can.

    Args:
        space: gives the coordinates.
        measured: what is known.
        candidates: what may be picked.
        count: how many picks; fewer where `classes` leaves no more.
        classes: of each candidate; picks come from at most `MAX_CLASSES` of them.
    """
    wanted_CK = np.array([coordinates(space, knobs) for knobs in candidates])
    believed = list(measured)
    chosen: list[int] = []
    for _ in range(min(count, len(candidates))):
        if len(measured) < MIN_POINTS:
            score_C = _distance(space, believed, wanted_CK)
            value = 1.0
        else:
            model = _Model.of(space, believed)
            best = float(model.posterior(model.known_PK)[0].max())
            score_C = model.improvement(wanted_CK, best)
            value = math.nan
        score_C[[*chosen, *_beyond_classes(classes, chosen)]] = -math.inf
        index = int(np.argmax(score_C))
        if score_C[index] == -math.inf:
            break
        chosen.append(index)
        if math.isnan(value):
            value = float(model.posterior(wanted_CK[index : index + 1])[0][0])
        believed.append(Measured(candidates[index], value, _FLOOR_FRAC))
    return chosen


def _beyond_classes(classes: Sequence[object], chosen: Sequence[int]) -> list[int]:
    used = {classes[index] for index in chosen} if classes else set()
    if len(used) < MAX_CLASSES:
        return []
    return [index for index, item in enumerate(classes) if item not in used]


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


@dataclass(frozen=True, slots=True)
class _Model:
    """A fitted process: values as shares of the largest, centred and scaled."""

    known_PK: Floats
    lower_PP: Floats
    white_P: Floats
    length: float
    mean: float
    scale: float
    top: float

    @classmethod
    def of(cls, space: Space, measured: Sequence[Measured]) -> "_Model":
        """Returns the process with the likeliest length scale."""
        values_P = np.array([item.samples_per_s for item in measured])
        top = float(values_P.max())
        errors_P = np.array([item.error_frac for item in measured])
        known_PK = np.array([coordinates(space, item.knobs) for item in measured])
        mean = float(values_P.mean()) / top
        scale = float(max(values_P.std() / top, 1e-4))
        y_P = (values_P / top - mean) / scale
        noise_P = (np.maximum(errors_P, _FLOOR_FRAC) / scale) ** 2 + 1e-9
        fits: list[tuple[float, float, Floats, Floats]] = []
        for length in _LENGTHS:
            cov_PP = _matern(known_PK, known_PK, length) + np.diag(noise_P)
            lower_PP = np.asarray(np.linalg.cholesky(cov_PP), dtype=np.float64)
            white_P = np.asarray(np.linalg.solve(lower_PP, y_P), dtype=np.float64)
            likelihood = -0.5 * float(white_P @ white_P) - float(np.log(np.diag(lower_PP)).sum())
            fits.append((likelihood, length, lower_PP, white_P))
        _, length, lower_PP, white_P = max(fits, key=lambda fit: fit[0])
        return cls(known_PK, lower_PP, white_P, length, mean, scale, top)

    def posterior(self, wanted_CK: Floats) -> tuple[Floats, Floats]:
        """Returns mean and standard deviation in samples/s."""
        cross_PC = np.linalg.solve(self.lower_PP, _matern(self.known_PK, wanted_CK, self.length))
        variance_C = np.maximum(1 - (cross_PC**2).sum(axis=0), 1e-12)
        mean_C = self.mean + self.scale * (cross_PC.T @ self.white_P)
        return self.top * mean_C, self.top * self.scale * np.sqrt(variance_C)

    def improvement(self, wanted_CK: Floats, best: float) -> Floats:
        """Returns the expected improvement over `best` in samples/s."""
        mean_C, sd_C = self.posterior(wanted_CK)
        z_C = (mean_C - best) / sd_C
        density_C = np.exp(-0.5 * z_C**2) / math.sqrt(2 * math.pi)
        cumulative_C = np.array([0.5 * (1 + math.erf(z / math.sqrt(2))) for z in z_C])
        result: Floats = (mean_C - best) * cumulative_C + sd_C * density_C
        return result


def _distance(space: Space, measured: Sequence[Measured], wanted_CK: Floats) -> Floats:
    """Returns how far each candidate lies from the nearest point, where there is one."""
    if not measured:
        return np.zeros(len(wanted_CK))
    known_PK = np.array([coordinates(space, item.knobs) for item in measured])
    gaps_CPK = wanted_CK[:, None, :] - known_PK[None, :, :]
    result: Floats = np.sqrt((gaps_CPK**2).sum(axis=2)).min(axis=1)
    return result


def _matern(a: Floats, b: Floats, length: float) -> Floats:
    distance = np.sqrt(((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)) / length
    root = math.sqrt(5) * distance
    result: Floats = (1 + root + root**2 / 3) * np.exp(-root)
    return result
