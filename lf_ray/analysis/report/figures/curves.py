"""Throughput as curves: every measured setting, and the slices with their knees."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lf_ray.analysis.answer import Answer, Verdict
from lf_ray.analysis.knee import Knee, KneeStatus, elbow_of
from lf_ray.analysis.points import Point
from lf_ray.analysis.report.figures.canvas import (
    BAND,
    BASE,
    BEST,
    INK,
    KNEE,
    MUTED,
    draw_svg,
    value_axis,
)
from lf_ray.analysis.slices import Slice, in_words

_RAMP = ("#8fc4de", "#69acce", "#4493bb", "#1f78a4", "#0b5a82", "#083d5a")


def throughput_figure(answer: Answer) -> str:
    """Returns throughput along the first numeric knob, a line for each value of the second.

    Where a third one varies, too, there are points and no lines: neighbours differ in more than x.
    """
    numeric = [
        along.knob
        for along in answer.slices
        if all(isinstance(reading.value, int | float) for reading in along.readings)
    ]
    points = [point for point in answer.gathered.points if point.throughput is not None]
    if not numeric or len(points) < 2:
        return ""
    across = numeric[0]
    by = next((along.knob for along in answer.slices if along.knob != across), None)
    others = set(answer.history.header.space) - {across, by}
    joined = all(len({point.knobs.get(name) for point in points}) == 1 for name in others)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        groups = _series(points, across, by)
        for index, (label, series) in enumerate(groups.items()):
            color = _RAMP[round(index * (len(_RAMP) - 1) / max(1, len(groups) - 1))]
            name = f"{_short(by)} {label}" if by else None
            _banded_line(axes, across, series, color, name, joined=joined)
        for point, color, mark in _marked(answer):
            assert point.throughput is not None
            axes.plot(
                float(point.knobs[across]),
                point.throughput.value,
                mark,
                ms=8,
                mew=2,
                mfc="none",
                mec=color,
                zorder=5,
            )
        value_axis(axes, across, [float(point.knobs[across]) for point in points])
        axes.set_ylabel("samples/s")
        _outside_legend(figure, axes)

    return draw_svg(draw, 3.4, "Throughput of every measured setting with 95 % intervals")


def slices_figure(answer: Answer) -> str:
    """Returns one panel a knob: the slice with its intervals, knee, best and elbow."""
    shown = [
        (along, knee)
        for along, knee in zip(answer.slices, answer.knees)
        if sum(reading.usable for reading in along.readings) > 1
    ]
    if not shown:
        return ""

    def draw(figure: Any) -> None:
        panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
        for axes, (along, knee) in zip(panels, shown):
            _slice_panel(axes, answer, along, knee)

    return draw_svg(draw, 2.6 * len(shown), "Throughput along each knob from the best point")


def _series(points: Sequence[Point], across: str, by: str | None) -> dict[str, list[Point]]:
    ordered = sorted(points, key=lambda point: float(point.knobs[across]))
    values = {point.knobs[by] for point in points} if by else set()
    numbers = all(isinstance(value, int | float) for value in values)
    keys = sorted(values, key=float) if numbers else sorted(values, key=str)
    if by is None:
        return {"": ordered}
    return {in_words(by, key): [p for p in ordered if p.knobs[by] == key] for key in keys}


def _banded_line(
    axes: Any, across: str, series: Sequence[Point], color: str, label: str | None, *, joined: bool
) -> None:
    x = [float(point.knobs[across]) for point in series]
    rates = [point.throughput for point in series if point.throughput is not None]
    y = [rate.value for rate in rates]
    axes.plot(x, y, "-o" if joined else "o", color=color, ms=3.5, lw=1.3, label=label)
    if joined and len(x) > 1:
        axes.fill_between(
            x,
            [rate.lo for rate in rates],
            [rate.hi for rate in rates],
            color=color,
            alpha=0.12,
            lw=0,
        )
    axes.vlines(x, [rate.lo for rate in rates], [rate.hi for rate in rates], color=color, lw=1.3)


def _marked(answer: Answer) -> list[tuple[Point, str, str]]:
    marks = [
        (answer.baseline, BASE, "s"),
        (answer.fastest, BEST, "o"),
        (answer.knee_point if answer.verdict is Verdict.IMPROVED else None, KNEE, "D"),
    ]
    return [(point, color, mark) for point, color, mark in marks if point is not None]


def _slice_panel(axes: Any, answer: Answer, along: Slice, knee: Knee) -> None:
    places = {reading.value: index for index, reading in enumerate(along.readings)}
    usable = [reading for reading in along.readings if reading.usable]
    rates = {
        reading.value: next(
            point.throughput for point in answer.gathered.points if point.id == reading.point_id
        )
        for reading in usable
    }
    x = [places[reading.value] for reading in usable]
    found = [rate for rate in rates.values() if rate is not None]
    y = np.array([rate.value for rate in found])
    low = y - np.array([rate.lo for rate in found])
    high = np.array([rate.hi for rate in found]) - y
    best_value = along.readings[along.best_index].value
    best_rate = rates[best_value]
    assert best_rate is not None
    delta = float(answer.history.header.config.get("sweep", {}).get("delta", 0.02))
    axes.axhspan((1 - delta) * best_rate.value, best_rate.value, color=BAND, lw=0, zorder=0)
    if knee.status not in (KneeStatus.DEAD, KneeStatus.FLAT) and knee.lo != knee.hi:
        ends = sorted((places[knee.lo], places[knee.hi]))
        axes.axvspan(ends[0] - 0.15, ends[1] + 0.15, color=KNEE, alpha=0.1, lw=0)
    axes.errorbar(x, y, yerr=[low, high], fmt="-o", color=BEST, ms=4, lw=1.3, capsize=2.5)
    axes.plot(places[best_value], best_rate.value, "o", ms=9, mfc="none", mec=BEST, mew=2)
    if knee.value in places:
        axes.axvline(places[knee.value], color=KNEE, lw=1.6)
    elbow = elbow_of(along)
    if elbow is not None:
        axes.axvline(places[elbow], color=MUTED, lw=1.2, ls=":")
    for reading in along.readings:
        if not reading.usable:
            mark = "?" if reading.is_missing else "x"
            axes.text(places[reading.value], float((y - low).min()), mark, color=KNEE, ha="center")
    axes.set_xticks(range(len(along.readings)))
    axes.set_xticklabels(
        [f"{r.value:g}" if isinstance(r.value, int | float) else r.value for r in along.readings]
    )
    unit = in_words(along.knob, 0).removeprefix("0").strip()
    axes.set_xlabel(f"{along.knob}{f' ({unit})' if unit else ''}: cheap to costly")
    axes.set_ylabel("samples/s")
    said = f"{knee.status}: knee {in_words(along.knob, knee.value)}"
    if elbow is not None:
        said += f"  (dotted: elbow {in_words(along.knob, elbow)}, not used)"
    elif len(usable) > 3 and all(isinstance(r.value, int | float) for r in usable):
        said += "  (no elbow)"
    axes.set_title(said, color=INK)


def _short(knob: str | None) -> str:
    return knob.split(".")[-1] if knob else ""


def _outside_legend(figure: Any, axes: Any) -> None:
    handles, names = axes.get_legend_handles_labels()
    if names:
        figure.legend(handles, names, loc="outside lower center", ncols=3)
