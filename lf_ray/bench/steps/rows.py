"""A row of the step benchmark: one rank's reading, all ranks' summary, the table for people."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lf_ray.measure import read_visit


@dataclass(frozen=True)
class RankRow:
    """One rank's reading of one row."""

    batch: int
    mode: str
    comm: str
    times_s: list[float]
    loss: float = 0.0
    peak_bytes: float = 0.0
    start_s: float = 0.0
    phases_s: dict[str, float] = field(default_factory=dict)
    error: str = ""


def summary(by_rank: Sequence[RankRow], floor_s: float) -> dict[str, Any]:
    """Returns one row over all ranks: the slowest rank's time counts; no floor is 0."""
    first = by_rank[0]
    head = {"batch": first.batch, "mode": first.mode, "comm": first.comm}
    failed = [row.error for row in by_rank if row.error]
    if failed:
        return {**head, "error": failed[0]}
    slowest = max(by_rank, key=lambda row: statistics.fmean(row.times_s))
    reading = read_visit(slowest.times_s, first.batch * len(by_rank))
    found = {
        **head,
        "num_ranks": len(by_rank),
        "median_ms": statistics.median(slowest.times_s) * 1e3,
        "num_steps": len(slowest.times_s),
        "loss": first.loss,
        "peak_bytes": max(row.peak_bytes for row in by_rank),
        "start_s": max(row.start_s for row in by_rank),
        "phases_ms": {name: value * 1e3 for name, value in slowest.phases_s.items()},
        "settled": reading.steady.settled,
        "steady": reading.steady.reason,
    }
    if reading.step_s is not None and reading.throughput_samples_per_s is not None:
        found["step_s"] = asdict(reading.step_s)
        found["samples_per_s"] = asdict(reading.throughput_samples_per_s)
        found["floor_share"] = floor_s / reading.step_s.value if floor_s else None
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the rows for people."""
    names = ("batch", "mode", "comm", "ms", "samples/s", "floor", "GiB")
    lines = ["{:>5} {:10} {:4} {:>9} {:>22} {:>6} {:>6}  phases".format(*names)]
    for row in rows:
        head = f"{row['batch']:5} {row['mode']:10} {row['comm']:4}"
        if "step_s" not in row:
            lines.append(f"{head} {row.get('error') or row['steady']}")
            continue
        rate = row["samples_per_s"]
        span = f"{rate['value']:8.1f} [{rate['lo']:.1f}, {rate['hi']:.1f}]"
        share = f"{row['floor_share']:.0%}" if row["floor_share"] else "-"
        phases = " ".join(f"{name} {value:.1f}" for name, value in row["phases_ms"].items())
        lines.append(
            f"{head} {row['step_s']['value'] * 1e3:9.2f} {span:>22} {share:>6} "
            f"{row['peak_bytes'] / 2**30:6.1f}  {phases}"
        )
    return "\n".join(lines)
