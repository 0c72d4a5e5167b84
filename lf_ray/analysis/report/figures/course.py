"""The sweep itself: loss against samples, and what its seconds went to."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lf_ray.analysis.answer import Answer
from lf_ray.analysis.points import Point
from lf_ray.analysis.report.figures.bars import rival_word
from lf_ray.analysis.report.figures.canvas import BASE, BEST, KNEE, draw_svg
from lf_ray.analysis.seconds import spans_of

# One colour a class of the ledger; what is not named here is between visits.
_CLASSES = {
    "measured": "#0b6e99",
    "warm-up": "#7db6d0",
    "start-up": "#c2410c",
    "between": "#e0a458",
    "searcher": "#8a6d00",
}
_CLASS_OF = {
    "measured": "measured",
    "warmup": "warm-up",
    "start": "start-up",
    "restart": "start-up",
}


def loss_figure(answer: Answer) -> str:
    """Returns loss against samples: the baseline's visits as a band, the winner as a line."""
    base = answer.baseline
    curves = _loss_curves(base) if base else []
    if not curves:
        return ""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        length = min(len(loss) for _, loss in curves)
        samples = curves[0][0][:length]
        stack = np.array([loss[:length] for _, loss in curves])
        axes.fill_between(
            samples,
            stack.min(axis=0),
            stack.max(axis=0),
            color=BASE,
            alpha=0.22,
            lw=0,
            label=_band_words(stack),
        )
        axes.plot(samples, stack.mean(axis=0), color=BASE, lw=1.2)
        rival = answer.fastest
        if rival is not None and base is not None and rival.id != base.id:
            for index, (seen, loss) in enumerate(_loss_curves(rival)[:3]):
                label = f"{rival_word(answer)} ({rival.id})" if index == 0 else None
                axes.plot(seen, loss, color=BEST, lw=1.4, label=label)
        axes.set_xlabel("samples seen")
        axes.set_ylabel("loss")
        axes.legend(loc="upper right")

    return draw_svg(draw, 2.8, "Loss by samples seen")


def timeline_figure(answer: Answer) -> str:
    """Returns what the sweep's seconds went to: the sum on top, visit after visit below."""
    spans = spans_of(answer.history)
    if not spans:
        return ""

    def draw(figure: Any) -> None:
        top, bottom = figure.subplots(2, 1, height_ratios=(1, 1.6))
        _ledger_bar(top, answer)
        # One collection: a patch for each part of each visit takes longer than all else here.
        bars = [(0.0, min(span.start_s for span in spans))]
        colors = [_CLASSES["start-up"]]
        for span in spans:
            at_s = span.start_s
            for name, length_s in span.parts_s.items():
                bars.append((at_s, length_s))
                colors.append(_CLASSES[_CLASS_OF.get(name, "between")])
                at_s += length_s
            if span.outcome not in ("completed", "pruned"):
                bottom.plot((span.start_s + span.end_s) / 2, 0.55, "v", color=KNEE, ms=6)
        bottom.broken_barh(bars, (-0.4, 0.8), facecolors=colors, lw=0)
        bottom.set_yticks([])
        bottom.set_ylim(-0.6, 0.8)
        bottom.grid(visible=False)
        for axes in (top, bottom):
            axes.set_xlim(0, answer.seconds.total)
        bottom.set_xlabel("seconds since the start (triangles: visits that came to nothing)")
        bottom.set_title("visit after visit")

    return draw_svg(draw, 3.2, "What the seconds of the sweep went to")


def _loss_curves(point: Point) -> list[tuple[list[int], list[float]]]:
    return [
        (
            [record.samples_per_step * (step + 1) for step in range(len(record.trace.loss))],
            list(record.trace.loss),
        )
        for record in point.records
        if record.trace is not None and len(record.trace.loss) > 1
    ]


def _band_words(stack: NDArray[np.float64]) -> str:
    """Returns the legend of the baseline's band; visits a row."""
    visits = f"{len(stack)} visit{'s' if len(stack) > 1 else ''}"
    width, height = float(np.ptp(stack, axis=0).max()), float(np.ptp(stack))
    narrow = len(stack) > 1 and width < 0.005 * height
    return f"baseline, {visits}{' on one line' if narrow else ''}"


def _ledger_bar(axes: Any, answer: Answer) -> None:
    seconds = answer.seconds
    lengths_s = (
        seconds.measured,
        seconds.warmup,
        seconds.startup,
        seconds.between,
        seconds.searcher,
    )
    left = 0.0
    for (name, color), length_s in zip(_CLASSES.items(), lengths_s):
        share = length_s / max(seconds.total, 1e-9)
        axes.barh(0, length_s, left=left, height=0.8, color=color, label=f"{name} {share:.0%}")
        left += length_s
    axes.set_yticks([])
    axes.set_title(f"{seconds.total:.0f} s in all")
    axes.grid(visible=False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=3)
