"""The time of one step, and where it goes, from a profile and the knobs of a point."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from lf_ray.protocol import Knobs
from lf_ray.runtime.bucket_plan import BucketPlan, bucket_plan, issued_during_backward
from lf_ray.settings import SHARING_RANKS
from lf_ray.testing.sim.profiles import PROFILES, Profile
from lf_ray.testing.sim.timeline import Task, run_lanes


@dataclass(frozen=True, slots=True)
class StepTime:
    """A true step, without noise.

    Attributes:
        step_s: of the slowest rank.
        no_comm_s: the same step with nothing sent.
        comm_s: the same messages alone.
        wait_s: waiting for data.
        num_buckets: messages of a step.
        issued_frac: share of their bytes issued during backward.
        phases_s: parts that add up to the step.
    """

    step_s: float
    no_comm_s: float
    comm_s: float
    wait_s: float
    num_buckets: int
    issued_frac: float
    phases_s: Mapping[str, float]

    @property
    def overlap_hidden(self) -> float:
        """Returns the share of communication that costs no step time."""
        return 1 - (self.step_s - self.no_comm_s) / self.comm_s if self.comm_s else 1.0


@dataclass(frozen=True, slots=True)
class _Parts:
    """A step's work in seconds of the device alone."""

    prefix_s: float
    forward_s: float
    backward_s: float
    update_s: float


def step_time(profile: Profile, knobs: Knobs) -> StepTime:
    """Returns the true step time of a point."""
    work = profile.workload
    plan = _plan(profile, float(knobs["overlap.bucket_size_mb"]), str(knobs["overlap.comm_dtype"]))
    leading = issued_during_backward(plan, float(knobs["overlap.ratio"]))
    pipelined = knobs["pipeline.prefix"] == "on" and knobs["graph.scope"] == "step+optimizer"
    parts = _parts(profile, knobs)
    sharded = _is_sharded(profile, knobs)
    seconds = profile.link.half_seconds if sharded else profile.link.seconds
    sends_s = tuple(seconds(item.num_bytes, profile.num_ranks) for item in plan.buckets)
    gather_s = _gather_s(profile, plan) if sharded else 0.0
    sent_s = _device_s(profile, parts, (plan, sends_s, leading), gather_s, pipelined)
    alone_s = _device_s(profile, parts, None, 0.0, pipelined)
    host_s = 0.0 if knobs["graph.scope"] != "off" else work.host_s
    wait_s = _wait_s(profile, knobs, sent_s)
    step_s = max(sent_s, host_s + (work.host_bucket_s * leading if host_s else 0.0)) + wait_s
    no_comm_s = max(alone_s, host_s) + wait_s
    phases_s = {
        "data_wait": wait_s,
        "prefix": parts.prefix_s,
        "forward": parts.forward_s,
        "backward": parts.backward_s,
        "update": parts.update_s,
        "exposed_comm": max(0.0, sent_s - alone_s),
    }
    phases_s["gap"] = max(0.0, step_s - sum(phases_s.values()))
    return StepTime(
        step_s=step_s,
        no_comm_s=no_comm_s,
        comm_s=sum(sends_s) + gather_s,
        wait_s=wait_s,
        num_buckets=len(plan.buckets),
        issued_frac=sum(item.num_bytes for item in plan.buckets[:leading]) / plan.num_bytes,
        phases_s=phases_s,
    )


def _is_sharded(profile: Profile, knobs: Knobs) -> bool:
    acts = knobs["graph.scope"] == "step+optimizer" and profile.num_ranks in SHARING_RANKS
    return acts and knobs["update.sharded"] == "on"


def _parts(profile: Profile, knobs: Knobs) -> _Parts:
    work = profile.workload
    batch, rounds = int(knobs["batch.per_gpu"]), int(knobs["batch.accumulation"])
    slow = work.eager_frac if knobs["graph.scope"] == "off" else 1.0
    prefix_s, head_s = work.prefix.at(batch) * slow, work.head.at(batch) * slow
    backward_s = head_s * work.backward_frac
    update_s = work.update_s
    if knobs["graph.scope"] != "step+optimizer":
        update_s += work.update_gap_s
    if knobs["overlap.comm_dtype"] == "bf16":
        update_s += work.bf16_bytes * work.num_elements / profile.hbm_bytes_per_s
    if _is_sharded(profile, knobs):
        update_s /= profile.num_ranks
    # Only the last micro-batch sends; the others are plain work before it.
    before_s = (rounds - 1) * (prefix_s + head_s)
    return _Parts(prefix_s, before_s + head_s - backward_s, backward_s, update_s)


def _device_s(
    profile: Profile,
    parts: _Parts,
    messages: tuple[BucketPlan, tuple[float, ...], int] | None,
    gather_s: float,
    pipelined: bool,
) -> float:
    """Returns the device's time for a step; without messages nothing is sent."""
    compute = [] if pipelined else [Task("forward", parts.prefix_s)]
    compute.append(Task("forward", parts.forward_s))
    side: list[Task] = []
    if messages is None:
        compute.append(Task("backward", parts.backward_s))
    else:
        _add_messages(*messages, parts.backward_s, compute, side)
    if pipelined:
        compute.append(Task("prefix", parts.prefix_s))
        side.append(Task("update", parts.update_s, after=len(compute) - 1))
        side.append(Task("comm", gather_s))
    else:
        compute.append(Task("update", parts.update_s, after=len(side)))
        # Updates fill the device, so that weights travel once they are done (measured).
        compute.append(Task("gather", gather_s))
    return run_lanes(compute, side, profile.contention.rates) + profile.workload.gap_s


def _gather_s(profile: Profile, plan: BucketPlan) -> float:
    """Returns what it takes to bring the new weights, of two bytes each, to all ranks."""
    lengths = (item.last - item.first for item in plan.buckets)
    return sum(profile.link.half_seconds(2 * length, profile.num_ranks) for length in lengths)


def _add_messages(
    plan: BucketPlan,
    sends_s: tuple[float, ...],
    leading: int,
    backward_s: float,
    compute: list[Task],
    side: list[Task],
) -> None:
    """Cuts backward where buckets become ready and queues the messages behind the cuts."""
    done = 0
    for bucket, send_s in zip(plan.buckets[:leading], sends_s[:leading]):
        compute.append(Task("backward", backward_s * (bucket.last - done) / plan.num_elements))
        done = bucket.last
        side.append(Task("comm", send_s, after=len(compute)))
    if done < plan.num_elements:
        compute.append(Task("backward", backward_s * (1 - done / plan.num_elements)))
        side.append(Task("comm", sum(sends_s[leading:]), after=len(compute)))


def _wait_s(profile: Profile, knobs: Knobs, step_s: float) -> float:
    """Returns how long a step waits for its batch."""
    samples = int(knobs["batch.per_gpu"]) * int(knobs["batch.accumulation"])
    load_s = samples * profile.workload.load_s_per_sample
    workers = int(knobs["data.workers"])
    return load_s if workers == 0 else max(0.0, load_s / workers - step_s)


@lru_cache(maxsize=4096)
def _cached_plan(name: str, bucket_size_mb: float, comm_dtype: str) -> BucketPlan:
    return bucket_plan(PROFILES[name].workload.gradients, bucket_size_mb, comm_dtype)


def _plan(profile: Profile, bucket_size_mb: float, comm_dtype: str) -> BucketPlan:
    if PROFILES.get(profile.name) is profile:
        return _cached_plan(profile.name, bucket_size_mb, comm_dtype)
    return bucket_plan(profile.workload.gradients, bucket_size_mb, comm_dtype)
