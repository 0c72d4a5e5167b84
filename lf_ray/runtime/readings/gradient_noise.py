"""Takes squared gradient norms of a small and a large batch at the same weights.

Small: each rank's first micro-batch, before anything is sent. Large: the mean over all
micro-batches and ranks, after the sum. Both are there in every step whose buckets leave after
backward, so such steps are run, without an update, once the timed ones are over: no timed step
pays for it, and the norms stay on the device until the last step has been started.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from lf_ray.runtime.rig import Rig
from lf_ray.runtime.steps.feed import Feed
from lf_ray.runtime.steps.laps import NoLaps
from lf_ray.runtime.steps.train_step import StepInputs

SquaredNorms = tuple[list[float], list[float]]


def squared_norms(
    rig: Rig, feed: Feed, first_step: int, num_steps: int, *, num_ranks: int
) -> SquaredNorms:
    """Returns |g|^2 of the small and of the large batch, one of each a step.

    Every rank must call it; the reducer's plan must issue nothing during backward. A single rank
    without accumulation takes two steps' batches for one, so that there is a larger batch at all.

    Args:
        rig: model and reducer; weights are left as they are.
        feed: of the trial.
        first_step: whose batch comes first.
        num_steps: pairs of norms.
        num_ranks: that gradients are summed over.
    """
    alone = num_ranks == 1 and feed.key.accumulation == 1
    small: list[Tensor] = []
    big: list[Tensor] = []
    step = first_step
    for _ in range(num_steps):
        rig.dropout.manual_seed(feed.dropout_seed(step))
        inputs, _ = feed.next(step, NoLaps())
        step += 1
        if alone:
            more, _ = feed.next(step, NoLaps())
            inputs = _joined(inputs, more)
            step += 1
        features = rig.train_step.prefix(inputs.batches, NoLaps())
        rig.train_step.forward_backward(features, inputs, NoLaps(), _taker(rig, small))
        rig.train_step.reduce(NoLaps())
        big.append(_squared(rig.reducer.reduced_N) / (num_ranks * inputs.num_micro_batches) ** 2)
    return _read(small), _read(big)


def small_and_big(per_gpu: int, accumulation: int, num_ranks: int) -> tuple[int, int]:
    """Returns the samples of the small and of the large batch that `squared_norms` compares."""
    pairs = 2 if accumulation * num_ranks == 1 else 1
    return per_gpu, per_gpu * accumulation * num_ranks * pairs


def _taker(rig: Rig, small: list[Tensor]) -> Callable[[int], None]:
    def take(index: int) -> None:
        if index == 0:
            small.append(_squared(rig.reducer.own_gradient()))

    return take


@torch.no_grad()
def _squared(values_N: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(values_N, dtype=torch.float32)
    return norm.square()


def _joined(one: StepInputs, other: StepInputs) -> StepInputs:
    return StepInputs([*one.batches, *other.batches], [*one.draws, *other.draws])


def _read(norms: list[Tensor]) -> list[float]:
    values: list[float] = torch.stack(norms).tolist()
    return values
