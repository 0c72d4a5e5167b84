"""The machines that can be simulated, each calibrated on what was measured or reported of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lf_ray.errors import ConfigError, four_parts
from lf_ray.testing.sim.noise import StepNoise
from lf_ray.testing.sim.timeline import Rates
from lf_ray.testing.sim.workload import Workload, article, real_shapes, stand_in

GIB = 2**30
_START_PER_RANK = 0.1
"""What each rank beyond two adds to a message's start; assumed, not measured."""


@dataclass(frozen=True, slots=True)
class Link:
    """An all-reduce: seconds = start + bytes / rate, less efficient the smaller the message.

    Attributes:
        start_s: of each message.
        bytes_per_s: of a large message between two ranks (bus bandwidth).
        root_s: seconds for the root of a message's bytes. The probe's sums over equal buckets
            grow with the root of their number, which a constant start does not give.
    """

    start_s: float
    bytes_per_s: float
    root_s: float

    def seconds(self, num_bytes: int, num_ranks: int) -> float:
        """Returns what one ring all-reduce takes alone."""
        return self._ring_s(2 * num_bytes, num_ranks)

    def half_seconds(self, num_bytes: int, num_ranks: int) -> float:
        """Returns what one reduce-scatter or all-gather takes alone: half of an all-reduce."""
        return self._ring_s(num_bytes, num_ranks)

    def _ring_s(self, num_bytes: int, num_ranks: int) -> float:
        if num_ranks < 2:
            return 0.0
        sent = (num_ranks - 1) / num_ranks * num_bytes
        start_s = self.start_s * (1 + _START_PER_RANK * (num_ranks - 2))
        return start_s + sent / self.bytes_per_s + self.root_s * math.sqrt(sent)


@dataclass(frozen=True, slots=True)
class Contention:
    """What work on the side lane costs the compute lane.

    Attributes:
        comm_backward: seconds that backward loses for each second of communication beside it.
        comm_prefix: the same for the prefix.
        update_prefix: seconds that the prefix loses for each second of update beside it.
        comm_speed: of communication beside compute, over its speed alone.
        update_speed: of the update beside compute.
    """

    comm_backward: float
    comm_prefix: float
    update_prefix: float
    comm_speed: float
    update_speed: float

    @property
    def rates(self) -> Rates:
        """Returns the speeds of both lanes by pair of kinds."""
        comm, update = self.comm_speed, self.update_speed
        return {
            ("backward", "comm"): (1 - self.comm_backward * comm, comm),
            ("prefix", "comm"): (1 - self.comm_prefix * comm, comm),
            ("prefix", "update"): (1 - self.update_prefix * update, update),
        }


@dataclass(frozen=True, slots=True)
class Memory:
    """What a rank needs and has, in bytes.

    Attributes:
        capacity: of the device, less context and NCCL.
        static: weights, masters, moments, gradients.
        per_sample: activations.
        graph_frac: what a captured step's own pool adds, as a share of the activations.
        gap_frac: reserved but unusable, as a share of the activations, by backend.
        bf16_bytes: that bf16 on the wire adds for a parameter: a buffer beside the fp32 one, or
            less than nothing where it stands in its place.
        late_frac: a need this far above the capacity runs out only in capture or in NCCL.
    """

    capacity: float
    static: float
    per_sample: float
    graph_frac: float
    gap_frac: Mapping[str, float]
    bf16_bytes: float = 2.0
    late_frac: float = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """What a visit costs beside its steps, in s.

    Attributes:
        cold_s: from nothing to a group that is ready, weights loaded.
        reset_s: weights, moments and draws back from the snapshot.
        prepare_s: plan, buffers, rehearsal.
        capture_s: of a step.
        compile_s: of a batch that nothing on this machine has compiled yet.
        cached_compile_s: of a batch that the compiler's cache has and this group has not met.
        reference_steps: steps without communication that a new key costs.
        failure_s: until a rank that runs out of memory is known to have.
    """

    cold_s: float
    reset_s: float
    prepare_s: float
    capture_s: float
    compile_s: float
    cached_compile_s: float
    reference_steps: int
    failure_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """One machine with one workload on it.

    Attributes:
        captured_noise: scatter of a captured step.
        eager_noise: scatter of an eager step, which also settles slowly.
    """

    name: str
    num_ranks: int
    workload: Workload
    link: Link
    contention: Contention
    memory: Memory
    costs: Costs
    captured_noise: StepNoise
    eager_noise: StepNoise
    hbm_bytes_per_s: float
    baseline: Mapping[str, float | int | str]


