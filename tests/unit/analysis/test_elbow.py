"""Our Kneedle says what the package of that name says."""

import warnings

import numpy as np
import pytest

from lf_ray.analysis.elbow import elbow_index


def of_the_package(heights: list[float]) -> int | None:
    from kneed import KneeLocator  # seconds, also for who only collects this file

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where a curve has no elbow
        found = KneeLocator(
            range(len(heights)), heights, curve="concave", direction="increasing"
        ).knee
    return None if found is None else int(found)


@pytest.mark.parametrize("roughness", [0.0, 0.02, 0.2, 3.0])
def test_it_agrees_on_random_curves(roughness: float) -> None:
    rng = np.random.default_rng(7)
    found = []
    for _ in range(500):
        num_points = int(rng.integers(4, 13))
        at = np.arange(num_points)
        rise = 1 - np.exp(-at / rng.uniform(0.3, 8))
        heights = [float(x) for x in 100 * rise + 100 * roughness * rng.normal(size=num_points)]
        found.append(elbow_index(heights))
        assert found[-1] == of_the_package(heights), heights
    assert len(set(found)) > 3  # else the curves would tell nothing


@pytest.mark.parametrize(
    ("heights", "elbow"),
    [
        ([0.0, 0.0, 0.0, 0.0], None),
        ([1.0, 2.0, 3.0, 4.0], None),
        ([0.0, 9.0, 9.5, 9.8, 10.0], 1),
        ([4.0, 3.0, 2.0, 1.0], 0),
        ([1.0, 5.0, 5.0, 5.0, 5.0], 1),
        ([0.0, 6.0, 7.0, 9.0, 10.0, 10.0, 10.0], 3),
        ([5.0], None),
    ],
)
def test_curves_that_can_be_drawn_by_hand(heights: list[float], elbow: int | None) -> None:
    assert elbow_index(heights) == elbow
    if len(heights) >= 4:
        assert of_the_package(heights) == elbow
