"""What a sweep of the input path alone says: the fewest workers that never starve the step."""

from lf_ray.analysis.advice import wait_share
from lf_ray.analysis.answer import Answer
from lf_ray.analysis.points import Point, eligible

NEGLIGIBLE_FRAC = 0.01
"""Share of the step that a wait for data may take and still cost nothing worth a worker."""


def feeding_words(answer: Answer) -> list[str]:
    """Returns the answer of a sweep that varied the input path alone; nothing for another one."""
    names = answer.history.header.space
    points = [point for point in eligible(answer.gathered.points) if point.step_s is not None]
    if not names or not all(name.startswith("data.") for name in names) or not points:
        return []
    step = points[0].effective.get("fed_step_s")
    a_step = f"a step of {float(step) * 1e3:g} ms" if isinstance(step, int | float) else "the step"
    fed = [point for point in points if wait_share(point) < NEGLIGIBLE_FRAC]
    if not fed:
        least = min(points, key=wait_share)
        return [
            f"No setting tried feeds {a_step}: the least wait is {wait_share(least):.0%} of the "
            f"time, with {_in_words(least)}. Cache decoded frames (data.cache=true), or give it "
            "more cores."
        ]
    fewest = min(fed, key=_cost)
    return [
        f"Fewest workers that never starve {a_step}: {_in_words(fewest)}; it waits for data "
        f"{wait_share(fewest):.2%} of the time."
    ]


def _cost(point: Point) -> tuple[float, float]:
    return float(point.knobs["data.workers"]), float(point.knobs["data.prefetch"])


def _in_words(point: Point) -> str:
    workers, prefetch = (point.knobs[f"data.{name}"] for name in ("workers", "prefetch"))
    return f"data.workers {workers}, data.prefetch {prefetch}"
