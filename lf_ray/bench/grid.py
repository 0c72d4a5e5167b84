r"""`python -m lf_ray.bench grid`: every point of a grid measured on real workers, for a table.

    python -m lf_ray.bench grid model=3b data=synthetic memory.limit_gb=48 sweep.minutes=9
    python -m lf_ray.bench grid ... sweep.minutes=18 resume=<id>    the same words again: goes on
    python -m lf_ray.bench grid --freeze 2xh200 outputs/grid/*/journal.jsonl
    python -m lf_ray.bench grid cluster=sim_2xh200                  simulated

Batch x captured or not x pipelining x bucket size x ratio; points of equal effect, and those at
least as large as one that did not fit, cost nothing. Then the upper quarter is visited until each
point has three visits, interleaved. Leaves outputs/grid/<id>/ like any sweep, with the traces of
all steps in its journal. --freeze makes one table of several, or of an earlier table and a later
journal, with --batches of their points at these batches (an interrupted grid's last one is half
measured). `python -m lf_ray.bench search --tables NAME` then plays searchers on it.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lf_ray.bench.arguments import numbers, wholes
from lf_ray.bench.contest.frozen import freeze, frozen_path
from lf_ray.bench.contest.grid_planner import GridPlanner
from lf_ray.bench.replay import replay_table
from lf_ray.errors import LfRayError
from lf_ray.protocol import KnobValue
from lf_ray.search.command import EXIT_REFUSED, run_sweep
from lf_ray.trial.launch import LAUNCH

_BATCHES = (16, 32, 64, 128)
_BUCKETS_MIB = (4.0, 25.0, 64.0, 256.0, 1024.0)
_RATIOS = (0.0, 0.5, 1.0)


def space_of(options: argparse.Namespace) -> dict[str, list[KnobValue]]:
    """Returns what the grid spans, what is dear to change first."""
    return {
        "batch.per_gpu": list(options.batches or _BATCHES),
        "graph.scope": ["off", "step+optimizer"],
        "pipeline.prefix": ["off", "on"],
        "overlap.bucket_size_mb": list(options.bucket_mb),
        "overlap.ratio": list(options.ratio),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Runs or goes on with a grid, or freezes journals; returns the exit code."""
    options = _parser().parse_args(argv)
    if options.freeze and not options.words:
        sys.stderr.write("--freeze NAME takes the journals that the table is made of\n")
        return EXIT_REFUSED
    if options.freeze:
        return _freeze(options.freeze, [Path(word) for word in options.words], options.batches)
    about = __doc__ or ""
    space = space_of(options)
    code = run_sweep("grid", space, options.words, LAUNCH, about=about, make_planner=GridPlanner)
    if code == 0:
        sys.stdout.write("Table:   python -m lf_ray.bench grid --freeze NAME JOURNAL ...\n")
    return code


def _freeze(name: str, paths: list[Path], batches: Sequence[int] | None) -> int:
    target = frozen_path(name)
    try:
        for path in paths:
            # A journal that can't be played back leaves no table behind.
            replay_table(path)
        num_bytes = freeze(paths, target, batches)
        table = replay_table(target)
    except LfRayError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_REFUSED
    visits = sum(len(group) for group in table.records.values())
    sys.stdout.write(
        f"{target}: {len(table.records)} points, {visits} visits,"
        f" {table.recorded_frac:.0%} of the space, {num_bytes / 1024:.0f} KiB\n"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lf_ray.bench grid",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--freeze", metavar="NAME", help="make a table of the journals given")
    parser.add_argument(
        "--batches", type=wholes(1), help="samples a rank; with --freeze, only points of these"
    )
    parser.add_argument("--bucket-mb", type=numbers(2**-6, 2**20), default=_BUCKETS_MIB)
    parser.add_argument("--ratio", type=numbers(0, 1), default=_RATIOS, help="sent in backward")
    parser.add_argument("words", nargs="*", help="group=option and key=value, or journals")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
