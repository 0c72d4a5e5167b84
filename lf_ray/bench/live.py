r"""`python -m lf_ray.bench live`: our sweep against a plain Ray Tune sweep on real workers.

    python -m lf_ray.bench live --minutes 4 --batches 64 model=3b data=synthetic memory.limit_gb=48
    python -m lf_ray.bench live --minutes 2 --batches 4 --bucket-mb 0.25,1,4 model=nano

Both search the same space with the same trainer, from the baseline. Ours is a sweep as
`sweeps/overlap.py` runs it, on GPUs with the suggestion of the simulated cluster. The plain one is
as one would write it: OptunaSearch, a TorchTrainer for each trial, the mean of forty steps after
ten, no numerics gate; it is given as many seconds on the same workers as ours took, starts
included. Then both winners and the baseline are measured in turn in one run: what each searcher
claims is not held against the other's claim. Ours goes first, so that what is kept on disk
(compiled kernels, frames) is there for the plain one.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
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
from lf_ray.errors import ConfigError, LfRayError, four_parts
from lf_ray.machine import detect
from lf_ray.protocol import Knobs, KnobValue
from lf_ray.search.command import EXIT_REFUSED
from lf_ray.search.conductor import INTERRUPTED
from lf_ray.search.space import space_from_literal
from lf_ray.settings import SweepConfig, Trainer, knobs_of


def main(argv: Sequence[str] | None = None) -> int:
    """Runs both sweeps and the confirmation; returns the exit code."""
    options = _parser().parse_args(argv)
    machine = detect()
    axes = space_of(options)
    fixed = [f"{name}={values[0]}" for name, values in axes.items() if len(values) == 1]
    words = [*fixed, *options.words]
    try:
        config = compose("live", words, machine)
        check(config)
        literal = with_baseline(axes, knobs_of(config))
        space = space_from_literal(literal, knobs_of(config))
    except LfRayError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_REFUSED
    try:
        ours = run_ours(literal, [*words, f"sweep.minutes={options.minutes:g}"], config)
        with tempfile.TemporaryDirectory(prefix="lf_ray_live_") as name:
            folder = Path(name)
            sys.stdout.write(f"\nPlain Ray Tune + OptunaSearch, for {ours.wall_s:.0f} s ...\n")
            sys.stdout.flush()
            plain = run_plain(config, space, folder / "plain", ours.wall_s)
            sys.stdout.write(_trials_words(plain) + "\nBoth winners in turn ...\n")
            sys.stdout.flush()
            confirmed, num_asked = confirm(
                config, (ours, plain), folder / "confirm", options.visits
            )
    except LfRayError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if len(confirmed) < num_asked:
        sys.stdout.write(f"Interrupted: {len(confirmed)} of {num_asked} visits in turn ran.\n")
    if not confirmed:
        return INTERRUPTED
    said = judged(ours, plain, confirmed, config.num_workers)
    sys.stdout.write(table(said) + "\n")
    head = {
        "bench": "live",
        "model": config.model.size,
        "ranks": config.num_workers,
        "machine": machine.label,
    }
    sys.stdout.write(json_line({**head, **said}))
    return 0 if len(confirmed) == num_asked else INTERRUPTED


def check(config: SweepConfig) -> None:
    """Refuses what the two sides can't share.

    Raises:
        ConfigError: simulated or joined workers, another trainer, or a sweep to resume.
    """
    given = [
        f"{name}={value}"
        for name, value, allowed in (
            ("cluster", config.cluster.kind, not config.cluster.kind.startswith("sim_")),
            ("cluster.address", config.cluster.address, not config.cluster.address),
            ("trainer", config.trainer.value, config.trainer is Trainer.native),
            ("resume", config.resume, config.resume is None),
        )
        if not allowed
    ]
    if given:
        raise ConfigError(
            four_parts(
                "comparing with a plain Ray Tune sweep",
                "both sides run our trainer on this machine's own workers, from the start",
                ", ".join(given),
                "Leave that out.",
            )
        )


def with_baseline(
    axes: Mapping[str, Sequence[KnobValue]], baseline: Knobs
) -> dict[str, list[KnobValue]]:
    """Returns the axes that vary, each with the baseline's value: both sides begin there."""
    return {
        name: [*values, *({baseline[name]} - {*values})]
        for name, values in axes.items()
        if len(values) > 1
    }


def _trials_words(plain: Search) -> str:
    lost = f", {plain.num_without} of them without a number" if plain.num_without else ""
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
