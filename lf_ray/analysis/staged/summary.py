"""What a sweep in stages adds to summary.json."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lf_ray.analysis.staged.convergence import Convergence
from lf_ray.analysis.staged.named import Named
from lf_ray.protocol import Interval

if TYPE_CHECKING:
    from lf_ray.analysis.answer import Answer


def stage_summary(answer: Answer) -> dict[str, Any]:
    """Returns plain JSON values; none for a sweep without stages, whose keys are fixed.

    `converges` for all, `stages` and `together` of several searches, `named`, `noise_scale` and
    `lr_rule` of a search over batches.
    """
    if not answer.stages:
        return {}
    found: dict[str, Any] = {"converges": _converges(answer.convergence)}
    if len(answer.stages) > 1:
        found["stages"] = [
            {
                "stage": stage.chapter.name,
                "status": stage.chapter.status,
                "reason": stage.chapter.reason,
                "changed": dict(stage.changed),
                "gain": _interval(stage.gain),
                "check": stage.check,
            }
            for stage in answer.stages
        ]
        together = answer.together
        found["together"] = together and {
            "verdict": str(together.found.verdict),
            "reason": together.found.reason,
            "singles": {name: _interval(gain) for name, gain in together.found.singles.items()},
            "product": _interval(together.found.product),
            "joint": _interval(together.found.joint),
            "joint_over_product": _interval(together.found.ratio),
        }
    if answer.batch is not None:
        found["noise_scale"] = _interval(answer.batch.scale)
        found["lr_rule"] = answer.batch.lr_rule
        found["named"] = {name: _named(item) for name, item in answer.batch.named.items()}
    return found


def _named(named: Named) -> dict[str, Any]:
    worth = named.worth
    return {
        "trial": named.point.id if named.point else None,
        "knobs": dict(named.knobs),
        "throughput_samples_per_s": _interval(named.point.throughput if named.point else None),
        "efficiency": _interval(worth.efficiency if worth else None),
        "goodput": _interval(worth.goodput if worth else None),
        "goodput_gain": _interval(worth.gain if worth else None),
        "converges": _converges(named.convergence),
        "note": named.note,
    }


def _converges(found: Convergence | None) -> dict[str, Any]:
    if found is None:
        return {"verdict": "not checked", "reason": "there is no winner"}
    return {
        "verdict": str(found.verdict),
        "reason": found.reason,
        "loss_ratio": finite(found.ratio),
        "hi": finite(found.hi),
        "seeds": found.num_seeds,
        "seeds_diverged": found.num_diverged,
        "steps": found.num_steps,
        "samples": found.num_samples,
    }


def _interval(interval: Interval | None) -> dict[str, Any] | None:
    """Returns value and bounds, None for a bound that is not finite."""
    if interval is None:
        return None
    return {
        "value": finite(interval.value),
        "lo": finite(interval.lo),
        "hi": finite(interval.hi),
    }


def finite(value: float | None) -> float | None:
    """Returns the value, None where JSON has no number for it."""
    return value if value is not None and math.isfinite(value) else None
