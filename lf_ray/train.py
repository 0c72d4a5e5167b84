"""Trains with a configuration that a sweep found, or with any other.

    python -m lf_ray.train --config outputs/overlap/ID/best.yaml train.max_steps=20000
    python -m lf_ray.train model=nano data=sample train.max_steps=200        # minutes on a laptop
    python -m lf_ray.train resume=ID                                         # goes on, bit for bit
    python -m lf_ray.train --check-weights DIR data.path=DIR                 # do weights know data?

Leaves outputs/train/<id>/ with checkpoints/ (to go on from), export/ (the public layout),
train.jsonl (every step), config.yaml and summary.json, and a run in MLflow.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from lf_ray.clock import Clock, SystemClock
from lf_ray.compose import as_nested, compose, read_found
from lf_ray.data.batches.opening import open_training_set
from lf_ray.data.check import check_dataset, raise_problems
from lf_ray.errors import ConfigError, LfRayError, four_parts
from lf_ray.machine import Machine, detect, gpus_usable
from lf_ray.record.journal import plain_json
from lf_ray.record.mlflow_sink import check_uri
from lf_ray.record.result_folder import log_to, new_folder
from lf_ray.search.start.lineage import source_hash
from lf_ray.search.start.preflight import check_folder, check_machine, describe_versions
from lf_ray.settings import SweepConfig, knobs_of
from lf_ray.training.books import Line
from lf_ray.training.canary import CanaryWatch
from lf_ray.training.driver import StopWish, only_one, run_on_ray
from lf_ray.training.mirror import TrainingMirror
from lf_ray.training.plan import (
    TrainingPlan,
    promised,
    refuse_stale,
    resolved,
    schedule_of,
    stale_reasons,
)
from lf_ray.training.progress import Progress, Standing
from lf_ray.training.rank import TrainingVisit
from lf_ray.training.report.summary import end_tags, summary_of, tags_of
from lf_ray.training.report.words import Opened, footer, header

EXIT_REFUSED = 2
NAME = "train"
CONFIG_NAME, SUMMARY_NAME = "config.yaml", "summary.json"


def main(
    argv: Sequence[str] | None = None, machine: Machine | None = None, clock: Clock | None = None
) -> int:
    """Runs the command line; returns 0 trained, 1 failed, 2 refused, 130 interrupted."""
    options = _parser().parse_args(argv)
    words = ([f"--config={options.config}"] if options.config else []) + options.overrides
    machine, clock = machine or detect(), clock or SystemClock()
    try:
        if options.check_weights:
            return _check_weights([*words, f"model.weights={options.check_weights}"], machine)
        opened = _open(words, options.config, machine, clock)
    except LfRayError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_REFUSED
    with ExitStack() as stack:
        try:
            stack.enter_context(only_one(opened.plan.folder))
            return _run(opened, clock)
        except ConfigError as error:
            sys.stderr.write(f"{error}\n")
            return EXIT_REFUSED
        except LfRayError as error:
            sys.stderr.write(f"{error}\n")
            return 1


def _open(words: Sequence[str], config_path: str | None, machine: Machine, clock: Clock) -> Opened:
    from lf_ray.training.actions.weights import check_weights, find_weights
    from lf_ray.training.checkpoint.manifest import identity_of
    from lf_ray.training.checkpoint.room import check_room, value_counts

    config, found = _composed(words, config_path, machine)
    check_uri(config.tracking.uri)
    check_machine(config, machine, gpus_usable)
    output = check_folder(config.output.dir, "output.dir")
    if config.model.weights is not None:
        place = str(find_weights(config.model.weights).path)
        config = replace(config, model=replace(config.model, weights=place))
    weights_id = check_weights(config.model)
    data_id, num_episodes, slots = _open_data(config)
    config = resolved(config, found, num_episodes)
    refused, noted = stale_reasons(found, config, machine, data_id)
    refuse_stale(refused, config.train.accept_stale)
    folder = output / NAME / config.resume if config.resume else new_folder(output / NAME, clock)
    versions = {**describe_versions(), "source": source_hash()}
    plan = TrainingPlan(
        folder=folder.resolve(),
        config=config,
        data_id=data_id,
        num_steps=schedule_of(config).num_steps,
        save_every=config.train.save_every or 0,
        identity=identity_of(config, data_id, weights_id, slots),
        versions=versions,
    )
    from_step, changed = _last_checkpoint(plan) if config.resume else (0, [])
    try:
        check_room(folder, value_counts(config.model, len(slots)), config.train.keep)
    except LfRayError:
        _leave_no_empty(folder, config)
        raise
    stale = [f"found elsewhere: {item}" for item in refused]
    notes = _notes(config, weights_id, [*stale, *(f"found with other {n}" for n in noted)])
    return Opened(
        plan=plan,
        found=found,
        machine=machine,
        notes=(*notes, *changed),
        from_step=from_step,
    )


def _composed(
    words: Sequence[str], config_path: str | None, machine: Machine
) -> tuple[SweepConfig, Mapping[str, Any]]:
    """Returns the settings; those of a training that is resumed come from its own folder."""
    config = compose(NAME, words, machine)
    if config.resume is None:
        return config, read_found(config_path) if config_path else {}
    parent = Path(config.output.dir).expanduser() / NAME
    stored = parent / config.resume / CONFIG_NAME
    if not stored.is_file():
        known = sorted(item.parent.name for item in parent.glob(f"*/{CONFIG_NAME}"))
        raise ConfigError(
            four_parts(
                "resuming a training",
                f"resume=ID names a folder in {parent}",
                str(config.resume),
                f"There are: {', '.join(known[-5:]) or 'none'}.",
            )
        )
    if config_path is None:
        config = compose(NAME, [f"--config={stored}", *words], machine)
    return config, read_found(str(stored))


def _open_data(config: SweepConfig) -> tuple[str, int, list[int]]:
    """Checks what is trained on; returns its id, episodes of its smallest set, embodiment slots."""
    raise_problems(check_dataset(config.data, config.model))
    if config.data.source == "synthetic":
        return "synthetic", 0, []
    whole = replace(config.data, holdout_episodes=0)
    source = open_training_set(whole, config.model)
    try:
        counts = [len(part.dataset.meta.episodes) for part in source.parts]
        slots = sorted({part.embodiment.slot for part in source.parts})
        return source.data_id, min(counts), slots
    finally:
        source.close()


def _last_checkpoint(plan: TrainingPlan) -> tuple[int, list[str]]:
    """Checks the checkpoint that is gone on from; returns its step and what to know of it."""
    from lf_ray.training.checkpoint.folder import CheckpointState, complete_checkpoints
    from lf_ray.training.checkpoint.manifest import check_identity, differences, read_manifest

    kept = complete_checkpoints(plan.checkpoints)
    if not kept:
        return 0, ["It has no checkpoint yet: it begins at its first step."]
    manifest = read_manifest(kept[-1])
    check_identity(kept[-1], manifest, plan.identity)
    CheckpointState(kept[-1], manifest)
    changed = differences(manifest.versions, plan.versions)
    notes = [f"Other versions than it was saved with ({'; '.join(changed)}): bits may differ."]
    if manifest.step >= plan.num_steps:
        notes.append("It is trained to its end: only export and action error are made again.")
    return manifest.step, notes if changed else notes[1:]


def _notes(config: SweepConfig, weights_id: str, noted: Sequence[str]) -> tuple[str, ...]:
    notes = list(noted)
    if not weights_id:
        notes.append("Random weights (no model.weights): the model learns from nothing.")
    if config.data.source != "lerobot":
        notes.append(f"data={config.data.source}: not a robot's own data (data.path=DIR).")
    return tuple(notes)


def _run(opened: Opened, clock: Clock) -> int:
    from lf_ray.training.actions.export import FINISHERS

    plan = opened.plan
    log_to(plan.folder / "train.log")
    _keep_config(opened)
    sys.stdout.write("\n".join(header(opened)) + "\n")
    sys.stdout.flush()
    mirror = TrainingMirror(plan.config.tracking.uri, plan.folder, clock)
    mirror.begin(as_nested(plan.config), knobs_of(plan.config), tags_of(opened))
    standing = Standing(plan.num_steps, plan.samples_per_step)
    began_s = clock.monotonic_s()
    with (
        StopWish(clock).armed() as wish,
        Progress(f"train {plan.folder.name}", standing, sys.stdout, clock) as progress,
    ):
        bird = CanaryWatch(
            promised(opened.found),
            plan.samples_per_step,
            plan.config.sweep.delta,
            progress.note,
        )

        def watch(lines: Sequence[Line]) -> None:
            progress.take(lines)
            bird.take(lines)
            mirror.take(lines)

        ending = run_on_ray(
            plan, TrainingVisit(plan=plan, finishers=FINISHERS), watch, progress.note, wish
        )
    summary = summary_of(opened, ending, bird.verdict, clock.monotonic_s() - began_s)
    text = json.dumps(plain_json(summary), indent=2, allow_nan=False)
    (plan.folder / SUMMARY_NAME).write_text(f"{text}\n")
    mirror.end(summary["exit_code"], end_tags(summary), [plan.folder / SUMMARY_NAME])
    warnings = mirror.close()
    sys.stdout.write("\n".join(footer(opened, ending, summary, warnings)) + "\n")
    return int(summary["exit_code"])


def _keep_config(opened: Opened) -> None:
    nested = as_nested(opened.plan.config)
    nested["resume"] = None
    if opened.found:
        nested["found"] = dict(opened.found)
    text = yaml.safe_dump(nested, sort_keys=False, allow_unicode=True)
    (opened.plan.folder / CONFIG_NAME).write_text(text, encoding="utf-8")


def _leave_no_empty(folder: Path, config: SweepConfig) -> None:
    if config.resume is None:
        folder.rmdir()


def _check_weights(words: Sequence[str], machine: Machine) -> int:
    from lf_ray.training.actions.weights import check_weights, find_weights
    from lf_ray.training.actions.weights_check import weights_check

    config = compose(NAME, words, machine)
    assert config.model.weights is not None
    place = str(find_weights(config.model.weights).path)
    config = replace(config, model=replace(config.model, weights=place))
    check_weights(config.model)
    _open_data(config)
    verdict = weights_check(config)
    sys.stdout.write(f"{verdict.text}\n")
    return 1 if verdict.suspects else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lf_ray.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=(
            "Length: train.max_steps or train.max_samples. Saving: train.save_every, train.keep. "
            "Loss of a rank: train.max_restarts.\nOverrides are group=option and key=value; README "
            "lists them, lf_ray/settings.py describes each.\nExit codes: 0 trained, 1 failed, 2 "
            "refused before start, 130 interrupted (resume=ID goes on)."
        ),
    )
    parser.add_argument("overrides", nargs="*", help="group=option or key=value")
    parser.add_argument("--config", help="a best.yaml, knee.yaml or config.yaml")
    parser.add_argument(
        "--check-weights", metavar="DIR", help="compare weights with random ones on a batch"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
