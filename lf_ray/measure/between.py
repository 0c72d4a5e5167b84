"""How far visits of one setting differ, setting by setting.

Re-captures and restarts land differently, and by how much differs too: eager steps on a busy host
move by per cents from visit to visit, captured ones by a fifth of a per cent. One number for all
would make quiet settings look uncertain and restless ones sure; a setting's own few visits can't
say it alone either. So each setting's spread is read from its own visits and drawn towards what
the sweep shows of others, by as much as they are seen to be alike (empirical Bayes): spreads are
log-normal, rise with the noise of single steps by a power that may be none, and centre, width and
power are learnt from all settings on a grid.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from lf_ray.measure.interval import ASSUMED_BETWEEN_FRAC, visit_error_frac
from lf_ray.measure.quantiles import Z_95
from lf_ray.protocol import Interval

MIN_REPEATS = 5

_STEP = 0.15
_SPREADS = np.arange(math.log(1e-4), math.log(0.4), _STEP)
"""Logarithms of the standard deviations that are thought possible; each is 1.16 of the last."""
_CENTRE_SD = 0.8
_WIDTH_SD = 0.8
_POWERS = (0.0, 0.5, 1.0)
_POWER_SHARES = (0.5, 0.25, 0.25)
_LEAST_NOISE = 1e-5

_centre, _width = (
    axis.ravel()
    for axis in np.meshgrid(np.arange(-3.0, 3.4, 0.4), [0.1, 0.4, 0.8, 1.2, 1.6], indexing="ij")
)
"""Of a sweep's log spreads: mean over the assumed one, and standard deviation."""
_PRIOR_H = np.exp(-0.5 * ((_centre / _CENTRE_SD) ** 2 + (_width / _WIDTH_SD) ** 2))
_PRIOR_HF = 1e-300 + np.exp(
    -0.5 * ((_SPREADS - math.log(ASSUMED_BETWEEN_FRAC) - _centre[:, None]) / _width[:, None]) ** 2
)
_PRIOR_HF /= _PRIOR_HF.sum(axis=1, keepdims=True)
_LOG_RATIOS = np.arange(-8.0, 8.0, 0.05)
_REACHED = np.array([NormalDist().cdf(Z_95 * math.exp(ratio)) for ratio in _LOG_RATIOS])
"""Share below 1.96 standard deviations of another size, by the logarithm of that size's ratio."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Between:
    """What visits of one setting differ by, as standard deviations relative to its mean.

    Each stands for all that is possible: 1.96 of it reach as far as the visit-to-visit error does
    in 95 of 100 cases, what is not known of it included.

    Attributes:
        own: by the name of the setting.
        assumed: whether too few repeats exist to know anything of it.
    """

    own: Mapping[str, float] = field(default_factory=dict)
    assumed: bool = True

    @property
    def typical(self) -> float:
        """Returns what visits of the middle setting differ by, for one that is not known yet."""
        return float(np.median(list(self.own.values()))) if self.own else ASSUMED_BETWEEN_FRAC

    def of(self, name: str) -> float:
        """Returns what visits of this setting differ by."""
        return self.own.get(name, self.typical)


def between_visits(visits: Mapping[str, Sequence[Interval]]) -> Between:
    """Returns how far visits differ, learnt from all settings that were visited more than once.

    Args:
        visits: the single-visit intervals of each setting, within part only, at least one each.
    """
    if sum(len(group) - 1 for group in visits.values()) < MIN_REPEATS:
        return Between()
    within_G = np.array([_within(group) for group in visits.values()])
    steps_G = np.array([np.mean([visit.num_steps for visit in g]) for g in visits.values()])
    noise_G = np.log(np.maximum(np.sqrt(within_G * steps_G), _LEAST_NOISE))
    noise_G -= noise_G.mean()
    log_B, post_B = [], []
    for power, share in zip(_POWERS, _POWER_SHARES):
        seen_GF = np.array(
            [
                _likelihood(group, within, _SPREADS + power * noise)
                for group, within, noise in zip(visits.values(), within_G, noise_G)
            ]
        )
        alike_GH = seen_GF @ _PRIOR_HF.T
        log_H = np.log(_PRIOR_H) + np.log(alike_GH).sum(axis=0)
        weights_H = np.exp(log_H - log_H.max())
        log_B.append(math.log(share) + float(log_H.max()) + math.log(float(weights_H.sum())))
        share_GF = seen_GF * ((weights_H / alike_GH) @ _PRIOR_HF)
        post_B.append(share_GF / share_GF.sum(axis=1, keepdims=True))
    weights_B = np.exp(np.array(log_B) - max(log_B))
    weights_B /= weights_B.sum()
    own = {}
    for place, name in enumerate(visits):
        spreads = np.concatenate([_SPREADS + power * noise_G[place] for power in _POWERS])
        shares = np.concatenate([w * post[place] for w, post in zip(weights_B, post_B)])
        own[name] = _stands_for(spreads, shares)
    return Between(own, assumed=False)


def _within(visits: Sequence[Interval]) -> float:
    return float(np.mean([visit_error_frac(visit) ** 2 for visit in visits]))


def _likelihood(visits: Sequence[Interval], within: float, spreads_F: Floats) -> Floats:
    """Returns how likely visits that differ like these are, by the log of their spread."""
    if len(visits) == 1:
        return np.ones_like(spreads_F)
    values = np.array([visit.value for visit in visits])
    squares = float(((values / values.mean() - 1) ** 2).sum())
    variance_F = np.exp(2 * spreads_F) + within
    log_F = -0.5 * ((len(visits) - 1) * np.log(variance_F) + squares / variance_F)
    return np.asarray(np.exp(log_F - log_F.max()) + 1e-30)


def _stands_for(spreads: Floats, shares: Floats) -> float:
    """Returns the one standard deviation whose 95 % reach is that of a mixture of several."""
    lo, hi = float(spreads.min()), float(spreads.max())
    for _ in range(14):
        middle = (lo + hi) / 2
        reached = shares @ np.interp(middle - spreads, _LOG_RATIOS, _REACHED)
        lo, hi = (middle, hi) if reached < 0.975 else (lo, middle)
    return math.exp((lo + hi) / 2)
