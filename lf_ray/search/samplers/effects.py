"""How alike two points of a space are: one knob's share of the covariance after the other.

k(x, y) = c + prod over knobs (1 + s^2 g(x, y)) - 1, with s the size of a knob's effect on the
logarithm of the throughput and g the likeness of its two values: of neighbours on a ladder, or of
equal words. The product holds the sum of all knobs' own effects and, smaller, what they do jointly
(functional ANOVA). Sizes and lengths have the highest posterior on small grids.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lf_ray.protocol import Knobs
from lf_ray.search.space import Space

# P points, Q other points, K knobs.
Floats = NDArray[np.float64]

_SIZES = (0.01, 0.03, 0.1, 0.25, 0.6)
_TYPICAL_SIZE = 0.1
_SIZE_SPREAD = 1.2
_LENGTHS = (0.4, 1.5)
_NOISES = (0.0, 0.01, 0.02)
_LEVEL_VARIANCE = 0.25
_SWEEPS = 2


def encoded(space: Space, points: Sequence[Knobs]) -> Floats:
    """Returns points as numbers, a column a varied knob: places on ladders in [0, 1], or words."""
    columns = [_column(space, name, points) for name in _varied(space)]
    return np.array(columns, dtype=np.float64).reshape(len(columns), len(points)).T


def _column(space: Space, name: str, points: Sequence[Knobs]) -> Floats:
    values = space.choices[name]
    if _is_ladder(space, name):
        numbers = np.array([float(value) for value in values])
        at_P = np.array([float(knobs[name]) for knobs in points])
        return np.asarray(np.interp(at_P, numbers, np.linspace(0, 1, len(numbers))))
    words = {value: place for place, value in enumerate(values)}
    return np.array([float(words.get(knobs[name], -1)) for knobs in points])


def _varied(space: Space) -> list[str]:
    return [name for name, values in space.choices.items() if len(values) > 1]


def _is_ladder(space: Space, name: str) -> bool:
    return all(isinstance(value, int | float) for value in space.choices[name])


@dataclass(frozen=True, slots=True)
class _Effect:
    """One knob's part: the size of its effect, and over which share of its ladder it stays alike.

    Attributes:
        length: 0 where the knob's values are words.
    """

    size: float
    length: float

    def likeness(self, at_P: Floats, at_Q: Floats) -> Floats:
        """Returns g for all pairs of two columns."""
        gaps_PQ = np.abs(at_P[:, None] - at_Q[None, :])
        if not self.length:
            return np.asarray(gaps_PQ == 0, dtype=np.float64)
        root_PQ = math.sqrt(5) / self.length * gaps_PQ
        result: Floats = (1 + root_PQ + root_PQ**2 / 3) * np.exp(-root_PQ)
        return result


@dataclass(frozen=True, slots=True)
class Covariance:
    """The covariance of a space's points, given as `encoded` gives them.

    Attributes:
        noise_frac: scatter of readings beyond what their intervals say.
    """

    effects: tuple[_Effect, ...]
    noise_frac: float

    @property
    def own(self) -> float:
        """Returns the variance of every point."""
        return _LEVEL_VARIANCE + math.prod(1 + item.size**2 for item in self.effects) - 1

    def noise(self, errors_P: Floats) -> Floats:
        """Returns the variance of readings with these standard errors."""
        result: Floats = errors_P**2 + self.noise_frac**2 + 1e-9
        return result

    def between(self, one_PK: Floats, other_QK: Floats) -> Floats:
        """Returns the covariance of all pairs."""
        product_PQ = np.ones((len(one_PK), len(other_QK)))
        for item, at_P, at_Q in zip(self.effects, one_PK.T, other_QK.T):
            product_PQ *= 1 + item.size**2 * item.likeness(at_P, at_Q)
        return np.asarray(product_PQ + (_LEVEL_VARIANCE - 1))


def fitted(space: Space, known_PK: Floats, logs_P: Floats, errors_P: Floats) -> Covariance:
    """Returns the likeliest covariance: each size, length and the noise in turn, twice over.

    Args:
        space: tells ladders from words.
        known_PK: points measured.
        logs_P: logarithms of their throughput, about their mean.
        errors_P: standard errors of these.
    """
    lengths = [_LENGTHS if _is_ladder(space, name) else (0.0,) for name in _varied(space)]
    return _Fit(lengths, known_PK, logs_P, errors_P).best()


class _Fit:
    """A search, coordinate by coordinate, for the covariance with the highest posterior."""

    def __init__(
        self,
        lengths: Sequence[Sequence[float]],
        known_PK: Floats,
        logs_P: Floats,
        errors_P: Floats,
    ) -> None:
        self._logs_P = logs_P
        self._errors_P = errors_P
        self._noise = _NOISES[0]
        self._effects = [_Effect(_TYPICAL_SIZE, options[0]) for options in lengths]
        self._alike = [
            {length: _Effect(1.0, length).likeness(at_P, at_P) for length in options}
            for options, at_P in zip(lengths, known_PK.T)
        ]

    def best(self) -> Covariance:
        for _ in range(_SWEEPS):
            for index in range(len(self._effects)):
                others_PP = self._product(without=index)
                rated = [
                    (self._rate(index, item, others_PP), item) for item in self._options(index)
                ]
                _, self._effects[index] = max(rated, key=lambda pair: pair[0])
            whole_PP = self._product()
            self._noise = max(_NOISES, key=lambda noise: self._score(whole_PP, noise))
        return Covariance(tuple(self._effects), self._noise)

    def _options(self, index: int) -> Iterator[_Effect]:
        for length in self._alike[index]:
            for size in _SIZES:
                yield _Effect(size, length)

    def _rate(self, index: int, item: _Effect, others_PP: Floats) -> float:
        product_PP = others_PP * (1 + item.size**2 * self._alike[index][item.length])
        prior = -0.5 * (math.log(item.size / _TYPICAL_SIZE) / _SIZE_SPREAD) ** 2
        return self._score(product_PP, self._noise) + prior

    def _product(self, without: int | None = None) -> Floats:
        product_PP = np.ones((self._logs_P.size, self._logs_P.size))
        for index, item in enumerate(self._effects):
            if index != without:
                product_PP *= 1 + item.size**2 * self._alike[index][item.length]
        return product_PP

    def _score(self, product_PP: Floats, noise_frac: float) -> float:
        cov_PP = product_PP + (_LEVEL_VARIANCE - 1)
        cov_PP[np.diag_indices_from(cov_PP)] += self._errors_P**2 + noise_frac**2 + 1e-9
        lower_PP = np.linalg.cholesky(cov_PP)
        white_P = np.linalg.solve(lower_PP, self._logs_P)
        return -0.5 * float(white_P @ white_P) - float(np.log(np.diag(lower_PP)).sum())
