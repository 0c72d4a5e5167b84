"""`python -m lf_ray.bench comm`: what an all-reduce of one bucket takes, by its size.

    python -m lf_ray.bench comm                                   two gloo ranks, as a smoke test
    python -m lf_ray.bench comm --gpus 8 --mib 1,4,16,64,256,1024 --algos default,ring,tree

Bus bandwidth is 2 (n - 1) / n times the bytes over the time: what each link carries in a ring, so
that numbers of different n compare. Each algorithm has ranks of its own, because NCCL reads its
choice once. Ends with one JSON line.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from lf_ray.bench.arguments import json_line, numbers, whole
from lf_ray.bench.steps.native import nccl_environment
from lf_ray.errors import LfRayError, four_parts
from lf_ray.machine import detect
from lf_ray.runtime.update.collectives import Collective, collective_for
from lf_ray.testing.ranks import RankError, RankPlace, RankPool

ALGOS = ("default", "ring", "tree")
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_DEADLINE_S = 300.0


@dataclass(frozen=True)
class CommBench:
    """What is measured; travels to the ranks."""

    sizes_mib: tuple[float, ...]
    comm_dtype: str
    num_repeats: int


def messages(
    place: RankPlace,
    bench: CommBench,
    collective_of: Callable[[Any, torch.device], Collective] = collective_for,
) -> list[list[float]]:
    """Returns the seconds of each all-reduce on this rank, one list a size.

    Args:
        place: rank and process groups.
        bench: sizes and repeats.
        collective_of: returns what sums a slice over a process group.

    Raises:
        LfRayError: a sum is wrong.
    """
    device = torch.device(place.device)
    collective = collective_of(place.work_group, device)
    found = []
    for size_mib in bench.sizes_mib:
        dtype = _DTYPES[bench.comm_dtype]
        num_elements = max(1, int(size_mib * 2**20) // dtype.itemsize)
        values_N = torch.ones(num_elements, dtype=dtype, device=device)
        collective.start(values_N)
        collective.wait()
        _check(values_N, place.world_size)
        times_s = []
        for _ in range(bench.num_repeats):
            values_N.fill_(1.0)
            dist.barrier(place.control_group)
            _finish(device)
            began_s = time.perf_counter()
            collective.start(values_N)
            collective.wait()
            _finish(device)
            times_s.append(time.perf_counter() - began_s)
        found.append(times_s)
    return found


def summary(
    by_rank: Sequence[Sequence[Sequence[float]]], bench: CommBench, algo: str
) -> list[dict[str, Any]]:
    """Returns a row a size: the slowest rank of each message counts."""
    num_ranks = len(by_rank)
    rows = []
    for size_mib, *ranks_s in zip(bench.sizes_mib, *by_rank):
        times_s = sorted(max(row) for row in zip(*ranks_s))
        median_s = statistics.median(times_s)
        moved = size_mib * 2**20 * 2 * (num_ranks - 1) / num_ranks
        rows.append(
            {
                "algo": algo,
                "num_ranks": num_ranks,
                "mib": size_mib,
                "median_ms": median_s * 1e3,
                "fastest_ms": times_s[0] * 1e3,
                "slowest_ms": times_s[-1] * 1e3,
                "num_repeats": len(times_s),
                "bus_gb_per_s": moved / median_s / 1e9,
            }
        )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; 0, 1 where a message failed, 2 where the words are wrong."""
    parser = argparse.ArgumentParser(prog="python -m lf_ray.bench comm", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--gpus", type=whole(1), help="ranks; default: every GPU, or two on a CPU")
    parser.add_argument(
        "--mib", type=numbers(1e-6), default="1,4,16,25,64,256", help="bucket sizes as sent"
    )
    parser.add_argument("--comm", choices=list(_DTYPES), default="bf16", help="on the wire")
    parser.add_argument("--algos", default="default", help=f"of {', '.join(ALGOS)}")
    parser.add_argument("--repeats", type=whole(1), default=20, help="messages of each size")
    options = parser.parse_args(argv)
    algos = options.algos.split(",")
    num_ranks = options.gpus or max(2, torch.cuda.device_count())
    num_gpus = torch.cuda.device_count()
    on_gpu = num_gpus >= num_ranks
    unknown = [algo for algo in algos if algo not in ALGOS]
    if unknown or num_ranks < 2:
        got = f"--algos {options.algos}" if unknown else f"--gpus {num_ranks}"
        sys.stderr.write(f"two ranks or more, and algorithms of {', '.join(ALGOS)}; got {got}\n")
        return 2
    if 0 < num_gpus < num_ranks:
        sys.stderr.write(f"{num_ranks} ranks need as many GPUs; there are {num_gpus}\n")
        return 2
    bench = CommBench(options.mib, options.comm, options.repeats)
    rows = []
    for algo in algos:
        pool = RankPool(num_ranks, "nccl" if on_gpu else "gloo", nccl_environment(algo))
        try:
            rows += summary(pool.run(messages, bench, deadline_s=_DEADLINE_S), bench, algo)
        except RankError as error:
            sys.stderr.write(f"{algo}: {error}\n")
            return 1
        finally:
            pool.close()
    if not on_gpu and algos != ["default"]:
        sys.stdout.write("gloo has one algorithm: rows of other names differ by noise alone.\n")
    sys.stdout.write("  algo     MiB   median ms  [fastest, slowest]   bus GB/s\n")
    for row in rows:
        span = f"[{row['fastest_ms']:.3f}, {row['slowest_ms']:.3f}]"
        sys.stdout.write(
            f"{row['algo']:8} {row['mib']:6g} {row['median_ms']:10.3f}  {span:>18} "
            f"{row['bus_gb_per_s']:10.1f}\n"
        )
    kind = torch.cuda.get_device_name() if on_gpu else "cpu, gloo"
    head = {"bench": "comm", "machine": detect().label, "device": kind}
    said = {**head, **asdict(bench), "rows": rows}
    sys.stdout.write(json_line(said))
    return 0


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _check(values_N: torch.Tensor, num_ranks: int) -> None:
    if not bool((values_N == num_ranks).all()):
        raise LfRayError(
            four_parts(
                "measuring an all-reduce",
                f"the sum of ones over {num_ranks} ranks is {num_ranks} everywhere",
                f"{float(values_N.min())} to {float(values_N.max())}",
                "Look at the link between these GPUs before anything is trained on it.",
            )
        )
