r"""`python -m lf_ray.bench step`: the training step by batch and mode, without data and search.

    python -m lf_ray.bench step                          nano on the CPU, as a smoke test
    python -m lf_ray.bench step --size 3b --px 224 --batches 16,64            on every GPU
    python -m lf_ray.bench step --size 3b --gpus 1 --modes compiled,pipelined --comm bf16
    python -m lf_ray.bench step --size 3b --px 224,252 --gpus 1,2,4,8 --modes pipelined --ratio 0,1
    python -m lf_ray.bench step --size 3b --gpus 2 --modes compiled,pipelined --update whole,sharded
    python -m lf_ray.bench step --against loongforge --size 3b --batches 16,64 --comm bf16 \
        loongforge.path=DIR loongforge.python=ENV/bin/python model.tokenizer=EAGLE data.path=DIR

Modes, each with what the ones before it have: ddp (plain DistributedDataParallel, eager), eager
(our step, not captured), graph (one CUDA graph), fused (prefix and head on fewer kernels), compiled
(the head's blocks by torch.compile), pipelined (prefix of the next batch beside the update).
Batches are made in memory. Below the rows: what each mode bought over the one before it, scaling
efficiency over the ranks, and with --profile the time by kernel class against its floor. Ends with
one JSON line.
--against loongforge visits our modes and LoongForge in turn, on one data set from disk.
"""

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from lf_ray.bench.arguments import json_line, numbers, whole, wholes, words_of
from lf_ray.bench.comm import ALGOS
from lf_ray.bench.steps.against import (
    LOONGFORGE,
    against_words,
    compared,
    interleaved,
    our_side,
    their_side,
)
from lf_ray.bench.steps.native import KNOBS, MODES, SHARDED, StepBench, run_bench
from lf_ray.bench.steps.readings import to_plain, words
from lf_ray.bench.steps.rows import table
from lf_ray.errors import LfRayError
from lf_ray.machine import detect
from lf_ray.testing.ranks import RankError

_AGAINST_ROUNDS = 4


def run_against(options: argparse.Namespace, modes: Sequence[str]) -> list[dict[str, Any]]:
    """Visits our modes and LoongForge in turn; returns a row for each side, batch and dtype.

    Raises:
        ConfigError: a setting is wrong, or LoongForge can't be started.
    """
    machine, overrides = detect(), list(options.overrides)
    if options.gpus:
        overrides.append(f"cluster.workers={options.gpus[0]}")
    if options.px:
        overrides.append(f"model.image_px={options.px[0]}")
    send = {"overlap.bucket_size_mb": options.bucket_mb[0], "overlap.ratio": options.ratio[0]}
    rows = []
    with TemporaryDirectory(prefix="lf-ray-bench-") as folder:
        theirs = their_side(overrides, machine, Path(folder))
        ours = [
            our_side(mode, {**send, **KNOBS[mode]}, [f"model={options.size}", *overrides], machine)
            for mode in modes
        ]
        for batch_size in options.batches:
            for comm in options.comm:
                rounds = options.rounds or _AGAINST_ROUNDS
                visits = interleaved([*ours, theirs], batch_size, comm, options.steps, rounds)
                rows += compared(visits, batch_size, comm)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; 0, 1 where nothing was measured or compared, 2 for wrong words."""
    options = _parser().parse_args(argv)
    known = tuple(KNOBS) if options.against else MODES
    modes = tuple(options.modes.split(",")) if options.modes else known
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
        said = {
            "bench": "step",
            "against": options.against,
            "rounds": options.rounds or _AGAINST_ROUNDS,
            "machine": detect().label,
        }
        sys.stdout.write(json_line({**said, "rows": rows}))
        return 0 if any(row.get("ratio") for row in rows) else 1
    if options.overrides:
        sys.stderr.write("key=value words belong to --against; the rest is made in memory\n")
        return 2
    rows = []
    sizes_px = options.px or (56 if options.size == "nano" else 224,)
    counts = options.gpus or (max(1, torch.cuda.device_count()),)
    for image_px, num_ranks, algo in itertools.product(sizes_px, counts, options.algo):
        bench = StepBench(
            size=options.size,
            image_px=image_px,
            batches=options.batches,
            modes=modes,
            num_steps=options.steps,
            num_ranks=num_ranks,
            comm_dtypes=options.comm,
            bucket_sizes_mb=options.bucket_mb,
            ratios=options.ratio,
            updates=options.update,
            rounds=options.rounds or 1,
            profile=options.profile,
            algo=algo,
        )
        try:
            found = [{"image_px": image_px, **row} for row in run_bench(bench)]
        except RankError as error:
            sys.stderr.write(f"{options.size}, {image_px} px, {num_ranks} ranks: {error}\n")
            return 1
        sys.stdout.write(f"{options.size}, {image_px} px, {num_ranks} ranks\n{table(found)}\n")
        sys.stdout.flush()
        rows += found
    sys.stdout.write("\n".join(words(rows)) + "\n")
    said = {"bench": "step", **asdict(bench), **to_plain(rows), "rows": rows}
    # Of these `bench` has the last value alone; rows carry their own.
    said |= {"image_px": sizes_px, "num_ranks": counts, "algo": options.algo}
    said["machine"] = detect().label
    sys.stdout.write(json_line(said))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lf_ray.bench step", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--size", default="nano", choices=("nano", "3b"))
    parser.add_argument(
        "--px", type=wholes(1), help="sides of a view as the tower sees it: 224,252"
    )
    parser.add_argument("--batches", type=wholes(1), default=(4,), help="samples a rank: 16,64")
    parser.add_argument("--modes", help=f"of {','.join(MODES)}; default: all")
    parser.add_argument("--steps", type=whole(1), default=40, help="timed steps a row")
    parser.add_argument("--gpus", type=wholes(1), help="ranks: 1,2; default: every GPU, or one CPU")
    parser.add_argument(
        "--comm", type=words_of(("fp32", "bf16")), default=("fp32",), help="on the wire: fp32,bf16"
    )
    parser.add_argument(
        "--bucket-mb", type=numbers(2**-6), default=(256.0,), help="MiB as sent: 25,256,2048"
    )
    parser.add_argument("--ratio", type=numbers(0, 1), default=(1.0,), help="sent in backward: 0,1")
    parser.add_argument(
        "--update",
        type=words_of(("whole", SHARDED)),
        default=("whole",),
        help="by every rank, or its own part by each: whole,sharded",
    )
    parser.add_argument(
        "--algo", type=words_of(ALGOS), default=("default",), help="NCCL's: ring,tree"
    )
    parser.add_argument("--rounds", type=whole(1), help="visits of each row, in turn")
    parser.add_argument("--profile", action="store_true", help="launches, time by kernel class")
    parser.add_argument("--against", choices=[LOONGFORGE], help="compare in one run")
    parser.add_argument("overrides", nargs="*", help="key=value settings for --against")
    return parser
