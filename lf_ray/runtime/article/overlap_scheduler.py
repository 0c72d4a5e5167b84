"""The article's OverlapScheduler: bucketed all-reduce beside backward, for any module.

The optimizer stays the user's own: after `loss.backward()` every `parameter.grad` is the mean over
ranks, so clipping and `optimizer.step()` are right inside the `with` as well as after it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lf_ray.errors import ConfigError, LfRayError, four_parts
from lf_ray.runtime.article.bounds import Bounds, hand_cut, head_cut
from lf_ray.runtime.bucket_plan import (
    BucketPlan,
    bucket_plan,
    issued_during_backward,
    share_during_backward,
)
from lf_ray.runtime.overlap import GradientReducer, on_gradient
from lf_ray.runtime.update.collectives import collective_for
from lf_ray.runtime.update.flat import FlatGradients, gradient_tensors, layer_of

_BACKENDS = ("nccl", "gloo")


class OverlapScheduler:
    """Reduces gradients by buckets, the leading ones during backward.

    The first backward shows in which order gradients become ready; it reduces everything at its
    end. From the second one on buckets overlap.

    Args:
        model: any module; what it computes is not touched.
        bucket_size_mb: MiB as sent.
        overlap_ratio: share of bytes that is issued during backward.
        backend: "nccl" or "gloo"; a group of it is made where the default group has another one.
        bucket_bounds: buckets cut by hand; see `article.bounds.hand_cut`.
        head_bucket_size_mb: size of the buckets below modules called "head", "action_head" or the
            like; None takes `bucket_size_mb`.
        comm_dtype: "fp32" or "bf16".
    """

    def __init__(
        self,
        model: nn.Module,
        bucket_size_mb: float = 64,
        overlap_ratio: float = 0.8,
        backend: str = "nccl",
        *,
        bucket_bounds: Bounds | None = None,
        head_bucket_size_mb: float | None = None,
        comm_dtype: str = "fp32",
    ) -> None:
        self._named = [
            (name, item) for name, item in model.named_parameters() if item.requires_grad
        ]
        _check(self._named, overlap_ratio, backend)
        self.bucket_size_mb, self.overlap_ratio = bucket_size_mb, overlap_ratio
        self._head_bucket_size_mb = head_bucket_size_mb
        self._comm_dtype = comm_dtype
        names = [name for name, _ in self._named]
        layers = [layer_of(name) for name in names]
        self._hand_cut = hand_cut(names, layers, bucket_bounds) if bucket_bounds else None
        device = self._named[0][1].device
        group = _group_of(backend)
        self._num_ranks = dist.get_world_size(group) if group is not None else 1
        self._collective = collective_for(group, device)
        self._order: list[str] = []
        self._places: dict[str, int] = {}
        self._flat: FlatGradients | None = None
        self._reducer: GradientReducer | None = None
        self.plan: BucketPlan | None = None
        self._active = self._sends = False
        self._first_micro_batch = True
        self._is_queued = False
        self._handles = [
            on_gradient(parameter, self._note(name)) for name, parameter in self._named
        ]

    @property
    def num_buckets(self) -> int:
        """Returns the number of messages a step; 0 before the first backward."""
        return len(self.plan.buckets) if self.plan else 0

    @property
    def share_during_backward(self) -> float:
        """Returns the share of bytes that is really issued during backward."""
        return share_during_backward(self.plan, self.overlap_ratio) if self.plan else 0.0

    @contextmanager
    def overlap(self, *, accumulate: bool = False) -> Iterator["OverlapScheduler"]:
        """Reduces the gradients of the backward that runs inside.

        Args:
            accumulate: a micro-batch before the last one; nothing is sent, gradients add up.
        """
        self._active, self._sends, self._is_queued = True, not accumulate, False
        try:
            yield self
        finally:
            self._active = False

    def close(self) -> None:
        """Takes the hooks off the model."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _note(self, name: str) -> Any:
        def on_ready(parameter: Tensor) -> None:
            if not self._active:
                return
            if not self._is_queued:
                # Borrowed seam (tests/unit/runtime/article/test_seams.py): runs when this
                # backward is done, still inside it.
                torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
                self._is_queued = True
                if self._reducer is not None:
                    self._reducer.expect(first=self._first_micro_batch, last=self._sends)
            if self._reducer is None:
                self._order.append(name)
            else:
                self._take(name, parameter)

        return on_ready

    def _take(self, name: str, parameter: Tensor) -> None:
        assert self._reducer is not None
        if name not in self._places:
            raise LfRayError(
                four_parts(
                    "overlapping gradients with backward",
                    "the parameters that get gradients are those of the first backward",
                    name,
                    "Make a new OverlapScheduler when another part of the model starts to learn.",
                )
            )
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        self._reducer.take(self._places[name], gradient)

    def _end_backward(self) -> None:
        self._is_queued = False
        if self._reducer is None:
            self._lay_out()
        assert self._reducer is not None
        self._reducer.end_micro_batch()
        self._first_micro_batch = False
        if self._sends:
            self._reducer.finish()
            self._hand_back()
            self._first_micro_batch = True

    def _lay_out(self) -> None:
        """Makes the buffers and the plan from the first backward, and takes its gradients in."""
        order = list(dict.fromkeys(self._order))
        parameters = dict(self._named)
        groups = _by_bucket(order, self._hand_cut)
        laid_out = [(name, parameters[name]) for group in groups for name in group]
        self._places = {name: place for place, (name, _) in enumerate(laid_out)}
        self._flat = FlatGradients(laid_out)
        self.plan = self._plan_for(laid_out, [group[-1] for group in groups])
        self._reducer = GradientReducer(self._flat, with_hooks=False)
        leading = issued_during_backward(self.plan, self.overlap_ratio)
        self._reducer.use(self.plan, 0, self._collective)
        self._reducer.expect(first=True, last=self._sends)
        for name in order:
            self._take(name, parameters[name])
        self._reducer.use(self.plan, leading, self._collective)

    def _plan_for(
        self, laid_out: Sequence[tuple[str, nn.Parameter]], ends: list[str]
    ) -> BucketPlan:
        gradients = gradient_tensors(laid_out)
        if self._hand_cut is None:
            if self._head_bucket_size_mb is None:
                return bucket_plan(gradients, self.bucket_size_mb, self._comm_dtype)
            sizes_mb = self.bucket_size_mb, self._head_bucket_size_mb
            ends = head_cut(gradients, *sizes_mb, self._comm_dtype)
        return bucket_plan(gradients, self.bucket_size_mb, self._comm_dtype, bounds=ends)

    @torch.no_grad()
    def _hand_back(self) -> None:
        assert self._reducer is not None
        assert self._flat is not None
        reduced_N = self._reducer.reduced_N
        if self._num_ranks > 1:
            reduced_N.div_(self._num_ranks)
        for slot in self._flat.slots:
            mean = slot.view(reduced_N)
            slot.parameter.grad = mean.to(slot.parameter.dtype)


