"""What a sweep in stages is made of, and which of its stages say nothing on a machine.

Pure. A sweep script names its stages and what varies in each; the closing ones follow from that.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from lf_ray.errors import ConfigError, four_parts
from lf_ray.loongforge.knob_map import offered
from lf_ray.protocol import Knobs
from lf_ray.search.plan.decisions import Rules
from lf_ray.search.space import Literal
from lf_ray.settings import SHARING_RANKS, LrRule, MeasureLevel, SweepConfig, Switch, Trainer

Stages = Mapping[str, Literal]
TOGETHER, LEARNING = "together", "learning"
# Visits of each side where all winners are compared: at least, at most.
_SIDES = {
    MeasureLevel.smoke: (3, 6),
    MeasureLevel.standard: (4, 8),
    MeasureLevel.publish: (6, 12),
}
_SMOKE_TRIALS = 8
_SMOKE_STAGE_S = 75.0
_SEARCH_SHARE = 0.75
_NO_TIME = (
    "measure=smoke has no time for training runs after four searches: python sweeps/batch_lr.py "
    "makes them"
)


class StageKind(StrEnum):
    """What a stage does: search a space, compare winners side by side, train to compare losses."""

    SEARCH = "search"
    TOGETHER = "together"
    LEARNING = "learning"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One stage.

    Attributes:
        literal: what varies in it.
        dead: why nothing in it can matter on this machine; "" where it can.
        rules: that it goes by.
        with_noise: its first visits take the gradient noise.
        visits: of each side that is compared, at least and at most.
        lr_rules: that are compared at equal samples.
    """

    name: str
    kind: StageKind
    literal: Literal
    rules: Rules
    dead: str = ""
    with_noise: bool = False
    visits: tuple[int, int] = (3, 6)
    lr_rules: tuple[str, ...] = ()


def searches_in(literal: Literal | Stages) -> Stages:
    """Returns the stages of a sweep script's literal; empty where it is a single space."""
    return {name: item for name, item in literal.items() if isinstance(item, Mapping)}


def shareable(literal: Literal | Stages, num_workers: int) -> Literal | Stages:
    """Returns the literal without an update that this number of workers can't share."""
    if num_workers in SHARING_RANKS:
        return literal
    kept: dict[str, Any] = {
        name: shareable(item, num_workers) if isinstance(item, Mapping) else item
        for name, item in literal.items()
    }
    return {**kept, **({"update.sharded": [Switch.off.value]} if "update.sharded" in kept else {})}


def whole_space(searches: Stages) -> Literal:
    """Returns everything that varies in any stage."""
    return {knob: values for literal in searches.values() for knob, values in literal.items()}


def stages_of(searches: Stages, config: SweepConfig, rules: Rules, baseline: Knobs) -> list[Stage]:
    """Returns the stages of a sweep, the closing ones among them.

    More than one search is followed by all winners side by side. A search over batches takes the
    gradient noise and is followed by training runs; `batch.lr_rule` is compared in those, because
    it changes no step's time.

    Raises:
        ConfigError: sweep.trials leaves a stage without a suggestion.
    """
    dead = {name: dead_reason(literal, config, baseline) for name, literal in searches.items()}
    live = [name for name in searches if not dead[name]]
    trials = _shared_out(rules.trials, {name: _num_points(searches[name]) for name in live})
    stages = []
    for name, literal in searches.items():
        timed = {knob: values for knob, values in literal.items() if knob != "batch.lr_rule"}
        stages.append(
            Stage(
                name=name,
                kind=StageKind.SEARCH,
                literal=timed if dead[name] else _offered(timed, config, baseline),
                dead=dead[name],
                rules=_search_rules(rules, trials.get(name), timed, len(live), config),
                with_noise=_varies_batch(timed),
            )
        )
    if len(searches) > 1:
        stages.append(_closing(TOGETHER, StageKind.TOGETHER, rules, config))
    if any(_varies_batch(literal) for literal in searches.values()):
        stages.append(_closing(LEARNING, StageKind.LEARNING, rules, config, _lr_rules(searches)))
        if len(searches) > 1 and config.measure.level is MeasureLevel.smoke:
            stages[-1] = replace(stages[-1], dead=_NO_TIME)
    return stages


