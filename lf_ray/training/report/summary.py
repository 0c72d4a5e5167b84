"""summary.json and MLflow's tags, from the books and the way it ended."""

from collections.abc import Mapping
from typing import Any

from lf_ray.live import clock_words
from lf_ray.protocol import OutcomeKind
from lf_ray.training.books import BOOKS_NAME, read_books, steps_of
from lf_ray.training.canary import Canary
from lf_ray.training.driver import INTERRUPTED, Ending
from lf_ray.training.rank import STOPPED
from lf_ray.training.report.words import Opened

_RECENT = 100


def exit_code_of(ending: Ending) -> int:
    """Returns 0 trained, 1 failed, 130 interrupted."""
    outcome = ending.record.outcome
    if outcome.stop_rule == STOPPED or outcome.error_kind == "stopped":
        return INTERRUPTED
    return 0 if outcome.kind is OutcomeKind.COMPLETED else 1


def summary_of(
    opened: Opened, ending: Ending, verdict: Canary | None, seconds: float
) -> dict[str, Any]:
    """Returns what summary.json holds.

    Loss (mean) and throughput (samples/s) are those of the `recent_steps`, the last 100 at most.
    """
    plan, outcome = opened.plan, ending.record.outcome
    lines = read_books(plan.folder / BOOKS_NAME)
    steps = steps_of(lines)
    recent = steps[-_RECENT:]
    step_s = sum(item["step_s"] for item in recent)
    saved = [line["step"] for line in lines if line["event"] == "saved"]
    errors = [line for line in lines if line["event"] == "action_error"]
    exports = [line["path"] for line in lines if line["event"] == "exported"]
    return {
        "id": plan.folder.name,
        "outcome": outcome.kind.value,
        "reason": outcome.reason or outcome.stop_rule,
        "exit_code": exit_code_of(ending),
        "steps": len(steps),
        "num_steps": plan.num_steps,
        "samples": len(steps) * plan.samples_per_step,
        "skipped": sum(item.get("skipped", 0) for item in steps),
        "loss": sum(float(item["loss"]) for item in recent) / len(recent) if recent else None,
        "recent_steps": len(recent),
        "throughput": len(recent) * plan.samples_per_step / step_s if step_s > 0 else None,
        "seconds": seconds,
        "time": clock_words(seconds),
        "saved_step": saved[-1] if saved else None,
        "export": exports[-1] if exports else None,
        "action_error": errors[-1] if errors else None,
        "canary": {"word": verdict.word, "text": verdict.text} if verdict else None,
        "losses": ending.losses,
        "memory_bytes": dict(ending.record.memory_bytes),
    }


def tags_of(opened: Opened) -> dict[str, object]:
    """Returns what a training is found by in MLflow."""
    plan, found = opened.plan, opened.found
    return {
        "data_id": plan.data_id,
        "machine": opened.machine.label,
        "gpu": ", ".join(opened.machine.gpus) or "none",
        "found.sweep": found.get("sweep", ""),
        "found.id": found.get("id", ""),
        "folder": str(plan.folder),
        **{f"version.{name}": value for name, value in plan.versions.items()},
    }


def end_tags(summary: Mapping[str, Any]) -> dict[str, object]:
    """Returns how it ended."""
    verdict = summary["canary"]
    return {
        "outcome": summary["outcome"],
        "reason": summary["reason"],
        "canary": verdict["word"] if verdict else "nothing promised",
        "restarts": len(summary["losses"]),
    }
