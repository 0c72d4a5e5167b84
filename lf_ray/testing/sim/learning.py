"""How a simulated run learns: a made-up loss that knows of batch, rule and samples.

It is there so that sweeps over batches can be tried without a model. The gradient noise scale is a
constant; the loss falls with the samples that count (samples times efficiency), and a learning rate
that is off from the square-root rule costs some of them. Fitted to nothing.
"""

import hashlib
import math

import numpy as np

from lf_ray.measure.gradient_noise import efficiency, gradient_noise, noise_metrics
from lf_ray.protocol import TrialRequest

NOISE_SCALE = 2000.0
_FLOOR, _RISE, _SAMPLES = 0.35, 0.8, 40_000.0
_SCATTER_FRAC = 0.02
_RULE_COST = 0.15
_EXPONENTS = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}


def simulated_loss(
    request: TrialRequest, batch: int, base_batch: int, num_steps: int
) -> tuple[float, ...]:
    """Returns the loss of each step, with scatter that a larger batch makes smaller."""
    ratio = batch / base_batch
    rule = _EXPONENTS[str(request.knobs.get("batch.lr_rule", "none"))]
    off = math.log(ratio) * (rule - 0.5)
    counts = efficiency(NOISE_SCALE, batch, base_batch) * math.exp(-_RULE_COST * off**2)
    seen = batch * (1 + np.arange(num_steps)) * counts
    level = _FLOOR + _RISE * np.exp(-np.sqrt(seen / _SAMPLES))
    scatter = _SCATTER_FRAC / math.sqrt(max(ratio, 0.1)) * _rng(request).standard_normal(num_steps)
    return tuple(float(item) for item in level * (1 + scatter))


def simulated_noise(
    request: TrialRequest, batch: int, base_batch: int, num_ranks: int
) -> dict[str, float]:
    """Returns what a visit keeps of its gradient noise; nothing where it was not asked for."""
    per_gpu = int(request.knobs["batch.per_gpu"])
    if not request.noise_steps or batch == per_gpu:
        return {}
    rng = _rng(request)
    wobble = 1 + 0.05 * rng.standard_normal((2, request.noise_steps))
    small = (1 + NOISE_SCALE / per_gpu) * (1 + (wobble[0] - 1) / math.sqrt(num_ranks))
    big = (1 + NOISE_SCALE / batch) * wobble[1]
    noise = gradient_noise(list(small), list(big), per_gpu, batch)
    return noise_metrics(noise, batch, base_batch)


def _rng(request: TrialRequest) -> np.random.Generator:
    text = f"{request.seed}/{request.id}/{sorted(request.knobs.items())}"
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[8:16], "little"))
