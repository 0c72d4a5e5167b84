"""`python -m lf_ray.bench overhead`: seconds between trials, warm and as a plain Ray Tune sweep.

    python -m lf_ray.bench overhead                                what this machine has
    python -m lf_ray.bench overhead --trials 3 --seconds 1 model=nano cluster.workers=2

The same points, session and number of steps twice in one run: on one warm group (`ours`), and as
one would write it (`plain`): a Tune function that builds a TorchTrainer for each trial. Between
trials lie reset, preparation, Tune and, for plain, the workers' start. The warm group's one start
is listed apart.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lf_ray.bench.arguments import json_line, number, whole
from lf_ray.bench.contest.plain_tune import (
    bound,
    fit_plain,
    kept_records,
    lost,
    plain_ray,
    run_in_turn,
)
from lf_ray.clock import SystemClock
from lf_ray.compose import compose
from lf_ray.errors import LfRayError
from lf_ray.machine import detect
from lf_ray.protocol import Budget, Purpose, TrialRequest
from lf_ray.settings import SweepConfig, knobs_of
from lf_ray.trial.launch import open_groups, prepare_data

_BUCKETS_MB = (25.0, 1.0, 4.0, 16.0, 0.25)


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """When a trial's steps ran, seconds since the epoch."""

    first_step_s: float
    last_step_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One way to run the trials.

    Attributes:
        total_s: from the Tuner's start to its end.
        start_s: until the first trial's first step, part of `total_s`.
    """

    name: str
    spans: tuple[Span, ...]
    total_s: float
    start_s: float

    @property
    def between_s(self) -> list[float]:
        """Returns the seconds from each trial's last step to the next one's first."""
        return [b.first_step_s - a.last_step_s for a, b in zip(self.spans, self.spans[1:])]


def requests(config: SweepConfig, num_trials: int, num_steps: int) -> list[TrialRequest]:
    """Returns the trials: bucket sizes in turn, all with the same number of steps."""
    budget = Budget(min_steps=num_steps, max_steps=num_steps, max_s=math.inf, target_frac=1e-9)
    return [
        TrialRequest(
            id=f"t{index:03d}",
            knobs={
                **knobs_of(config),
                "overlap.bucket_size_mb": _BUCKETS_MB[index % len(_BUCKETS_MB)],
            },
            seed=config.sweep.seed,
            purpose=Purpose.SEARCH,
            budget=budget,
        )
        for index in range(num_trials)
    ]


def run_warm(
    config: SweepConfig, folder: Path, num_trials: int, seconds: float
) -> tuple[Side, int]:
    """Runs the trials on a warm group; returns it and the steps a trial takes for `seconds`."""
    began_s = time.monotonic()
    with open_groups(config, folder) as groups:
        first = run_in_turn(groups.trainable, requests(config, 1, 20), folder / "first")
        start_s = time.monotonic() - began_s
        (record,) = kept_records(first)
        assert record.trace is not None
        num_steps = max(10, round(seconds / statistics.median(record.trace.wall_s[5:])))
        began_s = time.monotonic()
        results = run_in_turn(
            groups.trainable, requests(config, num_trials, num_steps), folder / "warm"
        )
        total_s = time.monotonic() - began_s
    spans = [
        Span(first_step_s=item.clock_s["first_step"], last_step_s=item.clock_s["last_step"])
        for item in kept_records(results)
    ]
    return Side(name="ours", spans=_ordered(spans), total_s=total_s, start_s=start_s), num_steps


def plain_limit_s(trials: Sequence[TrialRequest], seconds: float) -> float:
    """Returns how long a plain sweep may take: each trial what a group's deadlines give one.

    Args:
        trials: of the sweep.
        seconds: that the measured steps of one take on a warm group; ten times that is enough.
    """
    limits = [item.deadlines for item in trials]
    return sum(d.start_s + d.first_batch_s + d.step_s + 10 * seconds for d in limits)


def run_plain(
    config: SweepConfig,
    folder: Path,
    trials: Sequence[TrialRequest],
    limit_s: float,
    function: Callable[..., None] | None = None,
) -> Side:
    """Runs the same trials as a plain Ray Tune sweep over TorchTrainer.

    Args:
        config: of the sweep.
        folder: for what Ray writes.
        trials: in order.
        limit_s: after which Tune ends the trials that are left, by force ten seconds later.
        function: that Tune runs; None takes the one that one would write.

    Raises:
        LfRayError: a trial failed, or did not come to its end in time.
    """
    with plain_ray(config, folder):
        began_s, began_wall_s = time.monotonic(), SystemClock().wall_s()
        trainable = bound(function or _plain_trial, config, folder)
        results = run_in_turn(trainable, trials, folder / "plain", limit_s)
        total_s = time.monotonic() - began_s
    ordered = _ordered(plain_spans(results, len(trials), limit_s))
    return Side(
        name="plain",
        spans=ordered,
        total_s=total_s,
        start_s=ordered[0].first_step_s - began_wall_s,
    )


def plain_spans(
    results: Sequence[Mapping[str, Any]], num_trials: int, limit_s: float
) -> list[Span]:
    """Returns when the steps of each plain trial ran, by what they reported.

    Raises:
        LfRayError: not all came to their end before Tune's time was over.
    """
    ended = [item for item in results if "last_step" in item]
    if len(ended) < num_trials:
        rule = f"{num_trials} plain trials end within {limit_s:.0f} s"
        raise lost(rule, f"{len(ended)} that did; the next one hung, or is far slower than ours")
    return [Span(first_step_s=item["first_step"], last_step_s=item["last_step"]) for item in ended]


def _plain_trial(options: dict[str, Any], config: SweepConfig, folder: Path) -> None:
    """The Tune function that one would write: a trainer of its own for each trial."""
    fit_plain(config, folder, TrialRequest.from_json(json.loads(options["request"])))


def _ordered(spans: Sequence[Span]) -> tuple[Span, ...]:
    return tuple(sorted(spans, key=lambda item: item.first_step_s))


def summary(ours: Side, plain: Side, num_steps: int) -> dict[str, Any]:
    """Returns the benchmark's numbers: `between_s` is the warm median."""
    warm_s, plain_s = (statistics.median(side.between_s) for side in (ours, plain))
    return {
        "ratio_between_trials": plain_s / warm_s,
        "between_s": warm_s,
        "between_plain_s": plain_s,
        "num_between": len(ours.between_s),
        "between_all_s": [round(item, 4) for item in ours.between_s],
        "between_plain_all_s": [round(item, 4) for item in plain.between_s],
        "total_s": ours.total_s,
        "total_plain_s": plain.total_s,
        "group_start_s": ours.start_s,
        "num_trials": len(ours.spans),
        "num_steps": num_steps,
    }


