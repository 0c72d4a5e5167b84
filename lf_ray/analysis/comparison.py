"""Several sweeps side by side, as rows for tables: what the notebook shows.

Rows are plain dicts in reading order; the notebook makes data frames of them.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lf_ray.analysis.answer import Answer, answer_of, device, is_trial, num_ranks
from lf_ray.analysis.frontier import frontier
from lf_ray.analysis.gain import GIB, economics, gain_over
from lf_ray.analysis.points import Point, eligible
from lf_ray.analysis.report.found import config_text, found_config
from lf_ray.errors import RecordError, four_parts
from lf_ray.record.history import read_journal
from lf_ray.record.mlflow_sink import check_uri, fetch_journals

Row = dict[str, Any]


def load_journals(paths: Iterable[Path]) -> list[Answer]:
    """Returns the answers of the sweeps in these journals, oldest first.

    Raises:
        RecordError: there is no journal among the paths, or one can't be read.
    """
    answers = [answer_of(read_journal(path)) for path in paths]
    if not answers:
        raise RecordError(
            four_parts(
                "loading sweeps",
                "at least one journal.jsonl is needed",
                "none",
                "Run python sweeps/overlap.py, or name the journal of a finished sweep.",
            )
        )
    return sorted(answers, key=lambda answer: answer.history.header.wall_s)


def load_mlflow(uri: str, folder: Path) -> list[Answer]:
    """Returns the answers of all finished sweeps that MLflow knows.

    Args:
        uri: tracking URI.
        folder: where the journals, which are artifacts of the sweeps' runs, are copied to.

    Raises:
        ConfigError: MLflow can't use such a URI.
        RecordError: MLflow knows no finished sweep, or a journal can't be read.
        OSError: the server is away.
    """
    check_uri(uri)
    return load_journals(fetch_journals(uri, folder))


def sweep_rows(answers: Sequence[Answer]) -> list[Row]:
    """Returns one row a sweep: where it ran, what it found, what it cost."""
    return [
        {
            "sweep": answer.history.header.name,
            "id": answer.history.header.id,
            "machine": answer.history.header.machine.get("label", ""),
            "device": device(answer.history),
            "ranks": num_ranks(answer.history),
            "verdict": str(answer.verdict),
            "baseline samples/s": _rate(answer.baseline),
            "best samples/s": _rate(answer.winner),
            "gain": answer.gain.value if answer.gain else None,
            "gain lo": answer.gain.lo if answer.gain else None,
            "gain hi": answer.gain.hi if answer.gain else None,
            "trials": sum(answer.outcomes.values()),
            "minutes": answer.seconds.total / 60,
            "break-even steps": answer.break_even_steps,
        }
        for answer in answers
    ]


def knob_rows(answer: Answer) -> list[Row]:
    """Returns one row a varied knob: baseline, best, knee, and what the next step buys."""
    rows = []
    for knee, along in zip(answer.knees, answer.slices):
        said = economics(along, knee, answer.gathered.points)
        rows.append(
            {
                "knob": knee.knob,
                "baseline": answer.history.header.baseline_knobs[knee.knob],
                "best": knee.best_value,
                "knee": knee.value,
                "lo": knee.lo,
                "hi": knee.hi,
                "status": str(knee.status),
                "economics": "; ".join(text.split(": ", 1)[1] for text in said),
            }
        )
    return rows


def knob_rows_of_all(answers: Sequence[Answer]) -> list[Row]:
    """Returns one row a sweep and varied knob, so that a knob's knees stand below each other.

    `same place` says whether machine, ranks and model are those of the last sweep: where they are
    not, throughputs can't be compared, and a knee may have moved for that reason.
    """
    last = _place(answers[-1]) if answers else ()
    rows = [
        {
            "knob": row["knob"],
            "sweep": f"{answer.history.header.name} {answer.history.header.id}",
            **{name: row[name] for name in ("baseline", "best", "knee", "status")},
            "samples a step": answer.baseline.samples_per_step if answer.baseline else None,
            "same place": _place(answer) == last,
        }
        for answer in answers
        for row in knob_rows(answer)
    ]
    return sorted(rows, key=lambda row: str(row["knob"]))


def point_rows(answer: Answer) -> list[Row]:
    """Returns one row a measured point, fastest first."""
    rows = [
        {
            "trial": point.id,
            **{name: point.knobs[name] for name in answer.history.header.space},
            "samples/s": point.throughput.value,
            "lo": point.throughput.lo,
            "hi": point.throughput.hi,
            "visits": len(point.visits),
            "was a trial": is_trial(point),
            "may win": point in eligible(answer.gathered.points),
        }
        for point in answer.gathered.points
        if point.throughput is not None
    ]
    return sorted(rows, key=lambda row: -float(row["samples/s"]))


def frontier_rows(answer: Answer) -> list[Row]:
    """Returns the Pareto frontier of throughput, memory and loss at equal samples."""
    return [
        {
            "trial": item.point.id,
            **{name: item.point.knobs[name] for name in answer.history.header.space},
            "samples/s": item.throughput.value,
            "peak GiB": item.peak_bytes / GIB if item.peak_bytes else None,
            "loss at equal samples": item.loss,
        }
        for item in frontier(answer.gathered.points)
        if not item.beaten_by
    ]


def driver_rows(answer: Answer) -> list[Row]:
    """Returns how much each knob drives throughput, strongest first.

    `swing` is what the knob alone is worth at the best point: fastest over slowest value of its
    slice, with its 95 % interval. `share` is what only this knob explains of the spread of all
    measured points, in a model in which knobs add up (of the logarithm, so as factors).
    """
    points = [point for point in answer.gathered.points if point.throughput is not None]
    by_id = {point.id: point for point in points}
    shares = _unique_shares(points, list(answer.history.header.space))
    rows = []
    for along in answer.slices:
        usable = [by_id[str(item.point_id)] for item in along.readings if item.usable]
        rates = sorted((_rate(point), point.id) for point in usable)
        swing = gain_over(by_id[rates[0][1]], by_id[rates[-1][1]]) if len(rates) > 1 else None
        rows.append(
            {
                "knob": along.knob,
                "swing": swing.value - 1 if swing else None,
                "swing lo": swing.lo - 1 if swing else None,
                "swing hi": swing.hi - 1 if swing else None,
                "share": shares.get(along.knob),
            }
        )
    return sorted(rows, key=lambda row: -float(row["swing"] or 0.0))


def write_choice(answer: Answer, trial: str, path: Path) -> Path:
    """Writes the settings of one measured point as a configuration to train with.

    Raises:
        RecordError: there is no such point, or it may not be used.
    """
    usable = {point.id: point for point in eligible(answer.gathered.points)}
    if trial not in usable:
        raise RecordError(
            four_parts(
                "writing a chosen configuration",
                "it is a measured point that passed the numerics gate",
                repr(trial),
                f"Choose one of {', '.join(usable)}.",
            )
        )
    point = usable[trial]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(config_text(found_config(answer, point.knobs, path.stem, point)))
    return path


def _place(answer: Answer) -> tuple[object, ...]:
    header = answer.history.header
    model = header.config.get("model", {}).get("size")
    return header.machine.get("label"), num_ranks(answer.history), model


def _rate(point: Point | None) -> float | None:
    return point.throughput.value if point is not None and point.throughput is not None else None


def _unique_shares(points: Sequence[Point], knobs: Sequence[str]) -> dict[str, float]:
    """Returns by how much the explained share of the spread falls when one knob is left out."""
    if len(points) < 3:
        return {}
    target = np.log([point.throughput.value for point in points if point.throughput is not None])
    target = target - target.mean()
    total = float(target @ target)
    if total <= 0:
        return {}

    def unexplained(names: Sequence[str]) -> float:
        columns = [np.ones(len(points))]
        for name in names:
            levels = list(dict.fromkeys(point.knobs[name] for point in points))
            columns += [
                np.array([float(point.knobs[name] == level) for point in points])
                for level in levels[1:]
            ]
        design = np.stack(columns, axis=1)
        found = np.linalg.lstsq(design, target, rcond=None)[0]
        left = target - design @ found
        return float(left @ left) / total

    whole = unexplained(knobs)
    return {knob: unexplained([name for name in knobs if name != knob]) - whole for knob in knobs}
