"""The gradient noise scale, and what a batch is statistically worth.

With G the true gradient and S the trace of a single sample's gradient covariance, a mean gradient
over n samples has E|g_n|^2 = |G|^2 + S/n. From one small and one large batch at the same weights
both follow without bias (McCandlish et al. 2018, appendix A.1); S/|G|^2 is the simple noise scale,
in samples. A batch of M samples is worth (scale + M0) / (scale + M) of a sample of batch M0
(Pollux, Qiao et al. 2021, eq. 5).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lf_ray.measure.quantiles import t_quantile
from lf_ray.protocol import Interval

MIN_STEPS = 2
_NAMES = ("signal", "trace", "signal_var", "trace_var", "cov", "steps")


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientNoise:
    """Unbiased estimates from several steps, with the errors of their means.

    Attributes:
        signal: |G|^2; may come out negative where the noise is large.
        trace: S, the trace of the covariance of one sample's gradient.
        signal_var: variance of `signal`, likewise `trace_var`; `cov` is their covariance.
        steps: that it rests on.
    """

    signal: float
    trace: float
    signal_var: float
    trace_var: float
    cov: float
    steps: int

    def to_metrics(self) -> dict[str, float]:
        """Returns it as flat numbers, as a record keeps it."""
        return {f"noise_{name}": float(getattr(self, name)) for name in _NAMES}


def gradient_noise(
    small_sq: Sequence[float], big_sq: Sequence[float], small_batch: int, big_batch: int
) -> GradientNoise:
    """Returns the estimates of some steps at the same weights.

    Args:
        small_sq: squared norm of a mean gradient over `small_batch` samples, mean over ranks.
        big_sq: squared norm of the mean gradient over `big_batch` samples, same steps.
        small_batch: samples; fewer than `big_batch`.
        big_batch: samples.

    Raises:
        ValueError: the batches are equal, or there are fewer than two steps.
    """
    if not 0 < small_batch < big_batch or len(small_sq) < MIN_STEPS:
        raise ValueError(
            f"the noise scale needs a small and a large batch and {MIN_STEPS} steps, got "
            f"{small_batch}, {big_batch} and {len(small_sq)}"
        )
    small, big = np.asarray(small_sq, dtype=float), np.asarray(big_sq, dtype=float)
    signal = (big_batch * big - small_batch * small) / (big_batch - small_batch)
    trace = (small - big) / (1 / small_batch - 1 / big_batch)
    cov = np.cov(np.stack([signal, trace])) / small.size
    return GradientNoise(
        signal=float(signal.mean()),
        trace=float(trace.mean()),
        signal_var=float(cov[0, 0]),
        trace_var=float(cov[1, 1]),
        cov=float(cov[0, 1]),
        steps=int(small.size),
    )


def noise_of(metrics: Mapping[str, float]) -> GradientNoise | None:
    """Returns what `to_metrics` wrote, None where the record has none of it."""
    if not all(f"noise_{name}" in metrics for name in _NAMES):
        return None
    found = {name: metrics[f"noise_{name}"] for name in _NAMES}
    if not all(math.isfinite(value) for value in found.values()):
        return None
    steps = int(found.pop("steps"))
    return GradientNoise(steps=steps, **found)


def pooled_noise(parts: Iterable[GradientNoise]) -> GradientNoise | None:
    """Returns one estimate from several visits, weighted by their steps; None from none.

    Where visits differ by more than their own errors say, the errors grow by that.
    """
    items = list(parts)
    total = sum(item.steps for item in items)
    if not items:
        return None
    weights = np.array([item.steps / total for item in items])
    means = np.array([[item.signal, item.trace] for item in items])
    mean = weights @ means
    covs = np.array([[[item.signal_var, item.cov], [item.cov, item.trace_var]] for item in items])
    cov = np.einsum("v,vij->ij", weights**2, covs)
    if len(items) > 1:
        off = means - mean
        between = np.einsum("v,vi,vj->ij", weights**2, off, off) * len(items) / (len(items) - 1)
        if np.trace(between / np.outer(mean, mean)) > np.trace(cov / np.outer(mean, mean)):
            cov = between
    return GradientNoise(
        signal=float(mean[0]),
        trace=float(mean[1]),
        signal_var=float(cov[0, 0]),
        trace_var=float(cov[1, 1]),
        cov=float(cov[0, 1]),
        steps=total,
    )


def noise_scale(noise: GradientNoise, num_visits: int = 1) -> Interval:
    """Returns S/|G|^2 in samples, with the 95 % interval of a ratio of means (Fieller 1954).

    Infinite where |G|^2 can't be told from zero: the batch is then small against the noise.
    """
    t = t_quantile(0.975, max(1, noise.steps - 1))
    signal, trace = noise.signal, max(noise.trace, 0.0)
    a = signal**2 - t**2 * noise.signal_var
    b = signal * trace - t**2 * noise.cov
    c = trace**2 - t**2 * noise.trace_var
    value = trace / signal if signal > 0 else math.inf
    if a <= 0 or signal <= 0:
        most = max(signal, 0.0) + t * math.sqrt(noise.signal_var)
        least = max(0.0, trace - t * math.sqrt(noise.trace_var))
        lo, hi = (least / most if most > 0 else 0.0), math.inf
    else:
        reach = math.sqrt(max(0.0, b**2 - a * c))
        lo, hi = max(0.0, (b - reach) / a), max(0.0, (b + reach) / a)
    return Interval(
        value=value,
        lo=min(lo, value),
        hi=max(hi, value),
        num_steps=noise.steps,
        num_visits=num_visits,
    )


def efficiency(scale: float, batch: int, base_batch: int) -> float:
    """Returns what a sample in a batch of `batch` is worth, as a share of one in `base_batch`.

    1 at the base batch and for an infinite noise scale; `base_batch / batch` without any noise.
    """
    return 1.0 if math.isinf(scale) else (scale + base_batch) / (scale + batch)


def efficiency_interval(scale: Interval, batch: int, base_batch: int) -> Interval:
    """Returns the efficiency with the bounds that the noise scale's give."""
    ends = [efficiency(value, batch, base_batch) for value in (scale.lo, scale.hi)]
    return Interval(
        value=efficiency(scale.value, batch, base_batch),
        lo=min(ends),
        hi=max(ends),
        num_steps=scale.num_steps,
        num_visits=scale.num_visits,
    )


def noise_metrics(noise: GradientNoise, batch: int, base_batch: int) -> dict[str, float]:
    """Returns what a record keeps of a visit's noise: finite numbers only.

    Args:
        noise: of the visit.
        batch: its global batch.
        base_batch: the baseline's.
    """
    scale = noise_scale(noise)
    worth = efficiency_interval(scale, batch, base_batch)
    flat = noise.to_metrics()
    for name, interval in (("noise_scale", scale), ("efficiency", worth)):
        flat |= {name: interval.value, f"{name}_lo": interval.lo, f"{name}_hi": interval.hi}
    return {name: value for name, value in flat.items() if math.isfinite(value)}
