"""How far visits of one setting differ, setting by setting.

Re-captures and restarts land differently, and by how much differs too: eager steps on a busy host
move by per cents from visit to visit, captured ones by a fifth of a per cent. One number for all
would make quiet settings look uncertain and restless ones sure; a setting's own few visits can't
say it alone either. So each setting's spread is read from its own visits and drawn towards what
the sweep shows of others, by as much as they are seen to be alike (empirical Bayes): spreads are
log-normal with a heavier tail, rise with the noise of single steps by a power that may be none,
and centre, width and power are learnt from all settings on a grid.

Shape suffixes: G settings, F spreads on the grid, H pairs of centre and width, B powers.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from lf_ray.measure.interval import ASSUMED_BETWEEN_FRAC, visit_error_frac
from lf_ray.measure.quantiles import Z_95
from lf_ray.protocol import Interval

Floats = NDArray[np.float64]

# Logarithms of the standard deviations that are thought possible; each is 1.16 of the last.
_SPREADS_F = np.arange(math.log(1e-4), math.log(0.4), 0.15)
# How sure the assumed spread is of a whole sweep (a factor of 2.2 either way), and how much
# settings of one sweep may differ (a factor of 2.2 is usual, of 10 is not ruled out).
_CENTRE_SD, _WIDTH_SD = 0.8, 0.8
_TAIL_SHARE, _TAIL_SD = 0.07, 1.6
"""One setting in fourteen may be of another kind than all others."""
_POWERS_B = np.array([0.0, 0.5, 1.0])
_POWER_SHARES_B = np.array([0.5, 0.25, 0.25])
_LEAST_NOISE = 1e-5
"""Of single steps, as a share: below a clock's resolution there is nothing to tell apart."""
_NOTCH = 0.02
"""Results are rounded to 2 %, so that they stay as they are while nothing of weight is added."""


def _priors() -> tuple[Floats, Floats]:
    """Returns the shares of a sweep's spreads by centre and width, and how likely these are."""
    centre_H, width_H = (
        axis.ravel()
        for axis in np.meshgrid(np.arange(-3.0, 3.4, 0.4), [0.1, 0.4, 0.8, 1.2, 1.6], indexing="ij")
    )
    away_HF = _SPREADS_F - math.log(ASSUMED_BETWEEN_FRAC) - centre_H[:, None]
    shares_HF = np.exp(-0.5 * (away_HF / width_H[:, None]) ** 2)
    tail_HF = np.exp(-0.5 * (away_HF / _TAIL_SD) ** 2)
    shares_HF /= shares_HF.sum(axis=1, keepdims=True)
    tail_HF /= tail_HF.sum(axis=1, keepdims=True)
    likely_H = np.exp(-0.5 * ((centre_H / _CENTRE_SD) ** 2 + (width_H / _WIDTH_SD) ** 2))
    return (1 - _TAIL_SHARE) * shares_HF + _TAIL_SHARE * tail_HF, likely_H / likely_H.sum()


_PRIOR_HF, _PRIOR_H = _priors()
_LOG_RATIOS = np.arange(-8.0, 8.0, 0.05)
_REACHED = np.array([NormalDist().cdf(Z_95 * math.exp(ratio)) for ratio in _LOG_RATIOS])
"""Share below 1.96 standard deviations of another size, by the logarithm of that size's ratio."""


def between_visits(visits: Mapping[str, Sequence[Interval]]) -> dict[str, float]:
    """Returns what visits of each setting differ by, as a share of its mean.

    Each number stands for all spreads that are possible: 1.96 of it reach as far as the error from
    visit to visit does in 95 of 100 cases, what is not known of that error included. While nothing
    was visited twice it is the assumed one for all.

    Args:
        visits: the single-visit intervals of each setting, within part only, at least one each.
    """
    count_G = np.array([len(group) for group in visits.values()])
    if not (count_G > 1).any():
        return dict.fromkeys(visits, ASSUMED_BETWEEN_FRAC)
    within_G = np.array([_within(group) for group in visits.values()])
    steps_G = np.array([np.mean([visit.num_steps for visit in g]) for g in visits.values()])
    noise_G = np.log(np.maximum(np.sqrt(within_G * steps_G), _LEAST_NOISE))
    spreads_BGF = _SPREADS_F + (_POWERS_B[:, None] * (noise_G - noise_G.mean()))[:, :, None]
    squares_G = np.array([_squares(group) for group in visits.values()])
    variance_BGF = np.exp(2 * spreads_BGF) + within_G[:, None]
    log_BGF = -0.5 * (
        (count_G - 1)[:, None] * np.log(variance_BGF) + squares_G[:, None] / variance_BGF
    )
    most_BG = log_BGF.max(axis=2)
    seen_BGF = np.exp(log_BGF - most_BG[:, :, None])
    alike_BGH = seen_BGF @ _PRIOR_HF.T + 1e-300
    log_BH = (np.log(alike_BGH) + most_BG[:, :, None]).sum(axis=1)
    log_BH += np.log(_PRIOR_H) + np.log(_POWER_SHARES_B)[:, None]
    weights_BH = np.exp(log_BH - log_BH.max())
    weights_BH /= weights_BH.sum()
    shares_BGF = seen_BGF * ((weights_BH[:, None, :] / alike_BGH) @ _PRIOR_HF)
    num = len(visits)
    stands_for_G = _stands_for(
        spreads_BGF.transpose(1, 0, 2).reshape(num, -1),
        shares_BGF.transpose(1, 0, 2).reshape(num, -1),
    )
    return dict(zip(visits, map(float, stands_for_G)))


def _within(visits: Sequence[Interval]) -> float:
    return float(np.mean([visit_error_frac(visit) ** 2 for visit in visits]))


def _squares(visits: Sequence[Interval]) -> float:
    values = np.array([visit.value for visit in visits])
    return float(((values / values.mean() - 1) ** 2).sum())


def _stands_for(spreads_GS: Floats, shares_GS: Floats) -> Floats:
    """Returns the one standard deviation whose 95 % reach is that of a mixture of S others."""
    shares_GS = shares_GS / shares_GS.sum(axis=1, keepdims=True)
    lo_G, hi_G = spreads_GS.min(axis=1), spreads_GS.max(axis=1)
    while (hi_G - lo_G).max() > _NOTCH / 4:
        middle_G = (lo_G + hi_G) / 2
        reached_GS = np.interp(middle_G[:, None] - spreads_GS, _LOG_RATIOS, _REACHED)
        is_short_G = (shares_GS * reached_GS).sum(axis=1) < 0.975
        lo_G = np.where(is_short_G, middle_G, lo_G)
        hi_G = np.where(is_short_G, hi_G, middle_G)
    return np.asarray(np.exp(np.round((lo_G + hi_G) / 2 / _NOTCH) * _NOTCH))
