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

import ray
from ray import tune

from lf_ray.bench.arguments import json_line, number, whole
from lf_ray.compose import compose
from lf_ray.errors import LfRayError, four_parts
from lf_ray.machine import detect
from lf_ray.protocol import Budget, OutcomeKind, Purpose, TrialRecord, TrialRequest
from lf_ray.settings import SweepConfig, knobs_of, with_knobs
from lf_ray.trial.cluster import cluster_size, quiet, set_environment
from lf_ray.trial.launch import open_groups, prepare_data
from lf_ray.trial.runner import HEAD_ONLY
from lf_ray.trial.workers import Place, native_session

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
        first = _tune(groups.trainable, requests(config, 1, 20), folder / "first")
        start_s = time.monotonic() - began_s
        (record,) = _records(first)
        assert record.trace is not None
        num_steps = max(10, round(seconds / statistics.median(record.trace.wall_s[5:])))
        began_s = time.monotonic()
        results = _tune(groups.trainable, requests(config, num_trials, num_steps), folder / "warm")
        total_s = time.monotonic() - began_s
    spans = [
        Span(first_step_s=item.clock_s["first_step"], last_step_s=item.clock_s["last_step"])
        for item in _records(results)
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
    quiet(folder)
    # Its own defaults otherwise: a plain sweep polls its workers every 2 s.
    before = set_environment({"RAY_AIR_NEW_OUTPUT": "0", "RAY_USAGE_STATS_ENABLED": "0"})
    ray.init(
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=True,
        **cluster_size(config),
    )
    try:
        began_s, began_wall_s = time.monotonic(), _now_s()
        plain = function or _plain_trial
        trainable = tune.with_parameters(plain, config=config, folder=folder)
        results = _tune(trainable, trials, folder / "plain", limit_s)
        total_s = time.monotonic() - began_s
    finally:
        ray.shutdown()
        set_environment(before)
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
        raise _lost(rule, f"{len(ended)} that did; the next one hung, or is far slower than ours")
    return [Span(first_step_s=item["first_step"], last_step_s=item["last_step"]) for item in ended]


def _plain_trial(options: dict[str, Any], config: SweepConfig, folder: Path) -> None:
    """The Tune function that one would write: a trainer of its own for each trial."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    on_gpu = config.cluster.device == "cuda"
    TorchTrainer(
        _plain_worker,
        train_loop_config={"config": config, "request": options["request"]},
        scaling_config=ScalingConfig(
            num_workers=config.num_workers,
            use_gpu=on_gpu,
            resources_per_worker={"CPU": 1, **({"GPU": 1} if on_gpu else {})},
        ),
        run_config=RunConfig(
            name=json.loads(options["request"])["id"],
            storage_path=str(folder / "train"),
            callbacks=[TuneReportCallback()],
        ),
    ).fit()


def _plain_worker(loop_config: dict[str, Any]) -> None:
    import ray.train
    import torch.distributed as dist

    context = ray.train.get_context()
    request = TrialRequest.from_json(json.loads(loop_config["request"]))
    config = with_knobs(loop_config["config"], dict(request.knobs))
    on_gpu = config.cluster.device == "cuda"
    session = native_session(
        Place(
            config=config,
            rank=context.get_world_rank(),
            world_size=context.get_world_size(),
            device=f"cuda:{context.get_local_rank()}" if on_gpu else "cpu",
            work_group=dist.group.WORLD,
            control_group=dist.new_group(backend="gloo"),
        )
    )
    session.prepare(request)
    first_step_s = _now_s()
    session.run(request.budget.max_steps)
    last_step_s = _now_s()
    session.close()
    ray.train.report({"first_step": first_step_s, "last_step": last_step_s})


def _now_s() -> float:
    from lf_ray.clock import SystemClock

    return SystemClock().wall_s()


def _tune(
    trainable: Any, trials: Sequence[TrialRequest], folder: Path, limit_s: float | None = None
) -> list[dict[str, Any]]:
    """Returns the last result of each trial, run one after another, as far as time went.

    A warm group has deadlines of its own and needs no `limit_s`.
    """
    results = tune.Tuner(
        tune.with_resources(trainable, dict(HEAD_ONLY)),
        param_space={"request": tune.grid_search([json.dumps(item.to_json()) for item in trials])},
        tune_config=tune.TuneConfig(
            max_concurrent_trials=1,
            reuse_actors=True,
            trial_dirname_creator=_dirname,
            time_budget_s=limit_s,
        ),
        run_config=tune.RunConfig(
            name=folder.name, storage_path=str(folder.parent.resolve()), verbose=0
        ),
    ).fit()
    if results.errors:
        raise _lost("every trial ends without an error", f"{results.errors[0]}")
    return [dict(item.metrics or {}) for item in results]


def _dirname(trial: Any) -> str:
    return str(trial.trial_id)


def _records(results: Sequence[dict[str, Any]]) -> list[TrialRecord]:
    records = [TrialRecord.from_json(json.loads(item["record"])) for item in results]
    for record in records:
        kept = record.outcome.kind is OutcomeKind.COMPLETED
        if not kept and record.outcome.error_kind != "unsteady":
            got = f"{record.request.id}: {record.outcome.kind}, {record.outcome.reason}"
            raise _lost("every trial is completed", got)
    return records


def _lost(rule: str, got: str) -> LfRayError:
    change = "Try the same settings in a sweep, whose report says more, or give smaller ones."
    return LfRayError(four_parts("comparing seconds between trials", rule, got, change))


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
