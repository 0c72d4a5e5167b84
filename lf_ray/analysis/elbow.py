"""The elbow of a curve by Kneedle (Satopää, Albrecht, Irwin and Raghavan, 2011), S = 1.

Shown beside the knee and never used for it: it moves with the range that was swept. Its own few
lines, because the package of that name takes four seconds of a core to import, at the end of each
sweep; tests/unit/analysis/test_elbow.py holds the two against each other.
"""

from collections.abc import Sequence

import numpy as np

from lf_ray.analysis.slices import Slice
from lf_ray.protocol import KnobValue

_LEAST_POINTS = 4


def elbow_of(along: Slice) -> KnobValue | None:
    """Returns the ladder value at the curve's elbow, from the cheap side to the best.

    None where the curve has none, and where fewer than four values are usable.
    """
    usable = [
        (reading.value, float(np.mean([visit.throughput.value for visit in reading.visits])))
        for reading in along.readings[: along.best_index + 1]
        if reading.usable
    ]
    if len(usable) < _LEAST_POINTS:
        return None
    found = elbow_index([throughput for _, throughput in usable])
    # At the front it stands for a curve that does not rise at all.
    return usable[found][0] if found else None


def elbow_index(heights: Sequence[float]) -> int | None:
    """Returns where a concave, rising curve of evenly spaced points bends, None where nowhere.

    The curve is scaled to the unit square and the diagonal taken away. The elbow is the first hump
    of what is left behind which it falls by more than the distance of two points before it rises.
    """
    curve = np.asarray(heights, dtype=np.float64)
    height = float(np.ptp(curve))
    if curve.size < 2 or not height > 0:
        return None
    spacing = 1 / (curve.size - 1)
    above = (curve - curve.min()) / height - np.linspace(0, 1, curve.size)
    # An end counts as its own neighbour.
    before, after = np.r_[above[0], above[:-1]], np.r_[above[1:], above[-1]]
    is_hump, is_dip = (above >= before) & (above >= after), (above <= before) & (above <= after)
    hump: int | None = None
    for index in range(curve.size - 1):
        if is_hump[index]:
            hump = index
        if is_dip[index]:
            hump = None
        if hump is not None and above[index + 1] < above[hump] - spacing:
            return hump
    return None
