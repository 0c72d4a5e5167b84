"""What one visit's step times say: the steady number and, beside it, the end-to-end one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lf_ray.measure.interval import throughput, visit_interval
from lf_ray.measure.noise import Series
from lf_ray.measure.steady import Steady, steady_state
from lf_ray.protocol import Interval


@dataclass(frozen=True, slots=True)
class Reading:
    """A visit in numbers.

    Attributes:
        error: why there is no steady number, empty where there is one.
        step_s: mean steady step, spikes included; None with an error.
        throughput_samples_per_s: from `step_s`.
        typical_step_s: median steady step, which spikes do not move; None with an error.
        end_to_end_samples_per_s: samples over time of all steps, warm-up and one-off costs
            included; what a run of just these steps would get.
        one_off_s: time of the steps before the steady part beyond what steady steps would take.
    """

    steady: Steady
    error: str
    step_s: Interval | None
    throughput_samples_per_s: Interval | None
    typical_step_s: float | None
    end_to_end_samples_per_s: float
    one_off_s: float


def read_visit(
    step_s: Sequence[float] | Series, samples_per_step: float, tolerance_frac: float = 0.01
) -> Reading:
    """Returns what a visit's step times say; too few or unsettled steps are an error in words."""
    steps_s = np.asarray(step_s, dtype=np.float64)
    total_s = float(steps_s.sum())
    end_to_end = steps_s.size * samples_per_step / total_s if total_s > 0 else 0.0
    steady = steady_state(steps_s, tolerance_frac)
    if not steady.settled:
        return Reading(
            steady=steady,
            error=f"not settled: {steady.reason}",
            step_s=None,
            throughput_samples_per_s=None,
            typical_step_s=None,
            end_to_end_samples_per_s=end_to_end,
            one_off_s=0.0,
        )
    interval = visit_interval(steps_s[steady.first :])
    return Reading(
        steady=steady,
        error="",
        step_s=interval,
        throughput_samples_per_s=throughput(interval, samples_per_step),
        typical_step_s=float(np.median(steps_s[steady.first :])),
        end_to_end_samples_per_s=end_to_end,
        one_off_s=float(steps_s[: steady.first].sum()) - steady.first * interval.value,
    )
