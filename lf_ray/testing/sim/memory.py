"""What a point needs in memory, and how it ends where that is more than there is."""

from dataclasses import dataclass

from lf_ray.protocol import Knobs, OutcomeKind, TrialOutcome
from lf_ray.testing.sim.profiles import GIB, Profile


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes on the fullest rank.

    Attributes:
        allocated: by tensors at the peak.
        gap: reserved and unusable.
    """

    allocated: float
    gap: float

    @property
    def reserved(self) -> float:
        """Returns what the device must hold."""
        return self.allocated + self.gap


def memory_need(profile: Profile, knobs: Knobs) -> MemoryNeed:
    """Returns the need of a point: what accumulation, capture, pipelining and bf16 add included."""
    memory, batch = profile.memory, int(knobs["batch.per_gpu"])
    activations = memory.per_sample * batch
    extra = 0.0
    if knobs["graph.scope"] != "off":
        extra += memory.graph_frac * activations
    if knobs["pipeline.prefix"] == "on":
        extra += 0.05 * activations
    if int(knobs["batch.accumulation"]) > 1:
        extra += 0.02 * activations
    if knobs["overlap.comm_dtype"] == "bf16":
        extra += memory.bf16_bytes * profile.workload.num_elements
    gap_frac = memory.gap_frac[str(knobs["memory.backend"])]
    return MemoryNeed(memory.static + activations + extra, gap_frac * activations)


def out_of_memory(profile: Profile, knobs: Knobs) -> TrialOutcome | None:
    """Returns how a point ends that does not fit, None where it fits.

    A need just above the capacity gets through the rehearsal and runs out in capture or in NCCL's
    buffers, which costs the group.
    """
    need, capacity = memory_need(profile, knobs), profile.memory.capacity
    if need.reserved <= capacity:
        return None
    late = need.reserved <= capacity * (1 + profile.memory.late_frac)
    where = "capture" if late and knobs["graph.scope"] != "off" else "backward"
    return TrialOutcome(
        kind=OutcomeKind.INFEASIBLE,
        reason=(
            f"out of memory in {where}: {need.reserved / GIB:.1f} GiB needed,"
            f" {capacity / GIB:.1f} GiB there (simulated)"
        ),
        rank=profile.num_ranks - 1,
        error_kind="oom",
        stop_rule="error",
        group_lost=late,
    )
