"""`python sweeps/NAME.py`: from the command line to the answer and the exit code.

One order for every sweep: settings, what can be refused, data, journal, groups, search, answer.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from lf_ray.analysis.answer import Answer
from lf_ray.analysis.report.feeding import feeding_settings, is_feeding
from lf_ray.analysis.report.folder import write_result
from lf_ray.analysis.report.words import sentences
from lf_ray.clock import Clock, FakeClock, SystemClock
from lf_ray.compose import as_nested, compose, from_nested
from lf_ray.errors import ConfigError, LfRayError, four_parts
from lf_ray.launch import Launch
from lf_ray.loongforge.knob_map import offered
from lf_ray.machine import Machine, detect, gpus_usable
from lf_ray.record.events import JournalEvent
from lf_ray.record.journal import Journal, read_journal
from lf_ray.record.mlflow_sink import MlflowSink, check_uri
from lf_ray.record.result_folder import log_to, new_folder
from lf_ray.search.conductor import (
    INTERRUPTED,
    Conductor,
    Observer,
    SweepPlanner,
    run_in_process,
)
from lf_ray.search.display import Display
from lf_ray.search.plan.decisions import Rules, Stop, rules_of
from lf_ray.search.planner import Planner
from lf_ray.search.samplers.optuna_study import StudyFile
from lf_ray.search.samplers.plain import proposer_of
from lf_ray.search.space import Literal, Space, space_from_literal
from lf_ray.search.stages.stage import (
    Stage,
    Stages,
    searches_in,
    shareable,
    stages_of,
    whole_space,
)
from lf_ray.search.stages.staged_planner import StagedPlanner
from lf_ray.search.start.lineage import resume_changes, source_hash
from lf_ray.search.start.preflight import check_folder, check_machine, describe_versions
from lf_ray.search.start.prior import prior_of
from lf_ray.search.sweep import Interruption, run_on_tune
from lf_ray.settings import SweepConfig, Trainer, knobs_of
from lf_ray.testing.sim.cluster import SimulatedCluster

EXIT_REFUSED = 2
MakePlanner = Callable[[Space, Rules], SweepPlanner]


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A sweep whose journal is open.

    Attributes:
        header: the payload of the journal's first event.
        events: those of the sweep that is resumed; empty for a new one.
        clock: the machine's, or the simulated cluster's.
        searches: what the stages of a sweep in stages vary; empty for any other.
    """

    config: SweepConfig
    space: Space
    folder: Path
    journal: Journal
    header: Mapping[str, Any]
    events: tuple[JournalEvent, ...]
    clock: Clock
    searches: Stages


def run_sweep(  # noqa: PLR0913 - the one entrance for scripts, benchmarks and tests
    name: str,
    literal: Literal | Stages,
    argv: Sequence[str],
    launch: Launch,
    *,
    about: str = "",
    machine: Machine | None = None,
    clock: Clock | None = None,
    make_planner: MakePlanner | None = None,
) -> int:
    """Runs a sweep from its command line to its answer, and returns the exit code.

    Args:
        name: of the sweep: its result folder's and MLflow experiment's.
        literal: what varies; for a sweep in stages, what varies in each of them, in order.
        argv: overrides, without the program's name.
        launch: where trials run and what they train on.
        about: the script's own words, for --help.
        machine: what there is; detected when None.
        clock: dates and durations; the machine's own when None.
        make_planner: what says what comes next; None takes search itself, or that of stages.
    """
    if any(word in ("-h", "--help") for word in argv):
        _print_help(name, about)
        return 0
    machine = machine or detect()
    with ExitStack() as stack:
        try:
            opened = _open(name, literal, argv, launch, machine, clock)
        except LfRayError as error:
            sys.stderr.write(f"{error}\n")
            return EXIT_REFUSED
        stack.enter_context(opened.journal)
        try:
            return _run(opened, launch, make_planner)
        except LfRayError as error:
            sys.stderr.write(f"{error}\n")
            return 1


def _open(
    name: str,
    literal: Literal | Stages,
    argv: Sequence[str],
    launch: Launch,
    machine: Machine,
    clock: Clock | None,
) -> Opened:
    config = compose(name, argv, machine)
    clock = clock or _clock_of(config)
    check_uri(config.tracking.uri)
    check_machine(config, machine, gpus_usable)
    literal = shareable(literal, config.num_workers)
    searches = searches_in(literal)
    space = _space(literal, searches, config)
    output = check_folder(config.output.dir, "output.dir")
    data_id = "simulated" if is_simulated(config) else launch.prepare_data(config)
    header = _header(config, space, machine, data_id)
    if config.resume is not None:
        found = output / name / config.resume
        return replace(_resumed(config, space, found, header, clock), searches=searches)
    folder = new_folder(output / name, clock)
    header["id"] = folder.name
    journal = Journal(folder / "journal.jsonl", clock)
    return Opened(
        config=config,
        space=space,
        folder=folder,
        journal=journal,
        header=header,
        events=(),
        clock=clock,
        searches=searches,
    )


