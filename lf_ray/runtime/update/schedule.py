"""The learning rate of every step: warm-up, then cosine; scaled once with the global batch."""

import math
from dataclasses import dataclass

from lf_ray.settings import LrRule, TrainSettings

# Steps that a schedule is laid out for where neither train.max_steps nor train.max_samples says.
DEFAULT_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class LrSchedule:
    """Linear warm-up over `warmup_steps`, then half a cosine down to zero at `num_steps`."""

    peak: float
    warmup_steps: int
    num_steps: int

    def lr(self, step: int) -> float:
        """Returns the rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        past = (step - self.warmup_steps) / max(1, self.num_steps - self.warmup_steps)
        return self.peak * 0.5 * (1 + math.cos(math.pi * min(1.0, past)))


def lr_schedule(
    settings: TrainSettings, rule: LrRule, global_batch: int, base_global_batch: int
) -> LrSchedule:
    """Returns the schedule for a global batch.

    Peak rate and warm-up steps belong to `base_global_batch`; both are scaled by the ratio of the
    batches (linear), by its root (sqrt), or kept (none).
    """
    ratio = global_batch / base_global_batch
    scale = {LrRule.linear: ratio, LrRule.sqrt: math.sqrt(ratio), LrRule.none: 1.0}[rule]
    base_steps = _num_steps(settings, base_global_batch)
    return LrSchedule(
        peak=settings.lr * scale,
        warmup_steps=round(settings.warmup_ratio * base_steps * scale),
        num_steps=_num_steps(settings, global_batch),
    )


def _num_steps(settings: TrainSettings, global_batch: int) -> int:
    if settings.max_steps is not None:
        return settings.max_steps
    if settings.max_samples is not None:
        return max(1, math.ceil(settings.max_samples / global_batch))
    return DEFAULT_STEPS
