"""What a request comes to on this group: batch, schedule, buckets, order of the step."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from lf_ray.errors import ConfigError, four_parts
from lf_ray.protocol import GradientTensor, KnobValue, TrialRequest
from lf_ray.runtime.bucket_plan import (
    BucketPlan,
    bucket_plan,
    issued_during_backward,
    share_during_backward,
)
from lf_ray.runtime.steps.feed import FeedKey
from lf_ray.runtime.update.schedule import LrSchedule, lr_schedule
from lf_ray.settings import SHARING_RANKS, GraphScope, SweepConfig, Switch, with_knobs, with_length


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """A request, resolved against the group that runs it.

    Attributes:
        config: the group's settings with the request's knobs.
        pipelined: the prefix of the next batch runs beside the update.
        sharded: each rank updates its own part of every bucket, and the others get the weights.
        ready_order: a word for the gradients' names in ready order; equal on all ranks, or their
            messages would not belong together.
        base_global_batch: samples a step of the baseline.
    """

    config: SweepConfig
    feed: FeedKey
    num_ranks: int
    schedule: LrSchedule
    buckets: BucketPlan
    num_leading: int
    pipelined: bool
    sharded: bool
    ready_order: str
    base_global_batch: int

    @property
    def global_batch(self) -> int:
        """Returns the samples over all ranks that one step consumes."""
        return self.feed.batch_size * self.feed.accumulation * self.num_ranks

    @property
    def scope(self) -> GraphScope:
        """Returns how much of the step is captured."""
        return self.config.graph.scope

    @property
    def reference_key(self) -> tuple[FeedKey, LrSchedule]:
        """Returns what a reference's numbers follow from."""
        return self.feed, self.schedule

    @property
    def compute_key(self) -> tuple[int, int, str, bool, bool]:
        """Returns what the step's time without communication follows from."""
        batch = self.feed.batch_size, self.feed.accumulation
        return *batch, self.scope.value, self.pipelined, self.sharded

    def effective(self) -> dict[str, KnobValue]:
        """Returns what the plan really does, by name."""
        sizes = [bucket.num_bytes for bucket in self.buckets.buckets]
        ratio = self.config.overlap.ratio
        return {
            "num_buckets": len(sizes),
            "bucket_bytes_min": min(sizes),
            "bucket_bytes_max": max(sizes),
            "split_layers": len(self.buckets.split_layers),
            "share_during_backward": share_during_backward(self.buckets, ratio),
            "bytes_on_wire": self.buckets.num_bytes,
            "gradient_bytes": self.buckets.num_elements * 4,
            "ready_order": self.ready_order,
            "bucket_plan": self.buckets.signature(ratio),
            "global_batch": self.global_batch,
            "base_global_batch": self.base_global_batch,
            "lr": self.schedule.peak,
            "warmup_steps": self.schedule.warmup_steps,
            "world_size": self.num_ranks,
            "prefix": "pipelined" if self.pipelined else "plain",
            "update": "sharded" if self.sharded else "whole",
        }


def trial_plan(
    config: SweepConfig,
    request: TrialRequest,
    gradients: Sequence[GradientTensor],
    *,
    frozen_prefix: bool,
) -> TrialPlan:
    """Returns the plan of a request.

    Args:
        config: the group's settings; its batch is the one that lr and warm-up belong to where
            train.base_global_batch does not say.
        request: its knobs are laid over the settings.
        gradients: in ready order.
        frozen_prefix: no update touches the model's prefix.
    """
    asked = with_length(with_knobs(config, dict(request.knobs)), request.run_samples)
    feed = feed_key(config, request)
    global_batch = feed.batch_size * feed.accumulation * config.num_workers
    base = config.batch.per_gpu * config.batch.accumulation * config.num_workers
    buckets = bucket_plan(gradients, asked.overlap.bucket_size_mb, asked.overlap.comm_dtype.value)
    names = ",".join(gradient.name for gradient in gradients)
    return TrialPlan(
        config=asked,
        feed=feed,
        num_ranks=config.num_workers,
        schedule=lr_schedule(
            asked.train, asked.batch.lr_rule, global_batch, asked.train.base_global_batch or base
        ),
        buckets=buckets,
        num_leading=issued_during_backward(buckets, asked.overlap.ratio),
        pipelined=_is_pipelined(asked, frozen_prefix=frozen_prefix),
        sharded=_is_sharded(asked),
        ready_order=hashlib.sha256(names.encode()).hexdigest()[:16],
        base_global_batch=base,
    )


def feed_key(config: SweepConfig, request: TrialRequest) -> FeedKey:
    """Returns seed and batch shape of a request."""
    asked = with_knobs(config, dict(request.knobs)).batch
    return FeedKey(request.seed, asked.per_gpu, asked.accumulation)


def _is_pipelined(config: SweepConfig, *, frozen_prefix: bool) -> bool:
    if config.pipeline.prefix is Switch.off:
        return False
    if not frozen_prefix:
        model = config.model
        raise ConfigError(
            four_parts(
                "planning a trial with pipeline.prefix=on",
                "the prefix can run ahead only where no update touches it",
                f"model.tune_llm={model.tune_llm}, model.tune_visual={model.tune_visual}",
                "Set both to false, or pipeline.prefix=off.",
            )
        )
    # Only a step that is captured with its update can run the two side by side.
    return config.graph.scope is GraphScope.step_optimizer


def _is_sharded(config: SweepConfig) -> bool:
    num_ranks = config.num_workers
    # An eager step waits for its host already; every bucket's update and gather are more launches.
    if config.update.sharded is Switch.off or config.graph.scope is not GraphScope.step_optimizer:
        return False
    if num_ranks == 1:
        return False
    if num_ranks not in SHARING_RANKS:
        raise ConfigError(
            four_parts(
                "planning a trial with update.sharded=on",
                f"ranks share every bucket evenly, so there are {SHARING_RANKS[1:]} of them",
                f"{num_ranks} ranks",
                "Use 2, 4, 8, 16 or 32 workers, or update.sharded=off.",
            )
        )
    return True
