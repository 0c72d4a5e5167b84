"""The result folder: every file that a finished sweep leaves beside its journal."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from lf_ray.analysis.answer import Answer, Ladders, Verdict, answer_of
from lf_ray.analysis.report.found import config_text, found_config
from lf_ray.analysis.report.markdown import markdown
from lf_ray.analysis.report.page import page
from lf_ray.analysis.report.summary import summary
from lf_ray.errors import RecordError, four_parts
from lf_ray.record.history import SweepHistory


def write_result(
    folder: Path,
    history: SweepHistory,
    *,
    ladders: Ladders | None = None,
    mlflow: Mapping[str, str | None] | None = None,
) -> Answer:
    """Writes best.yaml, knee.yaml, summary.json, report.html, report.md and figures/.

    What scripts need is written first. Each file is replaced whole, so that a reader never sees
    half of one, and a sweep that was resumed just writes them again.

    Args:
        folder: of the sweep, where its journal is.
        history: what the journal says.
        ladders: values of knobs for which the journal's space holds a rule.
        mlflow: experiment and parent_run, as far as they are known.

    Raises:
        RecordError: a file can't be written; the journal is untouched.
    """
    answer = answer_of(history, ladders)
    for name, text in _texts(answer, mlflow).items():
        _write(folder / name, text)
    from lf_ray.analysis.report.figures.catalog import (
        figures_of,  # matplotlib takes a second to import
    )

    figures = figures_of(answer)
    for name, svg in figures.items():
        _write(folder / "figures" / f"{name}.svg", svg)
    _write(folder / "report.html", page(answer, figures))
    _write(folder / "report.md", markdown(answer, figures))
    return answer


def _texts(answer: Answer, mlflow: Mapping[str, str | None] | None) -> dict[str, str]:
    header = answer.history.header
    best = answer.winner.knobs if answer.winner else header.baseline_knobs
    improved = answer.verdict is Verdict.IMPROVED
    knee_point = answer.knee_point if improved else answer.winner
    named = answer.batch.named if answer.batch else {}
    return {
        **{
            f"{name}.yaml": config_text(found_config(answer, item.knobs, name, item.point))
            for name, item in named.items()
        },
        "summary.json": json.dumps(summary(answer, mlflow), indent=2, allow_nan=False) + "\n",
        "best.yaml": config_text(found_config(answer, best, "best", answer.winner)),
        "knee.yaml": config_text(found_config(answer, answer.knee_knobs, "knee", knee_point)),
    }


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise RecordError(
            four_parts(
                f"writing {path}",
                "the result folder must be writable and have room",
                str(error),
                "Free disk space; the journal is whole, so resume=<id> writes the report again.",
            )
        ) from error
