"""The numbers of a record as MLflow's metrics: step by step, and the final ones with intervals."""

import math
from collections.abc import Mapping, Sequence

from lf_ray.measure.interval import throughput as rate_of
from lf_ray.measure.quantiles import t_quantile
from lf_ray.protocol import Interval, OutcomeKind, TrialRecord
from lf_ray.record.mirror.updates import MetricPoint, clean_key, in_ms

# MLflow's Compare page opens with the first metric, sorted or as logged, that all runs have.
FIRST_SHOWN, FIRST_SHARED = "Samples per second", "Seconds spent"
_RATED = ("noise_scale", "efficiency")
_LOSS_WINDOW_FRAC = 0.1
_MIN_LOSS_STEPS = 4


def metric_points(
    record: TrialRecord, loss_samples: int, at_s: float, left_out: Sequence[str] = ()
) -> list[MetricPoint]:
    """Returns everything that a record measured; values may be non-finite.

    Args:
        record: of one visit.
        loss_samples: where in training losses are compared, in samples.
        at_s: date of the final numbers.
        left_out: metrics that mean nothing where the record was made.
    """
    points = step_points(record)
    step = len(record.trace.wall_s) if record.trace else 0
    flat = final_numbers(record, loss_samples)
    flat |= {f"mem_{clean_key(k)}": v for k, v in record.memory_bytes.items()}
    flat |= {f"phase_ms_{clean_key(k)}": v * 1e3 for k, v in record.phases_s.items()}
    flat |= {
        clean_key(k): v for k, v in record.metrics.items() if k not in flat and k not in left_out
    }
    costs_s = record.outcome.costs_s
    flat |= {f"cost_s_{clean_key(k)}": v for k, v in costs_s.items()}
    flat[FIRST_SHARED] = sum(costs_s.values())
    first = {name: flat.pop(name) for name in (FIRST_SHOWN, FIRST_SHARED) if name in flat}
    return points_at(first, step, at_s) + points + points_at(flat, step, at_s)


def points_at(flat: Mapping[str, float], step: int, at_s: float) -> list[MetricPoint]:
    """Returns named numbers as points of one step and date."""
    return [
        MetricPoint(name=name, value=float(value), step=step, at_ms=in_ms(at_s))
        for name, value in flat.items()
    ]


def final_numbers(record: TrialRecord, loss_samples: int) -> dict[str, float]:
    """Returns the settled numbers of a record, each with its bounds; none without a measurement."""
    if not is_measured(record):
        return {}
    assert record.step_s is not None
    flat = rates(record.step_s, record.samples_per_step)
    loss = _loss_at(record, loss_samples)
    if loss is not None:
        value, reach = loss
        flat["loss_at_samples"] = value
        flat["loss_at_samples_lo"] = value - reach
        flat["loss_at_samples_hi"] = value + reach
    flat |= {
        f"{name}{end}": record.metrics[f"{name}{end}"]
        for name in _RATED
        for end in ("", "_lo", "_hi")
        if f"{name}{end}" in record.metrics
    }
    efficiency = record.metrics.get("efficiency")
    if efficiency is not None:
        rate = rate_of(record.step_s, record.samples_per_step)
        flat |= with_bounds("goodput", rate, efficiency)
    return flat


def rates(step_s: Interval, samples_per_step: int) -> dict[str, float]:
    """Returns throughput and step time with their bounds."""
    rate = rate_of(step_s, samples_per_step)
    return {
        FIRST_SHOWN: rate.value,
        **with_bounds("throughput", rate),
        **with_bounds("step_ms", step_s, 1e3),
    }


def with_bounds(name: str, interval: Interval, factor: float = 1.0) -> dict[str, float]:
    """Returns a number and its bounds as three metrics."""
    return {
        name: interval.value * factor,
        f"{name}_lo": interval.lo * factor,
        f"{name}_hi": interval.hi * factor,
    }


def is_measured(record: TrialRecord) -> bool:
    """Returns whether a record holds a finite measurement."""
    step_s = record.step_s
    if step_s is None or record.outcome.kind is not OutcomeKind.COMPLETED:
        return False
    finite = all(math.isfinite(value) for value in (step_s.value, step_s.lo, step_s.hi))
    return finite and step_s.value > 0 and record.samples_per_step > 0


def step_points(record: TrialRecord) -> list[MetricPoint]:
    """Returns the visit's steps, dated one after the other."""
    trace = record.trace
    if trace is None:
        return []
    points: list[MetricPoint] = []
    at_s = record.clock_s.get("first_step", 0.0)
    for step, wall_s in enumerate(trace.wall_s):
        at_s += wall_s
        columns = {
            "loss": trace.loss,
            "grad_norm": trace.grad_norm,
            "lr": trace.lr,
            "data_wait": trace.wait_s,
        }
        values = {name: col[step] for name, col in columns.items() if step < len(col)}
        if wall_s > 0:
            values["throughput"] = record.samples_per_step / wall_s
            values["step_ms"] = wall_s * 1e3
        points += [
            MetricPoint(name=name, value=value, step=step, at_ms=in_ms(at_s))
            for name, value in values.items()
        ]
    return points


def _loss_at(record: TrialRecord, loss_samples: int) -> tuple[float, float] | None:
    """Returns mean loss before a number of samples, the same for the whole sweep, +- 95 %.

    None where that many were not seen, or in a single step, which has no interval.
    """
    if record.trace is None or not record.samples_per_step or not loss_samples:
        return None
    end = loss_samples // record.samples_per_step
    losses = record.trace.loss[:end]
    if len(losses) < end or end < 2:
        return None
    tail = losses[-max(_MIN_LOSS_STEPS, round(end * _LOSS_WINDOW_FRAC)) :]
    mean = sum(tail) / len(tail)
    variance = sum((value - mean) ** 2 for value in tail) / (len(tail) - 1)
    return mean, t_quantile(0.975, len(tail) - 1) * (variance / len(tail)) ** 0.5