def dead_reason(literal: Literal, config: SweepConfig, baseline: Knobs) -> str:
    """Returns why no knob of a stage can change a step on this machine, "" where one can."""
    groups = {name.split(".")[0] for name in literal}
    simulated = config.cluster.kind.startswith("sim_")
    if config.cluster.device == "cpu" and not simulated:
        if groups == {"memory"}:
            return "on a CPU there is no device allocator to choose, so every backend is the same"
        if groups <= {"graph", "pipeline"}:
            return (
                "without a GPU nothing is captured (graph=emulated): scopes differ in the order "
                "of the same work alone"
            )
    if config.num_workers < 2 and groups <= {"overlap", "pipeline", "update"} and not simulated:
        return "one worker has nobody to exchange gradients with"
    if config.trainer is Trainer.loongforge:
        try:
            offered(literal, baseline)
        except ConfigError:
            return "LoongForge has none of its knobs, or one value of each"
    return ""


def _offered(literal: Literal, config: SweepConfig, baseline: Knobs) -> Literal:
    return offered(literal, baseline) if config.trainer is Trainer.loongforge else literal


def _varies_batch(literal: Literal) -> bool:
    return any(name in ("batch.per_gpu", "batch.accumulation") for name in literal)


def _lr_rules(searches: Stages) -> tuple[str, ...]:
    listed = [rule for item in searches.values() for rule in item.get("batch.lr_rule", ())]  # type: ignore[union-attr]
    return tuple(str(rule) for rule in listed) or (LrRule.linear.value,)


def _num_points(literal: Literal) -> float:
    """Returns how many points a stage has at most; infinite where a rule says."""
    sizes = [
        len(values) if isinstance(values, Sequence) else math.inf for values in literal.values()
    ]
    return math.prod(sizes)


def _shared_out(trials: int | None, live: Mapping[str, float]) -> dict[str, int]:
    """Returns each live stage's share of `sweep.trials`, empty where none are given.

    Evenly, but none gets more than it has points.
    """
    if trials is None or not live:
        return {}
    if trials < 2 * len(live):
        raise ConfigError(
            four_parts(
                "sharing out sweep.trials over the stages",
                f"each of {', '.join(live)} takes two at least: where it starts, and one other",
                f"sweep.trials={trials}",
                f"Give sweep.trials={2 * len(live)} or more.",
            )
        )
    shares = dict.fromkeys(live, 2)
    while sum(shares.values()) < trials:
        open_stages = [name for name in live if shares[name] < live[name]] or [[*live][-1]]
        shares[min(open_stages, key=lambda name: shares[name])] += 1
    return shares


def _search_rules(
    rules: Rules, trials: int | None, literal: Literal, num_live: int, config: SweepConfig
) -> Rules:
    smoke = config.measure.level is MeasureLevel.smoke
    several = num_live > 1
    if trials is None and smoke and several:
        trials = _SMOKE_TRIALS
    minutes = rules.minutes * _SEARCH_SHARE / max(1, num_live) if rules.minutes else None
    known = [
        {name: value for name, value in point.items() if name in literal}
        for point in rules.enqueued
    ]
    return replace(
        rules,
        trials=trials,
        minutes=minutes,
        soft_s=_SMOKE_STAGE_S if smoke and several and minutes is None else rules.soft_s,
        enqueued=tuple(point for point in known if point),
    )


def _closing(
    name: str,
    kind: StageKind,
    rules: Rules,
    config: SweepConfig,
    lr_rules: tuple[str, ...] = (),
) -> Stage:
    smoke = config.measure.level is MeasureLevel.smoke
    return Stage(
        name=name,
        kind=kind,
        literal={},
        rules=replace(rules, trials=None, soft_s=_SMOKE_STAGE_S if smoke else None, enqueued=()),
        visits=_SIDES[config.measure.level],
        lr_rules=lr_rules,
    )
