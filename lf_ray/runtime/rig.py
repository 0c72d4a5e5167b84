"""What a group keeps between trials: the model with flat buffers, its optimizer and a snapshot.

Shape suffix: N elements of the flat buffers.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lf_ray.errors import CheckpointError, four_parts
from lf_ray.protocol import GradientTensor
from lf_ray.runtime.bucket_plan import BucketPlan, bucket_plan, padded_elements
from lf_ray.runtime.host_copy import HostCopy
from lf_ray.runtime.numerics.digest import checksum
from lf_ray.runtime.overlap import GradientReducer, ready_order
from lf_ray.runtime.steps.laps import NoLaps
from lf_ray.runtime.steps.train_step import StepInputs, TrainStep, requires_backward
from lf_ray.runtime.update.collectives import Collective, NoCollective
from lf_ray.runtime.update.flat import FlatParameters, gradient_tensors
from lf_ray.runtime.update.optimizer import step_optimizer
from lf_ray.runtime.update.shares import Shares
from lf_ray.settings import TrainSettings


class Rig:
    """One worker's trainable state, laid out in the ready order of its first backward.

    Args:
        model: an nn.Module that is a `StepModel`, on its device.
        inputs: of the first step.
        snapshot: room for `most_elements` of the model.
    """

    def __init__(
        self,
        model: Any,
        inputs: StepInputs,
        settings: TrainSettings,
        *,
        rank: int,
        num_ranks: int,
        device: torch.device,
        snapshot: HostCopy,
    ) -> None:
        self.model = model
        self._rank, self._num_ranks = rank, num_ranks
        self._shares: Shares | None = None
        self.dropout = torch.Generator(device)
        if hasattr(model, "set_generator"):
            model.set_generator(self.dropout)
        self.is_prefix_frozen = True
        self._snapshot = snapshot
        named = self._ready_parameters(inputs)
        self.gradients: tuple[GradientTensor, ...] = gradient_tensors(named)
        self.flat = FlatParameters(named)
        self.optimizer = step_optimizer(self.flat, settings)
        self.reducer = GradientReducer(self.flat)
        self.train_step = TrainStep(
            model,
            self.reducer,
            self.optimizer,
            prefix_is_frozen=self.is_prefix_frozen,
            num_ranks=num_ranks,
        )
        self._snapshot.take(self.flat.master_N)
        self._buffers = {name: item.to("cpu", copy=True) for name, item in model.named_buffers()}

    @property
    def whole_buffer(self) -> BucketPlan:
        """Returns the plan of the reference: everything in one fp32 message."""
        return bucket_plan(self.gradients, 1.0, "fp32", bounds=[self.gradients[-1].name])

    def use(
        self, plan: BucketPlan, num_leading: int, collective: Collective, *, sharded: bool = False
    ) -> None:
        """Sets what the coming steps send, and whether a rank updates its own part only."""
        self.reducer.use(plan, num_leading, collective, scattered=sharded)
        own = Shares(plan, self._rank, self._num_ranks, collective) if sharded else None
        self._shares = own
        self.optimizer.use(own)

    def release(self) -> None:
        """Frees what only some plans need; no graph may be left."""
        self.reducer.release()
        self._shares = None
        self.optimizer.release()

    def share_weights(self) -> None:
        """Sends what ranks update apart, as the end of a step does; nothing where they don't."""
        if self._shares is not None:
            self._shares.collect(self.flat.computed_with)

    def collect(self) -> None:
        """Brings masters and moments of all parts here; every rank must call it."""
        if self._shares is not None:
            whole = self.flat.master_N.shape
            buffers = [item for item in self._state_buffers().values() if item.shape == whole]
            self._shares.collect(buffers)

    @torch.no_grad()
    def restore(self) -> None:
        """Brings back weights, buffers and optimizer as they were before any step."""
        self._snapshot.give(self.flat.master_N)
        self.flat.refresh_weights()
        for name, buffer in self.model.named_buffers():
            buffer.copy_(self._buffers[name])
        self.optimizer.reset()

    def rehearse(self, inputs: StepInputs) -> None:
        """Runs forward and backward on a batch without sending or updating anything."""
        self.use(self.whole_buffer, 0, NoCollective())
        features = self.train_step.prefix(inputs.batches, NoLaps())
        self.train_step.forward_backward(features, inputs, NoLaps())

    def state(self) -> dict[str, Tensor]:
        """Returns masters and moments by tensor, and the optimizer's counters, on the host.

        Sharded, they are whole after `collect` only.
        """
        found = {}
        for kind, buffer in self._state_buffers().items():
            if buffer.shape == self.flat.master_N.shape:
                for slot in self.flat.slots:
                    found[f"{kind}.{slot.name}"] = slot.view(buffer).to("cpu", copy=True)
            else:
                found[kind] = buffer.to("cpu", copy=True)
        return found

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Sets what `state` returned.

        Raises:
            CheckpointError: a tensor is missing or of another shape.
        """
        for kind, buffer in self._state_buffers().items():
            if buffer.shape == self.flat.master_N.shape:
                for slot in self.flat.slots:
                    _load(slot.view(buffer), state, f"{kind}.{slot.name}")
            else:
                _load(buffer, state, kind)
        self.flat.refresh_weights()

    def weights_checksum(self) -> int:
        """Returns a checksum over the bits of all masters."""
        return int(checksum(self.flat.master_N))

    def close(self) -> None:
        """Takes the hooks off the model."""
        self.reducer.close()

    def _ready_parameters(self, inputs: StepInputs) -> list[tuple[str, torch.nn.Parameter]]:
        trainable = {
            name: parameter
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }

        def first_backward() -> None:
            features = self.model.prefix(inputs.batches[0])
            self.is_prefix_frozen = not requires_backward(features)
            self.model.head_loss(features, inputs.batches[0], inputs.draws[0]).backward()

        order = ready_order(list(trainable.items()), first_backward)
        return [(name, trainable[name]) for name in order]

    def _state_buffers(self) -> dict[str, Tensor]:
        return {"master": self.flat.master_N, **self.optimizer.state()}


def most_elements(model: Any) -> int:
    """Returns the elements of a model's flat buffers, padding included, if all that learns is used.

    Known before the first backward, which shows what is.
    """
    trainable = [item for item in model.parameters() if item.requires_grad]
    return padded_elements(sum(padded_elements(item.numel()) for item in trainable))


def _load(target: Tensor, state: Mapping[str, Tensor], name: str) -> None:
    found = state.get(name)
    if found is None or found.shape != target.shape:
        raise CheckpointError(
            four_parts(
                "resuming a training state",
                f"{name} has shape {list(target.shape)}",
                "nothing" if found is None else f"shape {list(found.shape)}",
                "Resume with the model and tuning flags that it was saved with.",
            )
        )
    target.copy_(found)
