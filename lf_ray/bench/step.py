r"""`python -m lf_ray.bench step`: the training step by batch and mode, without data and search.

    python -m lf_ray.bench step                          nano on the CPU, as a smoke test
    python -m lf_ray.bench step --size 3b --px 224 --batches 16,64            on every GPU
    python -m lf_ray.bench step --size 3b --gpus 1 --modes compiled,pipelined --comm bf16
    python -m lf_ray.bench step --against loongforge --size 3b --batches 16,64 --comm bf16 \
        loongforge.path=DIR loongforge.python=ENV/bin/python model.tokenizer=EAGLE data.path=DIR

Modes, each with what the ones before it have: ddp (plain DistributedDataParallel, eager), eager
(our step, not captured), graph (one CUDA graph), fused (prefix and head on fewer kernels), compiled
(the head's blocks by torch.compile), pipelined (prefix of the next batch beside the update).
Batches are made in memory. Ends with one JSON line.
--against loongforge visits our modes and LoongForge in turn, on one data set from disk.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from lf_ray.bench.steps.against import (
    LOONGFORGE,
    against_words,
    compared,
    interleaved,
    our_side,
    their_side,
)
from lf_ray.bench.steps.plain_ddp import ddp_times_s
from lf_ray.bench.steps.rows import RankRow, summary, table
from lf_ray.errors import LfRayError
from lf_ray.machine import detect
from lf_ray.protocol import KnobValue, Purpose, TrialRequest
from lf_ray.runtime.groot import sized
from lf_ray.runtime.kernels import fuse_head, fuse_prefix
from lf_ray.runtime.session import Session
from lf_ray.settings import SweepConfig, knobs_of
from lf_ray.testing.ranks import RankPlace, RankPool
from lf_ray.testing.synthetic import SyntheticParts
from models.groot_n1_6.flops import PromptShape, flops_per_sample, total

WHOLE: dict[str, KnobValue] = {"graph.scope": "step+optimizer"}
PIPELINED: dict[str, KnobValue] = {**WHOLE, "pipeline.prefix": "on"}
KNOBS: dict[str, dict[str, KnobValue]] = {
    "eager": {},
    "graph": WHOLE,
    "fused": WHOLE,
    "compiled": WHOLE,
    "pipelined": PIPELINED,
}
MODES = ("ddp", *KNOBS)
# Dense bf16 rate that an 8192^3 product reached here (docs/log.md); other devices have no floor.
MATRIX_FLOPS_PER_S = {"NVIDIA H200": 790e12}
CASE_DEADLINE_S = 1200.0


@dataclass(frozen=True)
class StepBench:
    """What is measured; travels to the ranks."""

    size: str
    image_px: int
    batches: tuple[int, ...]
    modes: tuple[str, ...]
    num_steps: int
    num_ranks: int
    comm_dtypes: tuple[str, ...]
    bucket_size_mb: float
    ratio: float

    def config(self) -> SweepConfig:
        """Returns the settings of a session that neither gates nor searches."""
        config = SweepConfig()
        config.model.size, config.model.image_px = self.size, self.image_px
        config.cluster.workers = self.num_ranks
        config.measure.gate_steps = 0
        return config

    def request(self, batch_size: int, mode: str, comm: str) -> TrialRequest:
        """Returns the request of one row."""
        knobs = {
            **knobs_of(self.config()),
            "batch.per_gpu": batch_size,
            "overlap.comm_dtype": comm,
            "overlap.bucket_size_mb": self.bucket_size_mb,
            "overlap.ratio": self.ratio,
            **KNOBS[mode],
        }
        return TrialRequest(
            id=f"{mode}-{batch_size}-{comm}", knobs=knobs, seed=0, purpose=Purpose.SEARCH
        )

    def floor_s(self, batch_size: int) -> float:
        """Returns the matrix work of a step at the device's rate, 0 where that is unknown."""
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        if name not in MATRIX_FLOPS_PER_S or self.size != "3b":
            return 0.0
        groot = sized(self.config().model)
        prompt = PromptShape(view_tokens=groot.square_view_tokens, length=220, causal_frac=0.5)
        flops = total(flops_per_sample(groot, prompt))
        return (flops.forward + flops.backward) * batch_size / MATRIX_FLOPS_PER_S[name]