def _by_bucket(order: Sequence[str], cut: Sequence[Sequence[str]] | None) -> list[list[str]]:
    """Returns the tensors of each bucket in ready order, buckets in the order they complete."""
    if cut is None:
        return [list(order)]
    place = {name: index for index, name in enumerate(order)}
    groups = [sorted((name for name in names if name in place), key=place.get) for names in cut]  # type: ignore[arg-type]
    return sorted((group for group in groups if group), key=lambda group: place[group[-1]])


def _check(named: Sequence[tuple[str, nn.Parameter]], overlap_ratio: float, backend: str) -> None:
    doing = "making an OverlapScheduler"
    if not named:
        raise ConfigError(
            four_parts(doing, "something in the model learns", "no parameter", "Unfreeze some.")
        )
    if not 0 <= overlap_ratio <= 1:
        raise ConfigError(
            four_parts(doing, "overlap_ratio is from 0 to 1", f"{overlap_ratio}", "Start at 0.6.")
        )
    if backend not in _BACKENDS:
        raise ConfigError(
            four_parts(
                doing,
                f"backend is one of {', '.join(_BACKENDS)}",
                repr(backend),
                "Use one of them.",
            )
        )
    if backend == "nccl" and named[0][1].device.type != "cuda":
        raise ConfigError(
            four_parts(
                doing,
                "backend nccl sends from GPUs",
                f"parameters on {named[0][1].device}",
                "Use backend='gloo', or move the model to a GPU first.",
            )
        )


def _group_of(backend: str) -> Any:
    if not dist.is_initialized():
        return None
    if backend in dist.get_backend():
        return dist.group.WORLD
    return dist.new_group(backend=backend)