# Fitted together to the probe's step and communication tables; their errors are in the tests.
_NVLINK = Link(start_s=9.4e-6, bytes_per_s=347e9, root_s=6.4e-9)
_HOST_LINK = Link(start_s=9.0e-6, bytes_per_s=29.3e9, root_s=17.6e-9)
_NVLINK_CONTENTION = Contention(0.535, 0.37, 0.74, 0.82, 0.54)
_HOST_LINK_CONTENTION = Contention(0.07, 0.04, 0.74, 0.78, 0.65)
_CAPTURED = StepNoise(cv=0.005, phi=0.25, between_frac=0.002)
_EAGER = StepNoise(cv=0.03, phi=0.5, between_frac=0.02, settle_frac=0.3, settle_steps=10)
_H200 = Memory(
    capacity=136 * GIB,
    static=18.9 * GIB,
    per_sample=0.119 * GIB,
    graph_frac=0.1,
    gap_frac={"caching": 0.16, "expandable": 0.03, "arena": 0.5},
)
_WARM = Costs(
    cold_s=14.0,
    reset_s=0.4,
    prepare_s=0.5,
    capture_s=0.3,
    compile_s=0.0,
    cached_compile_s=0.0,
    reference_steps=8,
    failure_s=1.0,
)
# Under Ray on two H200: medians of sweeps' visits, `cold_s` with the first preparation; from the
# compiler's cache: one H200.
_REAL_COSTS = Costs(
    cold_s=30.0,
    reset_s=0.15,
    prepare_s=0.4,
    capture_s=1.5,
    compile_s=18.0,
    cached_compile_s=4.4,
    reference_steps=8,
    failure_s=1.5,
)
# Of eager steps on one H200 whose host had other work: sd 15 %, lag-1 correlation 0.65.
_REAL_EAGER = StepNoise(cv=0.15, phi=0.65, between_frac=0.02, settle_frac=0.3, settle_steps=10)


def _two_h200(name: str, link: Link, contention: Contention) -> Profile:
    return Profile(
        name=name,
        num_ranks=2,
        workload=stand_in(),
        link=link,
        contention=contention,
        memory=_H200,
        costs=_WARM,
        captured_noise=_CAPTURED,
        eager_noise=_EAGER,
        hbm_bytes_per_s=4.24e12,
        baseline={"batch.per_gpu": 32},
    )


def _eight_h200() -> Profile:
    return Profile(
        name="sim_8xh200",
        num_ranks=8,
        workload=real_shapes(),
        link=_NVLINK,
        # Fused kernels leave an update, or messages, little room beside the prefix.
        contention=Contention(0.535, 0.63, 0.97, 0.82, 0.6),
        memory=Memory(
            capacity=136 * GIB,
            static=30.4 * GIB,
            per_sample=0.143 * GIB,
            graph_frac=0.1,
            gap_frac={"caching": 0.16, "expandable": 0.03, "arena": 0.5},
            bf16_bytes=-2.0,
        ),
        costs=_REAL_COSTS,
        captured_noise=_CAPTURED,
        eager_noise=_REAL_EAGER,
        hbm_bytes_per_s=4.24e12,
        baseline={"batch.per_gpu": 16},
    )


def _eight_a100() -> Profile:
    return Profile(
        name="sim_8xa100",
        num_ranks=8,
        workload=article(),
        link=Link(start_s=12e-6, bytes_per_s=236e9, root_s=1.2e-8),
        contention=Contention(0.22, 0.22, 0.6, 0.85, 0.6),
        memory=Memory(
            capacity=79.2 * GIB,
            static=33.8 * GIB,
            per_sample=0.44 * GIB,
            graph_frac=0.0,
            gap_frac={"caching": 0.5, "expandable": 0.04, "arena": 0.07},
        ),
        costs=Costs(
            cold_s=60.0,
            reset_s=1.0,
            prepare_s=3.0,
            capture_s=3.0,
            compile_s=0.0,
            cached_compile_s=0.0,
            reference_steps=5,
            failure_s=4.0,
        ),
        captured_noise=_CAPTURED,
        eager_noise=_EAGER,
        hbm_bytes_per_s=1.6e12,
        baseline={"batch.per_gpu": 64, "data.workers": 0},
    )


PROFILES: Mapping[str, Profile] = {
    "sim_2xh200": _two_h200("sim_2xh200", _NVLINK, _NVLINK_CONTENTION),
    "sim_2xh200_slow": _two_h200("sim_2xh200_slow", _HOST_LINK, _HOST_LINK_CONTENTION),
    "sim_8xh200": _eight_h200(),
    "sim_8xa100": _eight_a100(),
}


def profile_of(name: str) -> Profile:
    """Returns a profile by name.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in PROFILES:
        raise ConfigError(
            four_parts(
                "choosing a simulated cluster",
                f"profiles are {', '.join(PROFILES)}",
                repr(name),
                "Use one of these names.",
            )
        )
    return PROFILES[name]