class FusedParts(SyntheticParts):
    """The real model with prefix and head fused where the device can."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self._mode = mode

    def model(self, config: SweepConfig, device: torch.device) -> Any:
        """Returns the model as the mode wants it."""
        model = super().model(config, device)
        if self._mode in ("fused", "compiled", "pipelined"):
            fuse_prefix(model, compile_views=self._mode != "fused")
            fuse_head(model, compile_blocks=self._mode != "fused")
        return model


def ddp_rows(place: RankPlace, bench: StepBench) -> list[dict[str, Any]]:
    """Returns the rows of plain data-parallel training on this rank."""
    rows = []
    for batch_size in bench.batches:
        began_s = time.perf_counter()
        try:
            times_s, loss, peak = ddp_times_s(place, bench.config(), batch_size, bench.num_steps)
        except torch.OutOfMemoryError:
            rows.append(RankRow(batch_size, "ddp", "fp32", [], error="out of memory"))
            continue
        start_s = time.perf_counter() - began_s - sum(times_s)
        rows.append(RankRow(batch_size, "ddp", "fp32", times_s, loss, peak, start_s))
        _give_back()
    return [asdict(row) for row in rows]


def session_rows(
    place: RankPlace, bench: StepBench, modes: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Returns the rows of modes that share a model, on this rank."""
    lone = place.world_size == 1
    group = None if lone else place.work_group
    session = Session(
        bench.config(),
        place.rank,
        place.world_size,
        place.device,
        group,
        None if lone else place.control_group,
        FusedParts(modes[0]),
    )
    rows = [
        _row(session, batch_size, mode, bench.request(batch_size, mode, comm), bench.num_steps)
        for batch_size in bench.batches
        for mode in modes
        for comm in bench.comm_dtypes
    ]
    session.close()
    _give_back()
    return [asdict(row) for row in rows]


def _row(
    session: Session, batch_size: int, mode: str, request: TrialRequest, num_steps: int
) -> RankRow:
    comm = str(request.knobs["overlap.comm_dtype"])
    began_s = time.perf_counter()
    try:
        session.prepare(request)
        session.rehearse()
        session.run(2)
        session.capture()
        start_s = time.perf_counter() - began_s
        samples = session.run(num_steps)
        peak = session.memory().get("peak_reserved", session.memory()["peak"])
    except torch.OutOfMemoryError:
        session.reset()
        return RankRow(batch_size, mode, comm, [], error="out of memory")
    last = samples[-1]
    times_s = [sample.wall_s for sample in samples]
    session.reset()
    phases_s = dict(last.phases_s)
    return RankRow(batch_size, mode, comm, times_s, last.loss, peak, start_s, phases_s)


def _give_back() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def run_bench(bench: StepBench) -> list[dict[str, Any]]:
    """Measures every mode in ranks of its own process group and returns the rows."""
    pool = RankPool(bench.num_ranks, "nccl" if torch.cuda.is_available() else "gloo")
    rows = []
    try:
        for modes in _sharing(bench.modes):
            case, rest = (ddp_rows, ()) if modes == ("ddp",) else (session_rows, (modes,))
            by_rank = pool.run(case, bench, *rest, deadline_s=CASE_DEADLINE_S)
            for found in zip(*by_rank):
                ranks = [RankRow(**row) for row in found]
                rows.append(summary(ranks, bench.floor_s(ranks[0].batch)))
    finally:
        pool.close()
    return rows


