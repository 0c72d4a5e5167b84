"""What the points not yet tried may give: a small Gaussian process over the space.

Picks among a sampler's candidates and says when a search may end; calls nothing best. It models
the logarithm of the throughput, in which knobs that act each on its own add up: a knob's effect is
learnt from all points, whatever their other knobs are. What knobs do together is expected to be as
small as the product of what they do alone, and learnt where it is not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lf_ray.protocol import Knobs
from lf_ray.search.plan.decisions import Told
from lf_ray.search.samplers.effects import Covariance, encoded, fitted
from lf_ray.search.space import Space

# P points measured, C candidates.
Floats = NDArray[np.float64]

_FLOOR_FRAC = 0.003
MIN_POINTS = 4
MIN_MODELLED = 2
MAX_CLASSES = 2
_MAX_LATEST = 60
_MAX_FASTEST = 60


@dataclass(frozen=True, slots=True)
class Measured:
    """A point and its throughput, with the standard error as a share."""

    knobs: Knobs
    samples_per_s: float
    error_frac: float


def measured_of(told: Sequence[Told]) -> list[Measured]:
    """Returns what the process is fitted to; a point that can't run says nothing of speed.

    Of very many points the fastest and the latest: fitting takes time with their third power.
    """
    measured = [
        Measured(item.knobs, item.samples_per_s, item.error_frac)
        for item in told
        if item.samples_per_s is not None
    ]
    older, latest = measured[:-_MAX_LATEST], measured[-_MAX_LATEST:]
    fastest = sorted(older, key=lambda item: -item.samples_per_s)[:_MAX_FASTEST]
    return [*fastest, *latest]


@dataclass(frozen=True, slots=True)
class Worth:
    """What makes a candidate worth a visit beside the throughput that it promises.

    Attributes:
        fits_C: probability that it can run at all.
        change_s_C: seconds until its first step.
        samples_C: samples that its visit takes.
        classes: of each candidate; picks come from at most `MAX_CLASSES` of them; empty: no limit.
    """

    fits_C: Floats
    change_s_C: Floats
    samples_C: Floats
    classes: Sequence[object] = ()

    @classmethod
    def alike(cls, num: int, classes: Sequence[object] = ()) -> "Worth":
        """Returns what holds where all of `num` candidates fit and cost the same."""
        return cls(np.ones(num), np.ones(num), np.zeros(num), classes)


def expected_gain_frac(
    space: Space,
    measured: Sequence[Measured],
    candidates: Sequence[Knobs],
    fits_C: Floats | None = None,
) -> float:
    """Returns the largest expected improvement over the best, as a share of it.

    The best is what the model makes of the points measured, not the luckiest reading. Infinite
    while too few points are measured, zero where nothing is left to try.
    """
    if not candidates:
        return 0.0
    if len(measured) < MIN_POINTS:
        return math.inf
    gain_C = _Model.of(space, measured).improvement(encoded(space, candidates))
    return float((gain_C if fits_C is None else gain_C * fits_C).max())


def picked(
    space: Space,
    measured: Sequence[Measured],
    candidates: Sequence[Knobs],
    count: int,
    worth: Worth | None = None,
) -> list[int]:
    """Returns the indices of the `count` candidates that promise most for what they cost together.

    Each pick is believed to come out as expected before the next one is made, so that a round
    spreads. Before anything can be modelled the picks lie as far from all others as they can.
    """
    worth = worth or Worth.alike(len(candidates))
    wanted_CK = encoded(space, candidates)
    believed = list(measured)
    chosen: list[int] = []
    covariance: Covariance | None = None
    for _ in range(min(count, len(candidates))):
        if len(measured) < MIN_MODELLED:
            known_PK = encoded(space, [item.knobs for item in believed])
            score_C = _distance(known_PK, wanted_CK) * worth.fits_C
            rates_C = np.ones(len(candidates))
        else:
            model = _Model.of(space, believed, covariance)
            covariance = model.covariance
            rates_C = np.exp(model.posterior(wanted_CK)[0])
            cost_s_C = worth.change_s_C + worth.samples_C / rates_C
            score_C = model.improvement(wanted_CK) * worth.fits_C / cost_s_C
        score_C[[*chosen, *_beyond_classes(worth.classes, chosen)]] = -math.inf
        index = int(np.argmax(score_C))
        if score_C[index] == -math.inf:
            break
        chosen.append(index)
        believed.append(Measured(candidates[index], float(rates_C[index]), _FLOOR_FRAC))
    return chosen


def _beyond_classes(classes: Sequence[object], chosen: Sequence[int]) -> list[int]:
    used = {classes[index] for index in chosen} if classes else set()
    if len(used) < MAX_CLASSES:
        return []
    return [index for index, item in enumerate(classes) if item not in used]


@dataclass(frozen=True, slots=True)
class _Model:
    """A fitted process: logarithms of throughput about their mean."""

    known_PK: Floats
    covariance: Covariance
    lower_PP: Floats
    white_P: Floats
    mean: float

    @classmethod
    def of(
        cls, space: Space, measured: Sequence[Measured], covariance: Covariance | None = None
    ) -> "_Model":
        """Returns the process; how much each knob does is fitted unless it is handed in."""
        logs_P = np.log([item.samples_per_s for item in measured])
        mean = float(logs_P.mean())
        errors_P = np.maximum([item.error_frac for item in measured], _FLOOR_FRAC)
        known_PK = encoded(space, [item.knobs for item in measured])
        if covariance is None:
            covariance = fitted(space, known_PK, logs_P - mean, errors_P)
        cov_PP = covariance.between(known_PK, known_PK) + np.diag(covariance.noise(errors_P))
        lower_PP = np.asarray(np.linalg.cholesky(cov_PP), dtype=np.float64)
        white_P = np.asarray(np.linalg.solve(lower_PP, logs_P - mean), dtype=np.float64)
        return cls(known_PK, covariance, lower_PP, white_P, mean)

    def posterior(self, wanted_CK: Floats) -> tuple[Floats, Floats]:
        """Returns mean and standard deviation of the logarithms."""
        cross_PC = np.linalg.solve(self.lower_PP, self.covariance.between(self.known_PK, wanted_CK))
        variance_C = np.maximum(self.covariance.own - (cross_PC**2).sum(axis=0), 1e-12)
        return self.mean + cross_PC.T @ self.white_P, np.sqrt(variance_C)

    def improvement(self, wanted_CK: Floats) -> Floats:
        """Returns the expected improvement over the best known point, as a share of it."""
        best = float(self.posterior(self.known_PK)[0].max())
        mean_C, sd_C = self.posterior(wanted_CK)
        z_C = (mean_C - best) / sd_C
        density_C = np.exp(-0.5 * z_C**2) / math.sqrt(2 * math.pi)
        cumulative_C = np.array([0.5 * (1 + math.erf(z / math.sqrt(2))) for z in z_C])
        result: Floats = (mean_C - best) * cumulative_C + sd_C * density_C
        return result


def _distance(known_PK: Floats, wanted_CK: Floats) -> Floats:
    """Returns how far each candidate lies from the nearest point, where there is one."""
    if not len(known_PK):
        return np.zeros(len(wanted_CK))
    gaps_CPK = np.minimum(np.abs(wanted_CK[:, None, :] - known_PK[None, :, :]), 1.0)
    result: Floats = np.sqrt((gaps_CPK**2).sum(axis=2)).min(axis=1)
    return result
