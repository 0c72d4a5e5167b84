"""A look at the link between ranks before the first trial: is an all-reduce plausibly fast?

A wrong network interface or a broken peer mapping costs a factor of a thousand and looks like a
slow model. Deciding is pure; what moves bytes and who measures time are arguments.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lf_ray.clock import Clock
from lf_ray.errors import GroupError, four_parts

SMALL_BYTES = 4 * 1024
NUM_REPEATS = 5
FLOOR_FRAC_OF_PEERS = 0.2
"""A link below this share of the median link is named as the odd one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plausible:
    """What a working link can do at the very least, by backend.

    Attributes:
        large_bytes: message whose bandwidth is measured.
        floor_bytes_per_s: far below any link that one would train over.
    """

    large_bytes: int
    floor_bytes_per_s: float


PLAUSIBLE: Mapping[str, Plausible] = {
    # An all-reduce over PCIe 3.0 reaches several GB/s, over 10 Gbit Ethernet 0.5 GB/s.
    "nccl": Plausible(large_bytes=64 * 2**20, floor_bytes_per_s=100e6),
    # Two ranks on two busy cores reach about 100 MB/s.
    "gloo": Plausible(large_bytes=4 * 2**20, floor_bytes_per_s=1e6),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What an all-reduce took, on the slowest rank."""

    latency_s: float
    bytes_per_s: float

    def metrics(self) -> dict[str, float]:
        """Returns the reading by metric name."""
        return {
            "probe_latency_s": self.latency_s,
            "probe_bytes_per_s": self.bytes_per_s,
        }


def read_link(
    all_reduce: Callable[[int], None],
    slowest: Callable[[float], float],
    clock: Clock,
    large_bytes: int,
) -> Reading:
    """Returns the reading of this group's link.

    `all_reduce` sums a buffer of so many bytes over the ranks and waits for it; `slowest` returns
    the largest of the ranks' values.
    """

    def median_s(num_bytes: int) -> float:
        all_reduce(num_bytes)  # the first one opens connections
        taken_s = []
        for _ in range(NUM_REPEATS):
            began_s = clock.monotonic_s()
            all_reduce(num_bytes)
            taken_s.append(clock.monotonic_s() - began_s)
        return slowest(statistics.median(taken_s))

    latency_s = median_s(SMALL_BYTES)
    return Reading(latency_s=latency_s, bytes_per_s=large_bytes / max(median_s(large_bytes), 1e-9))


def odd_links(bytes_per_s: Mapping[tuple[int, int], float]) -> list[tuple[int, int]]:
    """Returns the pairs of ranks whose link is far slower than the others'."""
    if len(bytes_per_s) < 2:
        return list(bytes_per_s)
    usual = statistics.median(bytes_per_s.values())
    return [pair for pair, rate in bytes_per_s.items() if rate < FLOOR_FRAC_OF_PEERS * usual]


def neighbours(num_ranks: int) -> list[tuple[int, int]]:
    """Returns the pairs of a ring, each once."""
    if num_ranks == 2:
        return [(0, 1)]
    return [(rank, (rank + 1) % num_ranks) for rank in range(num_ranks)]


def refuse_implausible(
    reading: Reading, plausible: Plausible, links: Callable[[], Mapping[tuple[int, int], float]]
) -> None:
    """Refuses a group whose ranks can't talk at any speed worth tuning.

    Args:
        reading: of the whole group.
        plausible: for its backend.
        links: measures the ring's links one by one; called only when something is wrong.

    Raises:
        GroupError: the all-reduce is below its floor; the odd links are named.
    """
    if reading.bytes_per_s >= plausible.floor_bytes_per_s:
        return
    rates = links()
    odd = odd_links(rates)
    named = (
        "; ".join(f"ranks {a} and {b} at {_rate(rates[a, b])}" for a, b in odd) or "all links alike"
    )
    raise GroupError(
        four_parts(
            "probing communication between ranks",
            f"an all-reduce of {plausible.large_bytes / 2**20:.0f} MiB reaches "
            f"{_rate(plausible.floor_bytes_per_s)}",
            f"{_rate(reading.bytes_per_s)} ({named})",
            "Check the link named, NCCL_SOCKET_IFNAME and NCCL_DEBUG=INFO.",
        )
    )


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:.3g} MB/s"


def probe_group(
    group: Any, device: str, clock: Clock, floors: Mapping[str, Plausible] = PLAUSIBLE
) -> dict[str, float]:
    """Probes a process group and returns the reading as metrics; every rank must call it.

    Raises:
        GroupError: the link is implausibly slow.
    """
    import torch
    import torch.distributed as dist

    plausible = floors[dist.get_backend(group)]
    buffers: dict[int, torch.Tensor] = {}

    def all_reduce(num_bytes: int) -> None:
        if num_bytes not in buffers:
            buffers[num_bytes] = torch.zeros(num_bytes // 4, device=device)
        dist.all_reduce(buffers[num_bytes], group=group)
        buffers[num_bytes][0].item()  # waits for the device

    def slowest(value: float) -> float:
        largest = torch.tensor([value], dtype=torch.float64, device=device)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        return float(largest.item())

    def links() -> dict[tuple[int, int], float]:
        return _link_rates(group, device, clock, plausible.large_bytes)

    reading = read_link(all_reduce, slowest, clock, plausible.large_bytes)
    refuse_implausible(reading, plausible, links)
    buffers.clear()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()  # the model's memory levels begin at nothing
    return reading.metrics()


def _link_rates(
    group: Any, device: str, clock: Clock, num_bytes: int
) -> dict[tuple[int, int], float]:
    """Returns what each link of the ring does alone, over a group of its own that goes again."""
    import torch
    import torch.distributed as dist

    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    buffer = torch.zeros(num_bytes // 4, device=device)
    rates = torch.zeros(num_ranks, dtype=torch.float64, device=device)
    pairs: Sequence[tuple[int, int]] = neighbours(num_ranks)
    for index, (one, other) in enumerate(pairs):
        pair = dist.new_group([one, other], backend=dist.get_backend(group))
        if rank in (one, other):
            taken_s = []
            for _ in range(3):
                began_s = clock.monotonic_s()
                dist.all_reduce(buffer, group=pair)
                buffer[0].item()
                taken_s.append(clock.monotonic_s() - began_s)
            if rank == one:
                rates[index] = num_bytes / max(min(taken_s), 1e-9)
            dist.destroy_process_group(pair)
    dist.all_reduce(rates, group=group)
    return {pair: float(rates[index]) for index, pair in enumerate(pairs)}
