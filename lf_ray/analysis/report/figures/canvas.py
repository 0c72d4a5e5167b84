"""Where figures are drawn: SVG text, dark on light. The only file with matplotlib.

Drawn small with large words, so that a phone can show them.
"""

import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from lf_ray.analysis.slices import in_words

INK, MUTED, GRID = "#1c2733", "#5b6875", "#e3e8ed"
BASE, BEST, KNEE, BAND = "#8a6d00", "#0b6e99", "#c2410c", "#dcecf3"
_WIDTH_IN = 4.8
_STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "svg.fonttype": "none",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


def draw_svg(draw: Callable[[Figure], None], height_in: float, title: str) -> str:
    """Returns the SVG of what `draw` puts on a figure; the title is read out to the blind."""
    style = {**_STYLE, "svg.hashsalt": title}
    with mpl.rc_context(style):
        figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
        canvas = FigureCanvasSVG(figure)
        draw(figure)
        text = io.StringIO()
        # The figure's own savefig gives the same text and draws everything twice for it.
        canvas.print_svg(text, metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = svg[: svg.index("<metadata>")] + svg[svg.index("</metadata>") + len("</metadata>") :]
    return svg.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)


def value_axis(axes: Any, knob: str, values: Sequence[float]) -> None:
    """Puts a knob's values on the x axis, by powers of two where they span them."""
    distinct = sorted(set(values))
    if min(distinct) > 0 and max(distinct) / min(distinct) >= 8:
        axes.set_xscale("log", base=2)
        axes.set_xticks(distinct)
        axes.minorticks_off()
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(8))
    unit = in_words(knob, 0).removeprefix("0").strip()
    axes.set_xlabel(f"{knob}{f' ({unit})' if unit else ''}")
