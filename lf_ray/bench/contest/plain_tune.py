"""Trials as a plain Ray Tune sweep runs them, and requests run in turn on a warm group.

Plain is what one would write: a Tune function that builds a TorchTrainer of its own each time.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import tune

from lf_ray.errors import LfRayError, four_parts
from lf_ray.protocol import OutcomeKind, TrialRecord, TrialRequest
from lf_ray.settings import SweepConfig, with_knobs
from lf_ray.trial.cluster import cluster_size, quiet, set_environment
from lf_ray.trial.runner import HEAD_ONLY
from lf_ray.trial.workers import Place, native_session

_BEFORE_CAPTURE = 2


@contextmanager
def plain_ray(config: SweepConfig, folder: Path) -> Iterator[None]:
    """Starts Ray as it comes, and ends it; what it says goes to `folder`."""
    quiet(folder)
    # Its own defaults otherwise: a plain sweep polls its workers every 2 s.
    before = set_environment({"RAY_AIR_NEW_OUTPUT": "0", "RAY_USAGE_STATS_ENABLED": "0"})
    ray.init(
        "local",  # or it would join whatever Ray somebody has started on this machine
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=True,
        **cluster_size(config),
    )
    try:
        yield
    finally:
        ray.shutdown()
        set_environment(before)


def bound(function: Callable[..., None], config: SweepConfig, folder: Path) -> Any:
    """Returns the Tune function with its settings, and where its workers' files go."""
    return tune.with_parameters(function, config=config, folder=folder)


def trial_name() -> str:
    """Returns Tune's name of the trial whose function this is called in."""
    return str(tune.get_context().get_trial_name())


def fit_plain(
    config: SweepConfig, folder: Path, request: TrialRequest, warm_steps: int = 0
) -> None:
    """Runs a request in workers of its own; what they report becomes the Tune trial's result.

    Called in a Tune function. With `warm_steps` the step is captured where its knobs say so, and
    so many run before the timed ones. The result has first_step, last_step (seconds since the
    epoch, of the timed steps, on rank 0) and samples_per_s, those of all ranks together.
    """
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    on_gpu = config.cluster.device == "cuda"
    TorchTrainer(
        _plain_worker,
        train_loop_config={
            "config": config,
            "request": json.dumps(request.to_json()),
            "warm_steps": warm_steps,
        },
        scaling_config=ScalingConfig(
            num_workers=config.num_workers,
            use_gpu=on_gpu,
            resources_per_worker={"CPU": 1, **({"GPU": 1} if on_gpu else {})},
        ),
        run_config=RunConfig(
            name=request.id,
            storage_path=str(folder / "train"),
            callbacks=[TuneReportCallback()],
        ),
    ).fit()


def _plain_worker(loop_config: dict[str, Any]) -> None:
    import ray.train
    import torch.distributed as dist

    from lf_ray.clock import SystemClock

    clock = SystemClock()
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
    if loop_config["warm_steps"]:
        session.rehearse()
        session.run(_BEFORE_CAPTURE)
        session.capture()
        session.run(loop_config["warm_steps"])
    first_step_s = clock.wall_s()
    session.run(request.budget.max_steps)
    last_step_s = clock.wall_s()
    session.close()
    num_samples = (
        request.budget.max_steps
        * context.get_world_size()
        * config.batch.per_gpu
        * config.batch.accumulation
    )
    ray.train.report(
        {
            "first_step": first_step_s,
            "last_step": last_step_s,
            "samples_per_s": num_samples / (last_step_s - first_step_s),
        }
    )


def run_in_turn(
    trainable: Any, trials: Sequence[TrialRequest], folder: Path, limit_s: float | None = None
) -> list[dict[str, Any]]:
    """Returns the last result of each trial, run one after another, as far as time went.

    A warm group has deadlines of its own and needs no `limit_s`.

    Raises:
        LfRayError: a trial failed.
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
        run_config=_run_config(folder),
    ).fit()
    if results.errors:
        raise lost("every trial ends without an error", f"{results.errors[0]}")
    return [dict(item.metrics or {}) for item in results]


def run_searched(
    function: Any, searcher: Any, folder: Path, limit_s: float
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Returns what a searcher proposed and how it ended, trial by trial, until time is over.

    Args:
        function: that Tune runs with a proposal.
        searcher: of Ray Tune.
        folder: for what Tune writes.
        limit_s: after which no trial goes on.

    Returns:
        Each trial's proposal and last result; the result of one that failed or was ended is empty.
    """
    results = tune.Tuner(
        tune.with_resources(function, dict(HEAD_ONLY)),
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            num_samples=-1,
            max_concurrent_trials=1,
            trial_dirname_creator=_dirname,
            time_budget_s=limit_s,
        ),
        run_config=_run_config(folder),
    ).fit()
    return [
        (dict(item.config or {}), {} if item.error else dict(item.metrics or {}))
        for item in results
    ]


def _run_config(folder: Path) -> Any:
    return tune.RunConfig(name=folder.name, storage_path=str(folder.parent.resolve()), verbose=0)


def _dirname(trial: Any) -> str:
    return str(trial.trial_id)


def kept_records(results: Sequence[Mapping[str, Any]]) -> list[TrialRecord]:
    """Returns the records that a warm group reported.

    Raises:
        LfRayError: one was not completed, for another reason than that its steps wander.
    """
    records = [TrialRecord.from_json(json.loads(item["record"])) for item in results]
    for record in records:
        kept = record.outcome.kind is OutcomeKind.COMPLETED
        if not kept and record.outcome.error_kind != "unsteady":
            got = f"{record.request.id}: {record.outcome.kind}, {record.outcome.reason}"
            raise lost("every trial is completed", got)
    return records


def lost(rule: str, got: str) -> LfRayError:
    """Returns the error of a comparison that could not be made."""
    change = "Try the same settings in a sweep, whose report says more, or give smaller ones."
    return LfRayError(four_parts("comparing with a plain Ray Tune sweep", rule, got, change))
