"""Which figures a report has, in reading order."""

from lf_ray.analysis.answer import Answer
from lf_ray.analysis.report.figures.bars import memory_figure, phases_figure, step_figure
from lf_ray.analysis.report.figures.course import loss_figure, timeline_figure
from lf_ray.analysis.report.figures.curves import slices_figure, throughput_figure


def figures_of(answer: Answer) -> dict[str, str]:
    """Returns every figure that the sweep has something for, as SVG by name, in reading order."""
    drawn = {
        "throughput": throughput_figure(answer),
        "slices": slices_figure(answer),
        "step": step_figure(answer),
        "phases": phases_figure(answer),
        "loss": loss_figure(answer),
        "memory": memory_figure(answer),
        "timeline": timeline_figure(answer),
    }
    return {name: svg for name, svg in drawn.items() if svg}
