"""`python -m lf_ray.bench memory`: the memory backends side by side on one GPU.

    python -m lf_ray.bench memory                              nano on the CPU, as a smoke test
    python -m lf_ray.bench memory --size 3b --batch 16 --cap-gib 60 --batches 24,32,48,64,96,128

For each backend a worker of its own: reserved minus allocated, peak, step time, the arena's
fallback share (predicted and measured), and the largest batch whose captured step fits under a cap.
Ends with one JSON line.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from lf_ray.bench.arguments import json_line, number, whole, wholes
from lf_ray.bench.steps.native import WHOLE, FusedParts
from lf_ray.errors import CaptureError, GroupError
from lf_ray.machine import detect
from lf_ray.protocol import Purpose, TrialRequest
from lf_ray.runtime.memory import arena_refusal
from lf_ray.runtime.session import Session
from lf_ray.settings import MemoryBackend, SweepConfig, knobs_of
from lf_ray.testing.ranks import RankError, RankPlace, RankPool

GIB = 2**30
BACKENDS = ("caching", "expandable", "arena:analysed", "arena:1-2-4-8")
_DEADLINE_S = 400.0


@dataclass(frozen=True)
class MemoryBench:
    """What is measured; travels to the rank.

    Attributes:
        batches: tried under the cap, rising, until one does not fit.
        cap_gib: what the process may reserve; None looks for no largest batch.
    """

    size: str
    image_px: int
    batch: int
    num_steps: int
    batches: tuple[int, ...]
    cap_gib: float | None
    mode: str

    def config(self, backend: str) -> SweepConfig:
        """Returns the settings of a session on this backend."""
        config = SweepConfig()
        config.model.size, config.model.image_px = self.size, self.image_px
        config.cluster.workers = 1
        config.measure.gate_steps = 0
        name, _, ladder = backend.partition(":")
        config.memory.backend = MemoryBackend(name)
        config.memory.block_sizes = ladder or "none"
        config.memory.limit_gb = self.cap_gib
        return config


def backend_row(place: RankPlace, bench: MemoryBench, backend: str) -> dict[str, Any]:
    """Returns one backend's row."""
    config = bench.config(backend)
    session = Session(config, 0, 1, place.device, None, None, FusedParts(bench.mode))
    ladder = str(_prepared(session, config, bench.batch)["ladder"])
    samples = session.run(bench.num_steps)
    memory = session.memory()
    session.reset()
    times_ms = [sample.wall_s * 1e3 for sample in samples[2:]]
    row = {
        "backend": backend,
        "ladder": ladder,
        "step_ms": statistics.median(times_ms),
        "fastest_ms": min(times_ms),
        "slowest_ms": max(times_ms),
        "num_steps": len(times_ms),
        "memory_bytes": dict(memory),
        "gap_bytes": memory.get("pool_gap", memory.get("reserved_allocated_gap", 0.0)),
        "largest_batch": _largest_batch(session, config, bench),
    }
    session.close()
    return row


def _prepared(session: Session, config: SweepConfig, batch_size: int) -> Any:
    knobs = {**knobs_of(config), **WHOLE, "batch.per_gpu": batch_size}
    request = TrialRequest(id=f"b{batch_size}", knobs=knobs, seed=0, purpose=Purpose.SEARCH)
    effective = session.prepare(request)
    session.rehearse()
    session.run(2)
    session.capture()
    return effective


def _largest_batch(session: Session, config: SweepConfig, bench: MemoryBench) -> int | None:
    """Returns the largest batch that ran a captured step, None without a cap."""
    if bench.cap_gib is None:
        return None
    largest = bench.batch
    for batch_size in bench.batches:
        try:
            _prepared(session, config, batch_size)
            session.run(2)
            session.reset()
        except (torch.OutOfMemoryError, CaptureError, GroupError):
            # A failed capture leaves the process unfit for another one, so the search ends here.
            break
        largest = batch_size
    return largest


