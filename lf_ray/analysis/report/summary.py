"""summary.json: the answer for scripts."""

from collections.abc import Mapping
from typing import Any

from lf_ray.analysis.answer import Answer
from lf_ray.analysis.points import Point
from lf_ray.analysis.staged.summary import finite, stage_summary


def summary(answer: Answer, mlflow: Mapping[str, str | None] | None = None) -> dict[str, Any]:
    """Returns the summary of a sweep as plain JSON values; seconds are wall seconds.

    A bound without end is null in the gain, and the word inf in a measurement.

    Args:
        answer: of the sweep.
        mlflow: experiment and parent_run, as far as they are known.
    """
    header, gain = answer.history.header, answer.gain
    tracked = mlflow or {}
    return {
        "sweep": header.name,
        "id": header.id,
        "baseline": _point(answer.baseline),
        "best": _point(answer.winner),
        "knee": {
            knee.knob: {
                "value": knee.value,
                "lo": knee.lo,
                "hi": knee.hi,
                "status": str(knee.status),
            }
            for knee in answer.knees
        },
        "gain": gain
        and {"ratio": finite(gain.value), "lo": finite(gain.lo), "hi": finite(gain.hi)},
        "outcomes": dict(answer.outcomes),
        "seconds": {name: round(value, 3) for name, value in answer.seconds.to_json().items()},
        "gpu_seconds": round(answer.gpu_seconds, 3),
        "mlflow": {
            "experiment": tracked.get("experiment", header.name),
            "parent_run": tracked.get("parent_run"),
        },
        **stage_summary(answer),
    }


def _point(point: Point | None) -> dict[str, Any] | None:
    if point is None or point.throughput is None or point.step_s is None:
        return None
    return {
        "trial": point.id,
        "knobs": dict(point.knobs),
        "effective": dict(point.effective),
        "throughput_samples_per_s": point.throughput.to_json(),
        "step_s": point.step_s.to_json(),
        "samples_per_step": point.samples_per_step,
        "gate_passed": point.gate.passed if point.gate else None,
    }
