"""The four core figures of a step: its time, its phases, how busy it is, its peak memory.

As rows for the report of every sweep and as sentences for one that measures the baseline alone.
"""

from lf_ray.analysis.advice import in_plain, roofline
from lf_ray.analysis.answer import Answer, device
from lf_ray.analysis.gain import GIB
from lf_ray.analysis.points import Point
from lf_ray.analysis.report.tables import Table

# Phases in which the device computes nothing for this step, by parts of their names.
_IDLE = ("wait", "loader", "data", "exposed", "gap", "launch", "to_device")


def core_table(answer: Answer) -> Table:
    """Returns the core figures of the baseline and of the winner where that is another point."""
    points = {"baseline": answer.baseline}
    if answer.winner and answer.baseline and answer.winner.id != answer.baseline.id:
        points["best"] = answer.winner
    columns = [(name, _figures(answer, p)) for name, p in points.items() if p is not None]
    if not columns:
        return Table("Core figures", (), ())
    rows = [(figure, *(found[figure] for _, found in columns)) for figure in columns[0][1]]
    hidden = [_hidden_words(answer, point) for point in points.values() if point is not None]
    rows.append(("hidden communication", *hidden))
    return Table("Core figures", ("figure", *(name for name, _ in columns)), tuple(rows))


def core_words(answer: Answer) -> list[str]:
    """Returns the baseline's core figures as sentences where the sweep varied nothing else."""
    if answer.history.header.space or answer.baseline is None:
        return []
    figures = _figures(answer, answer.baseline)
    return [f"{name.capitalize()}: {text}." for name, text in figures.items()]


def busy_frac(point: Point) -> float | None:
    """Returns the device's share of working time: the driver's own figure, else by the phases."""
    if "gpu_utilisation_frac" in point.metrics:
        return point.metrics["gpu_utilisation_frac"]
    found = roofline(point)
    if found is None or not point.phases_s:
        return None
    busy = sum(
        share
        for name, share in found.shares.items()
        if name != "other" and not any(part in name for part in _IDLE)
    )
    return min(busy, 1.0)


def _figures(answer: Answer, point: Point) -> dict[str, str]:
    step = point.step_s
    found = roofline(point)
    shares = found.shares if found else {}
    return {
        "step time": (
            f"{step.value * 1e3:.1f} ms (95 %: {step.lo * 1e3:.1f} to {step.hi * 1e3:.1f})"
            if step
            else "not measured"
        ),
        "phases": ", ".join(f"{in_plain(name)} {share:.1%}" for name, share in shares.items())
        or "not measured",
        "utilisation": _busy_words(point),
        "peak memory": _memory_words(answer, point),
    }


def _hidden_words(answer: Answer, point: Point) -> str:
    """Returns the share of the communication that the step's time does not show."""
    where = device(answer.history)
    if where == "cpu":
        return "not measurable on a CPU, whose cores compute and send"
    hidden, comm_s = point.metrics.get("overlap_hidden"), point.metrics.get("t_comm_s")
    if hidden is None or comm_s is None:
        return "not measured"
    return f"{hidden:.0%} of {comm_s * 1e3:.1f} ms, by step time"


def _busy_words(point: Point) -> str:
    busy = busy_frac(point)
    if busy is None:
        return "not measured"
    asked = "gpu_utilisation_frac" in point.metrics
    how = "as the driver reports it" if asked else "of the step in phases that compute"
    return f"{busy:.0%} {how}"


def _memory_words(answer: Answer, point: Point) -> str:
    peak = point.memory_bytes.get("peak")
    if not peak:
        return "not measured"
    where = "resident in the fullest worker" if device(answer.history) == "cpu" else "allocated"
    reserved = point.memory_bytes.get("peak_reserved")
    more = f", {reserved / GIB:.2f} GiB reserved" if reserved else ""
    return f"{peak / GIB:.2f} GiB {where}{more}"