def run_bench(bench: MemoryBench, backends: Sequence[str]) -> list[dict[str, Any]]:
    """Measures each backend in a process of its own and returns the rows."""
    rows = []
    for backend in backends:
        on_gpu = torch.cuda.is_available()
        refusal = arena_refusal(torch.device("cuda")) if on_gpu else None
        if backend.startswith("arena") and refusal:
            rows.append({"backend": backend, "error": refusal})
            continue
        pool = RankPool(1, "nccl" if on_gpu else "gloo")
        try:
            rows += pool.run(backend_row, bench, backend, deadline_s=_DEADLINE_S)
        except RankError as error:
            rows.append({"backend": backend, "error": str(error).strip().splitlines()[-1]})
        finally:
            pool.close()
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the rows for people, in GiB."""
    names = (
        "backend",
        "ms",
        "[fastest, slowest]",
        "gap",
        "peak alloc",
        "peak resv",
        "fallback",
        "predicted",
        "batch",
    )
    lines = ["{:16} {:>8} {:>18} {:>6} {:>10} {:>9} {:>8} {:>9} {:>6}  ladder".format(*names)]
    for row in rows:
        if "error" in row:
            lines.append(f"{row['backend']:16} {row['error']}")
            continue
        memory = row["memory_bytes"]
        peak_reserved = max(memory.get("peak_reserved", 0.0), memory.get("peak_blocks", 0.0))
        measured, predicted = memory.get("fallback_frac"), memory.get("predicted_fallback_frac")
        span = f"[{row['fastest_ms']:.2f}, {row['slowest_ms']:.2f}]"
        lines.append(
            f"{row['backend']:16} {row['step_ms']:8.2f} {span:>18} {row['gap_bytes'] / GIB:6.2f} "
            f"{memory['peak'] / GIB:10.2f} {peak_reserved / GIB:9.2f} {_share(measured):>8} "
            f"{_share(predicted):>9} {row['largest_batch'] or '-':>6}  {row['ladder']}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; 0, or 2 where a backend is none."""
    parser = argparse.ArgumentParser(prog="python -m lf_ray.bench memory", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--size", default="nano", choices=("nano", "3b"))
    parser.add_argument("--px", type=whole(1), help="side of a view as the tower sees it")
    parser.add_argument("--batch", type=whole(1), default=4, help="of the timed row")
    parser.add_argument("--steps", type=whole(4), default=12, help="timed steps a row")
    parser.add_argument("--cap-gib", type=number(0.1), help="looks for the largest batch under it")
    parser.add_argument(
        "--batches", type=wholes(1), default="24,32,48,64,96,128", help="tried under the cap"
    )
    parser.add_argument("--mode", default="compiled", choices=("graph", "fused", "compiled"))
    parser.add_argument("--backends", default=",".join(BACKENDS), help="arena:LADDER for one")
    options = parser.parse_args(argv)
    backends = options.backends.split(",")
    kinds = [item.value for item in MemoryBackend]
    unknown = [item for item in backends if item.partition(":")[0] not in kinds]
    if unknown:
        sys.stderr.write(f"backends are {', '.join(BACKENDS)}, but got {', '.join(unknown)}\n")
        return 2
    bench = MemoryBench(
        size=options.size,
        image_px=options.px or (56 if options.size == "nano" else 224),
        batch=options.batch,
        num_steps=options.steps,
        batches=options.batches,
        cap_gib=options.cap_gib,
        mode=options.mode,
    )
    rows = run_bench(bench, backends)
    sys.stdout.write(table(rows) + "\n")
    head = {"bench": "memory", "machine": detect().label}
    if not torch.cuda.is_available():
        sys.stdout.write("Without a GPU there is no allocator to choose: rows differ by noise.\n")
    sys.stdout.write(json_line({**head, **asdict(bench), "rows": rows}))
    return 0


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
