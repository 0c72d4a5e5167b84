"""What is said of the input path: the fewest workers that never starve the step, what was skipped.

A sweep that varied the input path alone (sweeps/data.py) trains nothing, so its answer is words for
the command line of those that do.
"""

from collections.abc import Sequence

from lf_ray.analysis.advice import share_in_words, wait_of, wait_share
from lf_ray.analysis.answer import Answer
from lf_ray.analysis.points import Point, eligible
from lf_ray.analysis.slices import in_words
from lf_ray.protocol import TrialRecord

NEGLIGIBLE_FRAC = 0.01
"""Share of the step that a wait for data may take and still cost nothing worth a worker."""

_KNOBS = ("data.workers", "data.decode_threads", "data.prefetch", "data.cache")
"""Cheapest first: what takes cores counts before what takes memory or disk."""


def is_feeding(answer: Answer) -> bool:
    """Returns whether the sweep varied the input path alone."""
    names = answer.history.header.space
    return bool(names) and all(name.startswith("data.") for name in names)


def feeding_words(answer: Answer) -> list[str]:
    """Returns the answer of a sweep that varied the input path alone; nothing for another one."""
    points = [point for point in eligible(answer.gathered.points) if point.step_s is not None]
    if not is_feeding(answer) or not points:
        return []
    step = points[0].effective.get("fed_step_s")
    a_step = f"a step of {float(step) * 1e3:g} ms" if isinstance(step, int | float) else "the step"
    fed = _fed(points)
    if not fed:
        least = min(points, key=wait_share)
        return [
            f"No setting tried feeds {a_step}: the least wait is {share_in_words(wait_of(least))} "
            f"of the time, with {_in_words(least)}. Cache decoded frames (data.cache=true), or "
            "give it more cores."
        ]
    said = [f"Fewest workers that never starve {a_step}: {_settled(fed)}."]
    uncached = [point for point in points if point.knobs.get("data.cache") is False]
    if uncached and len(uncached) < len(points):
        fed = _fed(uncached)
        said.append(
            f"Without the frame cache: {_settled(fed)}."
            if fed
            else "Without the frame cache nothing that was tried feeds it: the least wait is "
            f"{share_in_words(wait_of(min(uncached, key=wait_share)))} of the time."
        )
    return said


def feeding_settings(answer: Answer) -> str:
    """Returns what to put on the command line of a training or another sweep, "" without advice."""
    points = [point for point in eligible(answer.gathered.points) if point.step_s is not None]
    chosen = min(_fed(points), key=_cost, default=None)
    chosen = chosen or min(points, key=wait_share, default=None)
    return "" if chosen is None else _in_words(chosen, "=", " ")


def skipped_words(records: Sequence[TrialRecord]) -> list[str]:
    """Returns how many samples could not be had in a sweep, and why; nothing where all could."""
    num_skipped = sum(record.metrics.get("samples_skipped", 0.0) for record in records)
    if not num_skipped:
        return []
    frames = sorted({frame for record in records for frame in record.bad_frames})
    others = f" and {len(frames) - 1} more, named in the journal" if len(frames) > 1 else ""
    first = f" {frames[0]}{others}." if frames else ""
    return [
        f"{num_skipped:.0f} samples were skipped, over all visits, because frames could not be "
        f"decoded (data.skip_corrupt=true):{first}"
    ]


def _fed(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if wait_share(point) < NEGLIGIBLE_FRAC]


def _settled(fed: Sequence[Point]) -> str:
    fewest = min(fed, key=_cost)
    waits = share_in_words(wait_of(fewest), digits=2)
    return f"{_in_words(fewest)}; it waits for data {waits} of the time"


def _cost(point: Point) -> tuple[float, ...]:
    return tuple(float(point.knobs.get(name, 0)) for name in _KNOBS)


def _in_words(point: Point, equals: str = " ", between: str = ", ") -> str:
    return between.join(
        f"{name}{equals}{in_words(name, point.knobs[name])}"
        for name in _KNOBS
        if name in point.knobs
    )
