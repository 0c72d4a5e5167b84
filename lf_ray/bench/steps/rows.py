"""A row of the step benchmark: one rank's reading, all ranks' summary, the table for people."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lf_ray.measure import read_visit


@dataclass(frozen=True)
class RankRow:
    """One rank's reading of one row.

    Attributes:
        costs_s: what came before the timed steps: start, and of it compile and capture.
        phases_s: mean over the timed steps; of captured ones, over those that ended a block.
        graph_nodes: kernels and copies in the captured graph.
        launches, classes_s: by the profiler, a step; see `kernel_classes`.
        update_floor_s: least time of the update; 0 where it is unknown.
    """

    batch: int
    mode: str
    comm: str
    times_s: list[float]
    loss: float = 0.0
    peak_bytes: float = 0.0
    costs_s: Mapping[str, float] = field(default_factory=dict)
    phases_s: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    graph_nodes: float = 0.0
    launches: float = 0.0
    classes_s: Mapping[str, float] = field(default_factory=dict)
    update_floor_s: float = 0.0


def summary(by_rank: Sequence[RankRow], floors_s: Mapping[str, float]) -> dict[str, Any]:
    """Returns one row over all ranks: the slowest rank's time counts.

    Args:
        by_rank: the same row of every rank.
        floors_s: least time by kernel class; empty where it is unknown.
    """
    first = by_rank[0]
    head = {"batch": first.batch, "mode": first.mode, "comm": first.comm}
    failed = [row.error for row in by_rank if row.error]
    if failed:
        return {**head, "num_ranks": len(by_rank), "error": failed[0]}
    slowest = max(by_rank, key=lambda row: statistics.fmean(row.times_s))
    reading = read_visit(slowest.times_s, first.batch * len(by_rank))
    floors_s = {**floors_s, **({"update": slowest.update_floor_s} if floors_s else {})}
    found = {
        **head,
        "num_ranks": len(by_rank),
        "median_ms": statistics.median(slowest.times_s) * 1e3,
        "num_steps": len(slowest.times_s),
        "loss": first.loss,
        "peak_bytes": max(row.peak_bytes for row in by_rank),
        "costs_s": {
            name: max(row.costs_s.get(name, 0.0) for row in by_rank) for name in first.costs_s
        },
        "phases_ms": {name: value * 1e3 for name, value in slowest.phases_s.items()},
        "graph_nodes": first.graph_nodes,
        "launches": first.launches,
        "classes_ms": {name: value * 1e3 for name, value in slowest.classes_s.items()},
        "floors_ms": {name: value * 1e3 for name, value in floors_s.items()},
        "settled": reading.steady.settled,
        "steady": reading.steady.reason,
    }
    if reading.step_s is not None and reading.throughput_samples_per_s is not None:
        steady_s = slowest.times_s[reading.steady.first :]
        found["step_s"] = asdict(reading.step_s)
        found["samples_per_s"] = asdict(reading.throughput_samples_per_s)
        matrix_s = floors_s.get("matrix", 0.0)
        found["floor_share"] = matrix_s / reading.step_s.value if matrix_s else None
        # How much single steps scatter: of an eager step that is the host's noise.
        found["spread_frac"] = statistics.pstdev(steady_s) / statistics.fmean(steady_s)
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the rows for people."""
    names = ("gpus", "batch", "mode", "comm", "ms", "samples/s", "sd", "floor", "GiB")
    lines = ["{:>4} {:>5} {:14} {:4} {:>9} {:>24} {:>5} {:>5} {:>6}  phases, ms".format(*names)]
    for row in rows:
        head = f"{row['num_ranks']:4} {row['batch']:5} {row['mode']:14} {row['comm']:4}"
        if "step_s" not in row:
            lines.append(f"{head} {row.get('error') or row['steady']}")
            continue
        rate = row["samples_per_s"]
        span = f"{rate['value']:8.1f} [{rate['lo']:.1f}, {rate['hi']:.1f}]"
        share = f"{row['floor_share']:.0%}" if row["floor_share"] else "-"
        phases = " ".join(f"{name} {value:.1f}" for name, value in row["phases_ms"].items())
        lines.append(
            f"{head} {row['step_s']['value'] * 1e3:9.2f} {span:>24} {row['spread_frac']:5.1%} "
            f"{share:>5} {row['peak_bytes'] / 2**30:6.1f}  {phases}"
        )
    return "\n".join(lines)