def _space(literal: Literal | Stages, searches: Stages, config: SweepConfig) -> Space:
    """Returns the checked space, without what the trainer, or this machine's stages, don't have."""
    varied = whole_space(searches) if searches else cast(Literal, literal)
    space = space_from_literal(varied, knobs_of(config))
    if config.trainer is Trainer.loongforge:
        space = space_from_literal(offered(varied, knobs_of(config)), knobs_of(config))
    if searches:
        # Refuses a number of trials that the stages can't share.
        _stages(space, searches, config, rules_of(config))
    return space


def _stages(space: Space, searches: Stages, config: SweepConfig, rules: Rules) -> list[Stage]:
    return stages_of(searches, config, rules, space.baseline)


def is_simulated(config: SweepConfig) -> bool:
    """Returns whether trials run on a model of a cluster instead of on workers."""
    return config.cluster.kind.startswith("sim_")


def _clock_of(config: SweepConfig) -> Clock:
    """Returns the machine's clock, or one that a simulated cluster moves on."""
    machine = SystemClock()
    return FakeClock(epoch_s=machine.wall_s()) if is_simulated(config) else machine


def _run(opened: Opened, launch: Launch, make_planner: MakePlanner | None) -> int:
    log_to(opened.folder / "sweep.log")
    config = opened.config
    display = Display(sys.stdout, opened.clock)
    sink = MlflowSink(config.tracking.uri, opened.folder)
    observers: list[Observer] = [StudyFile(opened.folder / "study.db", opened.space), sink, display]
    left_over: list[str] = []
    answer = None
    with Interruption().armed() as interruption, ExitStack() as screen:
        screen.enter_context(display)

        def end_now(stop: Stop) -> None:
            """Ends the sweep beside a thread that Ray holds; the keeper ends what Ray left."""
            try:
                said = _answer(opened, sink)
                screen.close()
                _print_end(opened, stop, said, sink, left_over)
            except LfRayError as error:
                sys.stderr.write(f"{error}\n")
            interruption.end_process(stop.exit_code)

        if is_simulated(config):
            stop = _simulate(opened, observers, make_planner)
        else:
            with launch.open_groups(config, opened.folder) as groups:
                left_over = groups.left_over
                stop = run_on_tune(
                    conductor_of(opened, observers, groups.num_groups, make_planner),
                    groups.trainable,
                    opened.folder,
                    num_groups=groups.num_groups,
                    resources=groups.resources,
                    interruption=interruption,
                    gone=groups.gone,
                    when_stuck=end_now,
                )
                if stop.exit_code == INTERRUPTED:
                    # Before the groups are closed: where Ray has ended too, there is little time
                    # until its code ends this process.
                    answer = _answer(opened, sink)
    answer = answer or _answer(opened, sink)
    _print_end(opened, stop, answer, sink, left_over)
    return interruption.end_process(stop.exit_code or answer.exit_code)


def conductor_of(
    opened: Opened,
    observers: Sequence[Observer],
    num_groups: int,
    make_planner: MakePlanner | None = None,
) -> Conductor:
    """Returns the sweep's one path of events, begun."""
    config = opened.config
    # Whoever does not search has no use for a suggestion.
    searching = make_planner is None
    prior = prior_of(config, opened.space, opened.header["machine"]["gpus"]) if searching else None
    enqueued = (prior.knobs,) if prior else ()
    rules = rules_of(config, num_groups=num_groups, enqueued=enqueued)
    proposer = proposer_of(config.sweep.sampler)
    planner: SweepPlanner
    if make_planner is not None:
        planner = make_planner(opened.space, rules)
    elif not opened.searches:
        planner = Planner(opened.space, rules, proposer)
    else:
        # Each stage tries its own knobs of what is suggested, from where it begins.
        stages = _stages(opened.space, opened.searches, config, rules)
        planner = StagedPlanner(opened.space, stages, rules, proposer, config.num_workers)
    conductor = Conductor(planner, opened.journal, observers, opened.clock)
    conductor.begin(opened.header, opened.events)
    if prior and not opened.events:
        conductor.note(prior.words)
    return conductor


def _simulate(
    opened: Opened, observers: Sequence[Observer], make_planner: MakePlanner | None
) -> Stop:
    """Runs the sweep on a model of the cluster, whose clock is the sweep's."""
    assert isinstance(opened.clock, FakeClock)
    cluster = SimulatedCluster(opened.config.cluster.kind, opened.config.sweep.seed, opened.clock)
    return run_in_process(conductor_of(opened, observers, 1, make_planner), cluster.run)


def _answer(opened: Opened, sink: MlflowSink) -> Answer:
    history = read_journal(opened.journal.path)
    answer = write_result(opened.folder, history, mlflow=sink.names())
    sink.add_result(answer, opened.folder)
    sink.close()
    return answer


