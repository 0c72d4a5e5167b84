"""The step as most people run it: DistributedDataParallel, autocast, fused AdamW, no graph.

A baseline that can settle: timed by events on the device, over enough steps to see the host's
noise.
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lf_ray.runtime.draws import step_draws
from lf_ray.settings import SweepConfig
from lf_ray.testing.ranks import RankPlace
from lf_ray.testing.synthetic import SyntheticParts
from models.groot_n1_6.weights import cast_parameters


class PlainDdp:
    """One rank of plain data-parallel training: fp32 weights that learn, bf16 ones that don't.

    Args:
        place: rank and process groups.
        config: model and recipe.
        batch_size: samples a rank.
    """

    def __init__(self, place: RankPlace, config: SweepConfig, batch_size: int) -> None:
        self._place = place
        self._device = torch.device(place.device)
        parts = SyntheticParts()
        model = parts.model(config, self._device)
        frozen = torch.bfloat16 if self._device.type == "cuda" else torch.float32
        cast_parameters(model, frozen=frozen, trainable=torch.float32)
        # Heads that never run were left on the host; plain data-parallel training takes all along.
        model.to(self._device).train()
        self._draw_shapes = model.draw_shapes(batch_size)
        self._parameters = [item for item in model.parameters() if item.requires_grad]
        self._model: nn.Module = DistributedDataParallel(model, process_group=place.work_group)
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=config.train.lr, weight_decay=config.train.weight_decay, fused=True
        )
        self._clip_norm = config.train.clip_norm
        self._loader = parts.loader(config, place.rank, 0, batch_size, self._device)
        self._generator = torch.Generator(self._device)

    def step(self, number: int) -> Tensor:
        """Runs a step and returns its loss, without waiting for it."""
        host_batch, _ = self._loader.next()
        batch = {
            name: item.to(self._device, non_blocking=True) for name, item in host_batch.items()
        }
        draws = step_draws(self._draw_shapes, self._generator, 0, number, self._place.rank)
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device.type, torch.bfloat16):
            loss: Tensor = self._model(batch, draws)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self._parameters, self._clip_norm)
        self._optimizer.step()
        return loss.detach()

    def times_s(self, num_steps: int) -> list[float]:
        """Returns the time of each of some steps, from the end of the one before."""
        if self._device.type == "cpu":
            return [_host_s(partial(self.step, number)) for number in range(num_steps)]
        marks = []
        for number in range(num_steps + 1):
            mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            mark.record()
            marks.append(mark)
            if number < num_steps:
                self.step(number)
        marks[-1].synchronize()
        return [first.elapsed_time(last) / 1e3 for first, last in pairwise(marks)]


def _host_s(action: Callable[[], Any]) -> float:
    began_s = time.perf_counter()
    action()
    return time.perf_counter() - began_s