def table(ours: Side, plain: Side) -> str:
    """Returns the comparison for eyes."""
    lines = [f"{'':8}{'between trials':>24}{'all trials':>14}{'start':>10}"]
    for side in (ours, plain):
        gaps_s = side.between_s
        median_s = statistics.median(gaps_s)
        spread = f"{median_s:.3f} s ({min(gaps_s):.3f} to {max(gaps_s):.3f})"
        lines.append(f"{side.name:8}{spread:>30}{side.total_s:12.1f} s{side.start_s:8.1f} s")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark and returns its exit code."""
    options, overrides = _parser().parse_known_args(argv)
    machine = detect()
    try:
        config = compose("overlap", overrides, machine)
        prepare_data(config)
        with tempfile.TemporaryDirectory(prefix="lf_ray_overhead_") as name:
            folder = Path(name)
            ours, num_steps = run_warm(config, folder, options.trials, options.seconds)
            trials = requests(config, options.trials, num_steps)
            plain = run_plain(config, folder, trials, plain_limit_s(trials, options.seconds))
    except LfRayError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(table(ours, plain) + "\n")
    head = {
        "bench": "overhead",
        "model": config.model.size,
        "ranks": config.num_workers,
        "machine": machine.label,
        "load": round(os.getloadavg()[0], 1),
    }
    sys.stdout.write(json_line({**head, **summary(ours, plain, num_steps)}))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lf_ray.bench overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Other words are overrides, as for a sweep: model=nano cluster.workers=2 ...",
    )
    parser.add_argument("--trials", type=whole(2), default=5, help="trials on each side")
    parser.add_argument(
        "--seconds", type=number(0.01), default=3.0, help="measured steps of a trial"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