def _header(config: SweepConfig, space: Space, machine: Machine, data_id: str) -> dict[str, Any]:
    return {
        "id": "",
        "name": config.name,
        "config": as_nested(config),
        "space": space.to_plain(),
        "space_hash": space.fingerprint,
        "baseline_knobs": dict(space.baseline),
        "machine": {
            "label": config.cluster.kind if is_simulated(config) else machine.label,
            "gpus": list(machine.gpus),
            "num_cores": machine.num_cores,
            "memory_bytes": machine.memory_bytes,
            "driver": machine.driver,
        },
        "versions": {**describe_versions(), "source": source_hash()},
        "data_id": data_id,
        "seed": config.sweep.seed,
    }


def _resumed(
    config: SweepConfig, space: Space, folder: Path, header: dict[str, Any], clock: Clock
) -> Opened:
    path = folder / "journal.jsonl"
    if not path.is_file():
        known = sorted(item.parent.name for item in folder.parent.glob("*/journal.jsonl"))
        raise ConfigError(
            four_parts(
                "resuming a sweep",
                f"resume=ID names a folder in {folder.parent}",
                str(config.resume),
                f"There are: {', '.join(known[-5:]) or 'none'}.",
            )
        )
    history = read_journal(path)
    changes = resume_changes(history, header, space)
    if changes and not config.sweep.new_lineage:
        raise ConfigError(
            four_parts(
                f"resuming sweep {config.resume}",
                "space, model, data and code must be those that it began with",
                "; ".join(changes),
                "Start a new sweep, or give sweep.new_lineage=true to go on as a new one.",
            )
        )
    if changes:
        return _lineage(config, space, folder, header, changes, clock)
    return Opened(
        config=_continued(from_nested(dict(history.header.config)), config),
        space=space,
        folder=folder,
        journal=Journal(path, clock),
        header={**header, "id": folder.name, "config": history.header.config},
        events=history.events,
        clock=clock,
        searches={},
    )


def _continued(began: SweepConfig, now: SweepConfig) -> SweepConfig:
    """Returns what a sweep began with, with what may change when it goes on."""
    sweep = replace(
        began.sweep,
        trials=now.sweep.trials or began.sweep.trials,
        minutes=now.sweep.minutes or began.sweep.minutes,
    )
    return replace(
        began,
        sweep=sweep,
        output=now.output,
        tracking=now.tracking,
        resume=now.resume,
    )


def _lineage(
    config: SweepConfig,
    space: Space,
    folder: Path,
    header: dict[str, Any],
    changes: Sequence[str],
    clock: Clock,
) -> Opened:
    """Returns a new sweep that says which one it follows."""
    new = new_folder(folder.parent, clock)
    sys.stdout.write(f"A new sweep, {new.name}, follows {folder.name}: {'; '.join(changes)}\n")
    return Opened(
        config=config,
        space=space,
        folder=new,
        journal=Journal(new / "journal.jsonl", clock),
        header={**header, "id": new.name},
        events=(),
        clock=clock,
        searches={},
    )


def _print_end(
    opened: Opened, stop: Stop, answer: Answer, sink: MlflowSink, left_over: Sequence[str]
) -> None:
    lines = ["", *sentences(answer), ""]
    lines.append(f"Stopped because: {stop.reason}.")
    lines += [f"Had to be ended by force: {item}" for item in left_over]
    lines += [f"MLflow: {item}" for item in sink.warnings()]
    report = opened.folder / "report.html"
    lines.append(f"Report:  {report}")
    lines.append(f"Compare: mlflow ui --backend-store-uri {opened.config.tracking.uri}")
    lines.append(f"Next:    {_next_command(opened, answer)}")
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def _next_command(opened: Opened, answer: Answer) -> str:
    if is_feeding(answer):
        return f"python sweeps/overlap.py {feeding_settings(answer)} (lf_ray.train takes them too)"
    return f"python -m lf_ray.train --config {opened.folder / 'best.yaml'}"


_EXAMPLE = "model=nano sweep.trials=12 sweep.seed=1"
_EXAMPLES = {
    "baseline": "model=nano measure=standard overlap.bucket_size_mb=50",
    "data": "data.path=DIR data.embodiment=TAG",
}


def _print_help(name: str, about: str) -> None:
    parser = argparse.ArgumentParser(
        prog=f"python sweeps/{name}.py",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=(
            f"example: python sweeps/{name}.py {_EXAMPLES.get(name, _EXAMPLE)}\n"
            "Overrides are group=option and key=value; README lists them, "
            "lf_ray/settings.py describes each."
        ),
    )
    parser.add_argument("overrides", nargs="*", help="group=option or key=value")
    parser.add_argument("--config", help="a best.yaml to start the baseline from")
    parser.print_help()