def run_against(options: argparse.Namespace, modes: Sequence[str]) -> list[dict[str, Any]]:
    """Visits our modes and LoongForge in turn; returns a row for each side, batch and dtype.

    Raises:
        ConfigError: a setting is wrong, or LoongForge can't be started.
    """
    machine, words = detect(), list(options.overrides)
    if options.gpus:
        words.append(f"cluster.workers={options.gpus}")
    if options.px:
        words.append(f"model.image_px={options.px}")
    send = {"overlap.bucket_size_mb": options.bucket_mb, "overlap.ratio": options.ratio}
    rows = []
    with TemporaryDirectory(prefix="lf-ray-bench-") as folder:
        theirs = their_side(words, machine, Path(folder))
        ours = [
            our_side(mode, {**send, **KNOBS[mode]}, [f"model={options.size}", *words], machine)
            for mode in modes
        ]
        for batch_size in (int(size) for size in options.batches.split(",")):
            for comm in options.comm.split(","):
                visits = interleaved(
                    [*ours, theirs], batch_size, comm, options.steps, options.rounds
                )
                rows += compared(visits, batch_size, comm)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; 0, 1 where nothing could be compared, 2 where the words are wrong."""
    options = _parser().parse_args(argv)
    known = tuple(KNOBS) if options.against else MODES
    modes = tuple((options.modes or ",".join(known)).split(","))
    unknown = [mode for mode in modes if mode not in known]
    if unknown:
        sys.stderr.write(f"modes are {', '.join(known)}, but got {', '.join(unknown)}\n")
        return 2
    if options.against:
        try:
            rows = run_against(options, modes)
        except LfRayError as error:
            sys.stderr.write(f"{error}\n")
            return 2
        sys.stdout.write("\n".join(against_words(rows)) + "\n")
        said = {"bench": "step", "against": options.against, "rounds": options.rounds}
        sys.stdout.write(json.dumps({**said, "rows": rows}) + "\n")
        return 0 if any(row.get("ratio") for row in rows) else 1
    if options.overrides:
        sys.stderr.write("key=value words belong to --against; the rest is made in memory\n")
        return 2
    bench = StepBench(
        size=options.size,
        image_px=options.px or (56 if options.size == "nano" else 224),
        batches=tuple(int(size) for size in options.batches.split(",")),
        modes=modes,
        num_steps=options.steps,
        num_ranks=options.gpus or max(1, torch.cuda.device_count()),
        comm_dtypes=tuple(options.comm.split(",")),
        bucket_size_mb=options.bucket_mb,
        ratio=options.ratio,
    )
    rows = run_bench(bench)
    sys.stdout.write(table(rows) + "\n")
    sys.stdout.write(json.dumps({"bench": "step", **asdict(bench), "rows": rows}) + "\n")
    return 0


def _sharing(modes: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns the modes in groups that can share a model."""
    kinds = (("ddp",), ("eager", "graph"), ("fused",), ("compiled", "pipelined"))
    groups = [tuple(mode for mode in kind if mode in modes) for kind in kinds]
    return [group for group in groups if group]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lf_ray.bench step", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--size", default="nano", help="nano or 3b")
    parser.add_argument("--px", type=int, help="side of a view as the tower sees it")
    parser.add_argument("--batches", default="4", help="samples a rank, comma separated")
    parser.add_argument("--modes", help=f"of {', '.join(MODES)}, comma separated; default: all")
    parser.add_argument("--steps", type=int, default=40, help="timed steps a row")
    parser.add_argument("--gpus", type=int, help="ranks; default: every GPU, or one CPU rank")
    parser.add_argument(
        "--comm", default="fp32", help="on the wire: fp32, bf16 or both, comma separated"
    )
    parser.add_argument("--bucket-mb", type=float, default=256.0, help="MiB as sent")
    parser.add_argument("--ratio", type=float, default=1.0, help="share sent during backward")
    parser.add_argument("--against", choices=[LOONGFORGE], help="compare in one run")
    parser.add_argument("--rounds", type=int, default=4, help="visits of each side, interleaved")
    parser.add_argument("overrides", nargs="*", help="key=value settings for --against")
    return parser
