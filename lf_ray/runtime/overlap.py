"""Sends gradient buckets: the leading ones while backward still runs, the rest after it.

Hooks copy each gradient into the flat buffer as soon as backward has made it (a copy reads and
writes once; a preset view would be zeroed, read and written again), and issue buckets in the
plan's order, never out of it, so that all ranks send the same messages in the same order.

Shape suffix: N elements of the flat buffers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lf_ray.errors import LfRayError, four_parts
from lf_ray.runtime.bucket_plan import BucketPlan
from lf_ray.runtime.update.collectives import Collective, NoCollective
from lf_ray.runtime.update.flat import FlatGradients

# Gradients that wait for their bucket are copied at the latest when they reach this many elements,
# so that a huge bucket does not hold a second copy of everything; a copy of few tensors is slow.
_FLUSH_ELEMENTS = 256 * 2**20


class GradientReducer:
    """Collects gradients from backward and sums them over the ranks by plan.

    One step is: for each micro-batch `expect`, then backward; after the last one `finish`. Only
    the last micro-batch issues buckets.

    Args:
        flat: where the parameters' gradients go.
        with_hooks: hook its parameters; else the caller hands gradients to `take`.

    Attributes:
        reduced_N: the buffer that is sent and that holds the sum over ranks after `finish`;
            scattered, of this rank's parts until `complete`.
    """

    def __init__(self, flat: FlatGradients, *, with_hooks: bool = True) -> None:
        self._flat = flat
        self._collective: Collective = NoCollective()
        self._plan: BucketPlan | None = None
        self._num_leading = 0
        self._is_scattered = False
        self._bucket_of: list[int] = []
        self.reduced_N = flat.grad_N
        self._first_micro_batch = True
        self._last_micro_batch = True
        self._is_ready = [False] * len(flat.slots)
        self._num_missing: list[int] = []
        self._pending: list[tuple[int, Tensor]] = []
        self._pending_elements = 0
        self._next_bucket = 0
        self._handles = [
            on_gradient(slot.parameter, self._hook(index))
            for index, slot in enumerate(flat.slots)
            if with_hooks
        ]

    def use(
        self,
        plan: BucketPlan,
        num_leading: int,
        collective: Collective,
        *,
        scattered: bool = False,
    ) -> None:
        """Sets what the coming steps send, how much of it during backward, and through what.

        Scattered, each rank gets the sum of its own part of a bucket only.
        """
        self._plan, self._num_leading, self._collective = plan, num_leading, collective
        self._is_scattered = scattered
        order = {slot.name: index for index, slot in enumerate(self._flat.slots)}
        self._bucket_of = [0] * len(order)
        for number, bucket in enumerate(plan.buckets):
            for name in bucket.names:
                self._bucket_of[order[name]] = number
        if plan.comm_dtype == "fp32":
            self.reduced_N = self._flat.grad_N
        elif self.reduced_N is self._flat.grad_N:
            self.reduced_N = torch.zeros_like(self._flat.grad_N, dtype=torch.bfloat16)

    def expect(self, *, first: bool, last: bool) -> None:
        """Prepares for one micro-batch's backward."""
        assert self._plan is not None
        self._first_micro_batch, self._last_micro_batch = first, last
        self._is_ready = [False] * len(self._is_ready)
        self._num_missing = [len(bucket.names) for bucket in self._plan.buckets]
        self._next_bucket = 0
        # A backward that ended in an error has left its gradients here.
        self._pending.clear()
        self._pending_elements = 0

    def take(self, index: int, gradient: Tensor) -> None:
        """Takes in the gradient of a slot; completes and issues buckets."""
        if self._is_ready[index]:
            raise LfRayError(
                four_parts(
                    "reducing gradients during backward",
                    "a parameter becomes ready once in a backward",
                    f"{self._flat.slots[index].name} a second time",
                    "If activations are checkpointed, use the non-reentrant form "
                    "(use_reentrant=False).",
                )
            )
        self._is_ready[index] = True
        self._pending.append((index, gradient))
        self._pending_elements += gradient.numel()
        number = self._bucket_of[index]
        self._num_missing[number] -= 1
        complete = self._num_missing[number] == 0
        if complete or self._pending_elements >= _FLUSH_ELEMENTS:
            self._flush()
        if complete and self._last_micro_batch:
            self._issue_leading()

    def end_micro_batch(self) -> None:
        """Takes in what backward has left: gradients not yet copied, and those that never came."""
        self._flush()
        if self._first_micro_batch:
            for index, ready in enumerate(self._is_ready):
                if not ready:
                    self._flat.slots[index].view(self._target()).zero_()

    def finish(self) -> None:
        """Issues the buckets that are left and waits for all of them."""
        assert self._plan is not None
        for number in range(self._next_bucket, len(self._plan.buckets)):
            self._issue(number)
        self._next_bucket = len(self._plan.buckets)
        self._collective.wait()

    def complete(self) -> None:
        """Brings the sums of the other ranks' parts here; every rank must call it."""
        assert self._plan is not None
        if not self._is_scattered:
            return
        for bucket in self._plan.buckets:
            self._collective.start_gather(self.reduced_N[bucket.first : bucket.last])
        self._collective.wait()

    def release(self) -> None:
        """Drops the wire buffer, which only some plans need."""
        self.reduced_N = self._flat.grad_N

    def close(self) -> None:
        """Takes the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def own_gradient(self) -> Tensor:
        """Returns this rank's own gradient, summed over the micro-batches so far.

        Only between micro-batches, or after the last one where no bucket has been issued.
        """
        return self._target()

    @property
    def _is_direct(self) -> bool:
        """Whether gradients go straight to the wire buffer: nothing to accumulate before."""
        return self._first_micro_batch and self._last_micro_batch

    def _target(self) -> Tensor:
        return self.reduced_N if self._is_direct else self._flat.grad_N

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        def on_ready(parameter: Tensor) -> None:
            gradient, parameter.grad = parameter.grad, None
            assert gradient is not None
            self.take(index, gradient)

        return on_ready

    def _issue_leading(self) -> None:
        while self._next_bucket < self._num_leading and not self._num_missing[self._next_bucket]:
            self._issue(self._next_bucket)
            self._next_bucket += 1

    @torch.no_grad()
    def _flush(self) -> None:
        if not self._pending:
            return
        target_N = self._target()
        views = [self._flat.slots[index].view(target_N) for index, _ in self._pending]
        gradients = [gradient for _, gradient in self._pending]
        if self._first_micro_batch:
            torch._foreach_copy_(views, gradients)
        else:
            torch._foreach_add_(views, gradients)
        self._pending.clear()
        self._pending_elements = 0

    def _issue(self, number: int) -> None:
        assert self._plan is not None
        bucket = self._plan.buckets[number]
        wire_N = self.reduced_N[bucket.first : bucket.last]
        if self.reduced_N is not self._flat.grad_N and not self._is_direct:
            wire_N.copy_(self._flat.grad_N[bucket.first : bucket.last])
        if self._is_scattered:
            self._collective.start_scatter(wire_N)
        else:
            self._collective.start(wire_N)


def ready_order(
    parameters: Sequence[tuple[str, Tensor]], backward: Callable[[], None]
) -> list[str]:
    """Returns the names of the parameters in the order in which `backward()` makes them ready.

    Parameters that receive no gradient are left out. All gradients are dropped again.
    """
    order: list[str] = []
    handles = [on_gradient(parameter, _recorder(name, order)) for name, parameter in parameters]
    try:
        backward()
    finally:
        for handle in handles:
            handle.remove()
    return list(dict.fromkeys(order))


def on_gradient(parameter: Tensor, call: Callable[[Tensor], None]) -> Any:
    """Has `call(parameter)` run as soon as backward has made its gradient; returns the handle."""
    return parameter.register_post_accumulate_grad_hook(call)  # type: ignore[no-untyped-call]


def _recorder(name: str, order: list[str]) -> Callable[[Tensor], None]:
    def record(parameter: Tensor) -> None:
        order.append(name)
        parameter.grad = None

    return record
