"""Randomness as an input: every random number of a step follows from (seed, step, rank).

Noise and time steps are drawn here, outside the model, and handed in; dropout gets its seed from
here too. So eager, captured, warm and cold steps of one seed see the same numbers.

Shape suffixes: B batch per rank, T action horizon, A action width.
"""

import hashlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Draws = dict[str, Tensor]

# Beta(1.5, 1) has the distribution function x^1.5, so its inverse is u^(1/1.5).
_BETA_POWER = 1 / 1.5
_TIME_SCALE = 0.999


def step_seed(purpose: str, seed: int, step: int, rank: int, micro_batch: int = 0) -> int:
    """Returns the generator seed of one use: its own for every purpose, step, rank and part."""
    text = f"{purpose}:{seed}:{step}:{rank}:{micro_batch}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def step_draws(
    shapes: Mapping[str, tuple[int, ...]],
    generator: torch.Generator,
    seed: int,
    step: int,
    rank: int,
    micro_batch: int = 0,
) -> Draws:
    """Returns the draws that a micro-batch's loss needs, on the generator's device.

    Args:
        shapes: the model's `draw_shapes`; what a draw is follows from the first part of its name:
            noise_... is standard normal, time_... is (1 - Beta(1.5, 1)) * 0.999.
        generator: re-seeded here, so nothing it was used for before matters.
        seed: of the trial.
        step: counted from 0.
        rank: ranks draw different numbers.
        micro_batch: which part of the step's batch.
    """
    generator.manual_seed(step_seed("draws", seed, step, rank, micro_batch))
    return {name: _LAWS[name.split("_")[0]](shape, generator) for name, shape in shapes.items()}


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device)


def _time(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    uniform = torch.rand(shape, generator=generator, device=generator.device)
    return (1 - uniform.pow(_BETA_POWER)) * _TIME_SCALE


_LAWS: Mapping[str, Callable[[tuple[int, ...], torch.Generator], Tensor]] = {
    "noise": _normal,
    "time": _time,
}
