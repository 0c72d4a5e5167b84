"""A training in words: what it begins with, how it ended, and what to do next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lf_ray.machine import Machine
from lf_ray.training.books import BOOKS_NAME
from lf_ray.training.driver import INTERRUPTED, Ending
from lf_ray.training.plan import TrainingPlan, schedule_of
from lf_ray.training.progress import action_error_words


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A training that nothing keeps from starting.

    Attributes:
        found: of the best.yaml that it began with; empty without one.
        notes: what a person should know of it.
        from_step: of the checkpoint that it goes on from, 0 for a new one.
    """

    plan: TrainingPlan
    found: Mapping[str, Any]
    machine: Machine
    notes: tuple[str, ...]
    from_step: int = 0


def header(opened: Opened) -> list[str]:
    """Returns the first lines."""
    plan, config = opened.plan, opened.plan.config
    schedule = schedule_of(config)
    saving = f"every {plan.save_every} steps" if plan.save_every else "at the end"
    held_out = config.data.holdout_episodes or 0
    at = f", from step {opened.from_step}" if opened.from_step else ""
    return [
        *opened.notes,
        f"Training {plan.folder.name}: {config.model.size} on {config.num_workers} x "
        f"{config.cluster.device}, {plan.num_steps} steps of {plan.samples_per_step} samples{at}",
        f"lr {schedule.peak:.3g} after {schedule.warmup_steps} steps of warm-up, cosine to 0; "
        f"checkpoints {saving}, the last {config.train.keep} stay; "
        f"{held_out or 'no'} episode{'' if held_out == 1 else 's'} held out",
        f"In {plan.folder}",
    ]


def footer(
    opened: Opened, ending: Ending, summary: Mapping[str, Any], warnings: Sequence[str]
) -> list[str]:
    """Returns the last lines."""
    plan, outcome = opened.plan, ending.record.outcome
    exit_code = summary["exit_code"]
    lines = ["", f"{summary['steps']} of {plan.num_steps} steps in {summary['time']}"]
    if summary["throughput"]:
        lines[-1] += (
            f", {summary['throughput']:.4g} samples/s, loss {summary['loss']:.4g} "
            f"(the last {summary['recent_steps']} of them)"
        )
    if summary["skipped"]:
        lines.append(
            f"{summary['skipped']} samples were skipped: frames that can't be decoded, named in "
            f"{BOOKS_NAME}"
        )
    if summary["action_error"]:
        said = action_error_words(summary["action_error"])
        lines.append(said[0].upper() + said[1:])
    lines += [f"Restarted after: {item}" for item in ending.losses]
    lines += [f"Had to be ended by force: {item}" for item in ending.left_over]
    lines += [f"MLflow: {item}" for item in warnings]
    again = f"python -m lf_ray.train resume={plan.folder.name}"
    if plan.config.output.dir != "outputs":
        again += f" output.dir={plan.config.output.dir}"
    if exit_code == 0:
        lines.append(f"Next:    python -m lf_ray.predict model.weights={plan.folder / 'export'}")
        return lines
    saved = summary["saved_step"]
    lines.append("There is no checkpoint yet." if saved is None else f"Saved at step {saved}.")
    if exit_code == INTERRUPTED:
        lines.append(f"Go on:   {again}")
    else:
        lines.append(f"Failed:  {outcome.reason}")
        lines.append(f"Go on:   {again}   (once the cause is gone)")
    return lines
