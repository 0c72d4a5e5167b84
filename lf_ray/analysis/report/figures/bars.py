"""A step and its memory as bars: baseline beside best."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lf_ray.analysis.answer import Answer, device
from lf_ray.analysis.gain import GIB, peak_bytes
from lf_ray.analysis.points import Point
from lf_ray.analysis.report.figures.canvas import BASE, BEST, INK, KNEE, MUTED, draw_svg
from lf_ray.analysis.report.figures.step_picture import in_step_order, step_boxes

_LETTER_FRAC = 0.0155
"""Width of a letter inside a box, as a share of the longest step."""


def step_figure(answer: Answer) -> str:
    """Returns one mean step on its two lanes, baseline above best."""
    shown = _compared(answer, lambda point: bool(point.phases_s))
    if not shown:
        return ""

    longest_s = max(sum(point.phases_s.values()) for _, point, _ in shown)

    def draw(figure: Any) -> None:
        panels = figure.subplots(len(shown), 1, squeeze=False, sharex=True)[:, 0]
        for axes, (label, point, _) in zip(panels, shown):
            for box in step_boxes(point, hides=device(answer.history) != "cpu"):
                lane = 1 if box.lane == "compute" else 0
                axes.barh(
                    lane,
                    box.length_s * 1e3,
                    left=box.start_s * 1e3,
                    height=0.7,
                    color=_box_color(box.name),
                    edgecolor="white",
                    lw=0.6,
                )
                if lane and box.length_s > _LETTER_FRAC * len(box.name) * longest_s:
                    middle = (box.start_s + box.length_s / 2) * 1e3
                    axes.text(
                        middle,
                        1,
                        _words(box.name),
                        ha="center",
                        va="center",
                        fontsize=7.5,
                        color="white",
                    )
            axes.set_yticks([0, 1])
            axes.set_yticklabels(["network", "compute"])
            axes.grid(visible=False, axis="y")
            axes.set_title(label, color=INK)
        panels[-1].set_xlabel("ms")

    return draw_svg(draw, 0.6 + 1.1 * len(shown), "One step before and after")


def phases_figure(answer: Answer) -> str:
    """Returns the seconds of each phase of a step, baseline beside best."""
    shown = _compared(answer, lambda point: bool(point.phases_s))
    if not shown:
        return ""
    names = in_step_order({name for _, point, _ in shown for name in point.phases_s})

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        _grouped_bars(
            axes,
            names,
            [
                (label, [point.phases_s.get(name, 0.0) * 1e3 for name in names], color)
                for label, point, color in shown
            ],
            "{:.1f}",
        )
        axes.set_xlabel("ms a step, slowest rank")

    return draw_svg(draw, 1.0 + 0.2 * len(names) * (len(shown) + 1), "Phases of a step")


def memory_figure(answer: Answer) -> str:
    """Returns memory by kind for baseline, best and knee."""
    shown = _compared(answer, lambda point: peak_bytes(point) is not None, knee=True)
    if not shown:
        return ""
    names = list(dict.fromkeys(name for _, point, _ in shown for name in point.memory_bytes))[:6]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        _grouped_bars(
            axes,
            names,
            [
                (label, [point.memory_bytes.get(name, 0.0) / GIB for name in names], color)
                for label, point, color in shown
            ],
            "{:.2f}",
        )
        axes.set_xlabel("GiB, fullest rank")

    return draw_svg(draw, 1.0 + 0.2 * len(names) * (len(shown) + 1), "Memory of a rank")


def rival_word(answer: Answer) -> str:
    """Returns what the fastest point is called: best only where it is certainly faster."""
    best, rival = answer.winner, answer.fastest
    return "best" if best and rival and best.id == rival.id else "fastest seen"


def _compared(
    answer: Answer, has: Callable[[Point], bool], *, knee: bool = False
) -> list[tuple[str, Point, str]]:
    base, best = answer.baseline, answer.fastest
    shown = [("baseline", base, BASE)]
    if best is not None and base is not None and best.id != base.id:
        shown.append((rival_word(answer), best, BEST))
    joint = answer.knee_point
    if knee and joint is not None and joint.id not in {p.id for _, p, _ in shown if p}:
        shown.append(("knee", joint, KNEE))
    return [(label, point, color) for label, point, color in shown if point and has(point)]


def _grouped_bars(
    axes: Any,
    names: Sequence[str],
    series: Sequence[tuple[str, Sequence[float], str]],
    shape: str,
) -> None:
    height = 0.8 / len(series)
    for index, (label, values, color) in enumerate(series):
        y = np.arange(len(names)) + (index - (len(series) - 1) / 2) * height
        bars = axes.barh(y, values, height=height * 0.92, color=color, label=label)
        axes.bar_label(bars, [shape.format(v) for v in values], padding=2, fontsize=8, color=MUTED)
    axes.set_yticks(range(len(names)))
    axes.set_yticklabels([_words(name) for name in names])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.14, y=0.02)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _box_color(name: str) -> str:
    if name.startswith("sent"):
        return "#4f98bd" if "during" in name else KNEE
    idle = any(part in name for part in ("wait", "gap"))
    return "#9aa5b1" if idle else BEST if "backward" in name else "#1f4e68"
