r"""`python -m lf_ray.bench live`: our sweep against a plain Ray Tune sweep on real workers.

    python -m lf_ray.bench live --minutes 4 --batches 64 model=3b data=synthetic memory.limit_gb=48
    python -m lf_ray.bench live --minutes 1 --batches 4 --bucket-mb 0.25,1,4 model=nano

Both search the same space with the same trainer. Ours is a sweep as `sweeps/overlap.py` runs it.
The plain one is as one would write it: OptunaSearch, a TorchTrainer for each trial, the mean of
forty steps after ten; it is given as many seconds on the same workers as ours took, starts
included. Then both winners and the baseline are measured in turn in one run: what each searcher
claims is not held against the other's claim. Ours goes first, so that what is kept on disk
(compiled kernels, frames) is there for the plain one.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lf_ray.bench.arguments import json_line, number, numbers, whole, wholes
from lf_ray.bench.contest.duel import (
    Search,
    confirm,
    judged,
    run_ours,
    run_plain,
    table,
)
from lf_ray.bench.grid import space_of
from lf_ray.compose import compose
from lf_ray.errors import LfRayError
from lf_ray.machine import detect
from lf_ray.search.command import EXIT_REFUSED
from lf_ray.search.space import space_from_literal
from lf_ray.settings import knobs_of


def main(argv: Sequence[str] | None = None) -> int:
    """Runs both sweeps and the confirmation; returns the exit code."""
    options = _parser().parse_args(argv)
    machine = detect()
    literal = {name: values for name, values in space_of(options).items() if len(values) > 1}
    try:
        config = compose("live", options.words, machine)
        space = space_from_literal(literal, knobs_of(config))
        ours = run_ours(literal, [*options.words, f"sweep.minutes={options.minutes:g}"], config)
        with tempfile.TemporaryDirectory(prefix="lf_ray_live_") as name:
            folder = Path(name)
            sys.stdout.write(f"\nPlain Ray Tune + OptunaSearch, for {ours.wall_s:.0f} s ...\n")
            sys.stdout.flush()
            plain = run_plain(config, space, folder / "plain", ours.wall_s)
            sys.stdout.write(_trials_words(plain) + "\nBoth winners in turn ...\n")
            sys.stdout.flush()
            confirmed = confirm(config, (ours, plain), folder / "confirm", options.visits)
    except LfRayError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_REFUSED
    said = judged(ours, plain, confirmed, config.num_workers)
    sys.stdout.write(table(said) + "\n")
    head = {
        "bench": "live",
        "model": config.model.size,
        "ranks": config.num_workers,
        "machine": machine.label,
    }
    sys.stdout.write(json_line({**head, **said}))
    return 0


def _trials_words(plain: Search) -> str:
    lost = f", {plain.num_failed} of them failed" if plain.num_failed else ""
    return f"{plain.num_trials} trials{lost}, in {plain.wall_s:.0f} s."


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lf_ray.bench live",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Other words are overrides, as for a sweep: model=nano cluster.workers=2 ...",
    )
    parser.add_argument("--minutes", type=number(0.1), default=5.0, help="of our sweep")
    parser.add_argument("--visits", type=whole(2), default=4, help="of each side at the end")
    parser.add_argument("--batches", type=wholes(1), default=(64,), help="samples a rank")
    parser.add_argument("--bucket-mb", type=numbers(2**-6, 2**20), default=(4, 25, 64, 256, 1024))
    parser.add_argument("--ratio", type=numbers(0, 1), default=(0.0, 0.25, 0.5, 0.75, 1.0))
    parser.add_argument("words", nargs="*", help="group=option and key=value")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
