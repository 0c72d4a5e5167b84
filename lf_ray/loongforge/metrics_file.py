"""Reads LoongForge's metrics.jsonl while it grows: one JSON object a step, from its rank 0.

`samples_per_sec` there is per GPU, and `step_time` leaves logging and housekeeping out. So the
file's own time of writing is kept beside each step: it says what the wall clock saw.
"""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lf_ray.errors import TrainerError

_LEAST_SPAN_S = 0.2
"""A shorter stretch of wall time is not compared: the file system's clock ticks in milliseconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One line of the file.

    Attributes:
        samples_per_s_gpu: as the trainer says, of one GPU.
        consumed_samples: over all ranks since the start.
        num_skipped: iterations whose loss was thrown away, since the start.
        written_s: when the line was written; None where others were read with it after it.
    """

    step_s: float
    loss: float
    grad_norm: float
    lr: float
    samples_per_s_gpu: float
    consumed_samples: int
    num_skipped: int
    written_s: float | None


@dataclass(slots=True)
class MetricsFile:
    """The file from its beginning to where it was read; it need not exist yet."""

    path: Path
    steps: list[Step] = field(default_factory=list)
    _offset: int = 0

    def read(self) -> int:
        """Takes in what has been written since; returns how many whole lines that was.

        Raises:
            TrainerError: a line that is not what LoongForge writes.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
                written_s = os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return 0
        whole, newline, torn = data.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        lines = whole.splitlines()
        for number, line in enumerate(lines, start=1):
            # A torn line after it was written later.
            last = number == len(lines) and not torn
            self.steps.append(_step(line, written_s if last else None))
        return len(lines)


def _step(line: bytes, written_s: float | None) -> Step:
    try:
        values: dict[str, Any] = json.loads(line)
        return Step(
            step_s=float(values["step_time"]),
            loss=float(values["action_loss"]),
            grad_norm=float(values.get("grad_norm") or 0.0),
            lr=float(values.get("lr") or 0.0),
            samples_per_s_gpu=float(values["samples_per_sec"]),
            consumed_samples=int(values["consumed_samples"]),
            num_skipped=int(values.get("skipped_iterations", 0))
            + int(values.get("nan_iterations", 0)),
            written_s=written_s,
        )
    except (ValueError, KeyError, TypeError) as error:
        shown = line[:120].decode(errors="replace")
        raise TrainerError(
            f"LoongForge's metrics.jsonl has a line of another shape"
            f" ({type(error).__name__}: {error}): {shown}"
        ) from None


def compared_with_wall(steps: Sequence[Step], world_size: int, skipped: int) -> dict[str, float]:
    """Returns throughput by the trainer's own figure and by the wall clock, over the same steps.

    Args:
        steps: all that were read.
        world_size: ranks that one line speaks for.
        skipped: first steps that are left out (warm-up, capture).

    Returns:
        Empty where there is too little to compare.
    """
    dated = [index for index, step in enumerate(steps) if step.written_s and index >= skipped]
    if len(dated) < 2:
        return {}
    first, last = dated[0], dated[-1]
    between = steps[first + 1 : last + 1]
    span_s = (steps[last].written_s or 0.0) - (steps[first].written_s or 0.0)
    samples = steps[last].consumed_samples - steps[first].consumed_samples
    if span_s < _LEAST_SPAN_S or any(step.samples_per_s_gpu <= 0 for step in between):
        return {}
    per_step = samples / len(between)
    own_s = math.fsum(per_step / (step.samples_per_s_gpu * world_size) for step in between)
    return {
        "trainer_samples_per_s": samples / own_s,
        "wall_samples_per_s": samples / span_s,
        "wall_mismatch_frac": span_s / own_s - 1.0,
    }
