"""Takes the digests of a trial's first steps, keeps references, asks the gate.

Shape suffix: N elements of the flat buffers.
"""

import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lf_ray.protocol import GateResult
from lf_ray.runtime.bucket_plan import BucketPlan
from lf_ray.runtime.host_copy import HostCopy
from lf_ray.runtime.numerics.digest import StepDigest, step_digest
from lf_ray.runtime.numerics.gate import RankView, gate_result, needs_bits_only
from lf_ray.runtime.numerics.reference import (
    FirstStepDifference,
    Reference,
    Shard,
    first_step_difference,
    shard_bounds,
    shard_room,
    spread_frac,
)
from lf_ray.runtime.rig import Rig

# Runs a reference's steps; the first callback is called with a step's number when its gradient is
# still this rank's own, the second when it is reduced.
RunSteps = Callable[[Callable[[int], None], Callable[[int], None]], None]


@dataclass(slots=True)
class _Trial:
    key: Hashable
    buckets: BucketPlan
    sharded: bool
    steps: list[StepDigest] = field(default_factory=list)
    first_step: FirstStepDifference | None = None

    @property
    def messages(self) -> tuple[BucketPlan, bool]:
        """Returns what the sums of other ranks depend on."""
        return self.buckets, self.sharded


class NumericsWatch:
    """One rank's side of the numerics gate.

    Args:
        rig: whose reduced gradients are looked at.
        num_steps: first steps of every trial that are compared.
        control_group: where ranks exchange digests; None for a single rank.
        room: for the first reference.
    """

    def __init__(
        self,
        rig: Rig,
        *,
        num_steps: int,
        rank: int,
        num_ranks: int,
        control_group: Any,
        room: list[HostCopy],
    ) -> None:
        self.num_steps = num_steps
        self.spent_s = 0.0
        self._rig = rig
        self._rank, self._num_ranks = rank, num_ranks
        self._control_group = control_group
        self._references: dict[Hashable, Reference] = {}
        self._plan_words: dict[Hashable, tuple[str, ...]] = {}
        self._trial: _Trial | None = None
        self._deterministic: tuple[tuple[BucketPlan, bool], GateResult] | None = None
        self._room = room

    def held_tensors(self) -> Iterator[Tensor]:
        """Yields the gradients that references keep on the host, and the room for the next."""
        shards = [reference.shard for reference in self._references.values()]
        copies = [item for shard in shards for item in (shard.grad_N, shard.abs_N)]
        for copy in filter(None, [*copies, *self._room]):
            yield copy.kept_N

    def knows(self, key: Hashable) -> bool:
        """Returns whether the reference of this batch shape is there."""
        return key in self._references

    def begin(self, key: Hashable, buckets: BucketPlan, *, sharded: bool) -> None:
        """Starts to watch a trial; room for a reference that is still to come is made meanwhile.

        With a reference none is left, nor being made while steps are captured or timed.
        """
        self._trial = _Trial(key, buckets, sharded)
        if self.knows(key):
            self._take_room()
        elif self.num_steps and not self._room:
            self._room = self._new_room()

    def wants(self, step: int) -> bool:
        """Returns whether a step's digest is still to be taken."""
        return self._trial is not None and len(self._trial.steps) == step < self.num_steps

    def look(self, step: int) -> None:
        """Takes the digest of a step whose gradient is reduced; waits for the device.

        Steps that are not wanted are left alone; the others every rank must look at.
        """
        if not self.wants(step):
            return
        assert self._trial is not None
        began_s = time.perf_counter()
        trial, rig = self._trial, self._rig
        rig.reducer.complete()
        reference = self._references[trial.key]
        exact = needs_bits_only(trial.buckets.comm_dtype, self._num_ranks, reference)
        trial.steps.append(self._digest(with_sums=not exact))
        if step == 0 and not exact:
            trial.first_step = first_step_difference(
                rig.flat.slots, rig.reducer.reduced_N, reference.shard, self._num_ranks
            )
        self.spent_s += time.perf_counter() - began_s

    def take_reference(self, key: Hashable, run_steps: RunSteps, work_group: Any) -> None:
        """Runs the reference twice and stores it.

        Args:
            key: of the batch shape.
            run_steps: runs the first steps from the restored state.
            work_group: over which local magnitudes are summed; None for a single rank.
        """
        runs: list[list[StepDigest]] = []
        shards: list[Shard] = []
        magnitudes: list[Tensor] = []
        for _ in range(2):
            digests: list[StepDigest] = []

            def before(step: int) -> None:
                if step == 0 and not magnitudes and self._num_ranks > 2:
                    magnitudes.append(self._magnitudes(work_group))

            def after(step: int, digests: list[StepDigest] = digests) -> None:
                digests.append(self._digest(with_sums=True))
                if step == 0 and not shards:
                    shards.append(self._shard(magnitudes[0] if magnitudes else None))

            run_steps(before, after)
            runs.append(digests)
        self._references[key] = Reference(tuple(runs[0]), spread_frac(*runs), shards[0])

    def wants_deterministic_gate(self, key: Hashable) -> bool:
        """Returns whether a reference differs from itself and no deterministic gate was run yet.

        Every rank must call it: a difference on one of them counts for all.
        """
        differs: list[Any] = [self._references[key].spread_frac > 0.0]
        if self._control_group is not None and self._num_ranks > 1:
            mine, differs = differs[0], [None] * self._num_ranks
            dist.all_gather_object(differs, mine, group=self._control_group)
        return self._deterministic is None and any(differs)

    def keep_deterministic_gate(self, key: Hashable) -> None:
        """Judges the steps just watched against their reference, and forgets that reference."""
        assert self._trial is not None
        self._deterministic = (self._trial.messages, self._compared())
        del self._references[key]

    def result(self) -> GateResult:
        """Returns the verdict on the trial; every rank must call it."""
        verdict = self._compared()
        assert self._trial is not None
        if self._deterministic is None or self._deterministic[0] != self._trial.messages:
            return verdict
        strict = self._deterministic[1]
        if strict.passed or not verdict.passed:
            return verdict
        return replace(
            verdict,
            passed=False,
            worst_frac=strict.worst_frac,
            reason=f"under deterministic algorithms: {strict.reason}",
        )

    def _compared(self) -> GateResult:
        trial = self._trial
        assert trial is not None
        reference = self._references[trial.key]
        plan_key = (trial.key, trial.messages)
        view = RankView(
            rank=self._rank,
            own=tuple(trial.steps),
            reference=reference.steps,
            spread_frac=reference.spread_frac,
            first_step=trial.first_step,
            plan_words=self._plan_words.get(plan_key, ()),
        )
        views: list[Any] = [view]
        if self._control_group is not None and self._num_ranks > 1:
            views = [None] * self._num_ranks
            dist.all_gather_object(views, view, group=self._control_group)
        names = [slot.name for slot in self._rig.flat.slots]
        verdict = gate_result(views, trial.buckets, names)
        if verdict.passed and verdict.num_steps == self.num_steps:
            self._plan_words[plan_key] = tuple(digest.shared_word for digest in trial.steps)
        return verdict

    def _digest(self, *, with_sums: bool) -> StepDigest:
        rig = self._rig
        return step_digest(
            rig.flat.slots,
            rig.reducer.reduced_N,
            rig.train_step.loss,
            rig.optimizer.grad_norm,
            with_sums=with_sums,
        )

    @torch.no_grad()
    def _magnitudes(self, work_group: Any) -> Tensor:
        """Returns the sum over ranks of the magnitudes of gradients not yet reduced."""
        magnitudes_N = self._rig.reducer.reduced_N.abs()
        dist.all_reduce(magnitudes_N, group=work_group)
        return magnitudes_N

    def _shard(self, magnitudes_N: Tensor | None) -> Shard:
        reduced_N = self._rig.reducer.reduced_N
        first, last = shard_bounds(reduced_N.numel(), self._rank, self._num_ranks)
        grad_N, *abs_N = self._take_room() or self._new_room()
        grad_N.take(reduced_N[first:last])
        if magnitudes_N is not None:
            abs_N[0].take(magnitudes_N[first:last])
        return Shard(first, last - first, grad_N, *abs_N)

    def _new_room(self) -> list[HostCopy]:
        grad_N = self._rig.flat.grad_N
        return shard_room(grad_N.numel(), self._num_ranks, grad_N.device)

    def _take_room(self) -> list[HostCopy]:
        """Returns the room that was made, once it is there, and leaves none."""
        room, self._room = self._room, []
        for copy in room:
            copy.wait()
        return room
