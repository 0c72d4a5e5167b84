"""Our step and LoongForge's in one run: the same ranks, batch and data, visits interleaved.

Both sides are the sessions that a sweep would make, and one function visits either. LoongForge's
time is its own `step_time`, which leaves its housekeeping out; the wall clock's stands beside it.
"""

import gc
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from lf_ray.compose import compose
from lf_ray.loongforge.start_check import ready_checkout
from lf_ray.machine import Machine
from lf_ray.measure import between_visits, pooled, ratio, read_visit, throughput
from lf_ray.protocol import Interval, KnobValue, Purpose, TrialRequest
from lf_ray.settings import SweepConfig, knobs_of
from lf_ray.testing.ranks import RankPlace, RankPool
from lf_ray.trial.ranks.contracts import WorkerSession
from lf_ray.trial.workers import LoongForgeFactory, Place, native_session

LOONGFORGE = "loongforge"
# As its own launch script sends: after the graph.
THEIR_KNOBS: Mapping[str, KnobValue] = {"graph.scope": "step", "overlap.ratio": 0.0}
FUSED, COMPILED = ("fused", "compiled", "pipelined"), ("compiled", "pipelined")
SETTLE_STEPS = 2
VISIT_DEADLINE_S = 900.0
_PATH_VARIABLE = "LOONGFORGE_PATH"

Maker = Callable[[Place], WorkerSession]


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of those compared; picklable.

    Attributes:
        name: a mode of ours, or "loongforge".
        knobs: laid over the configuration's own.
    """

    name: str
    config: SweepConfig
    make: Maker
    knobs: Mapping[str, KnobValue]

    def request(self, batch_size: int, comm: str, number: int) -> TrialRequest:
        """Returns what its session is asked for."""
        own = {"batch.per_gpu": batch_size, "overlap.comm_dtype": comm, **self.knobs}
        knobs = {**knobs_of(self.config), **own}
        name = f"{self.name}-{batch_size}-{comm}-{number}"
        return TrialRequest(id=name, knobs=knobs, seed=0, purpose=Purpose.SEARCH)


@dataclass(frozen=True, kw_only=True, slots=True)
class VisitTimes:
    """What one rank saw of one visit."""

    times_s: list[float]
    samples_per_step: int = 0
    loss: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    error: str = ""


def their_side(words: Sequence[str], machine: Machine, folder: Path) -> Side:
    """Returns LoongForge's side.

    Args:
        words: overrides; loongforge.path may stand in LOONGFORGE_PATH instead.
        machine: what there is.
        folder: of its runs.

    Raises:
        ConfigError: a setting is wrong, or LoongForge can't be started with them.
    """
    given = any(word.startswith("loongforge.path=") for word in words)
    path = os.environ.get(_PATH_VARIABLE)
    more = [f"loongforge.path={path}"] if path and not given else []
    begin = [f"{name}={value}" for name, value in THEIR_KNOBS.items()]
    config = compose("bench", ["trainer=loongforge", "model=3b", *begin, *more, *words], machine)
    factory = LoongForgeFactory(
        checkout=ready_checkout(config),
        folder=folder.resolve(),
        base_global_batch=config.batch.per_gpu * config.batch.accumulation * config.num_workers,
    )
    return Side(name=LOONGFORGE, config=config, make=factory, knobs={})


def our_side(
    mode: str, knobs: Mapping[str, KnobValue], words: Sequence[str], machine: Machine
) -> Side:
    """Returns our step in one of its modes, on the data that the words name.

    Raises:
        ConfigError: a setting is wrong.
    """
    own = [word for word in words if not word.startswith("loongforge.")]
    config = compose("bench", own, machine)
    config.measure.gate_steps = 0
    config.model.fused_kernels = mode in FUSED
    config.model.compile_blocks = mode in COMPILED
    return Side(name=mode, config=config, make=native_session, knobs=dict(knobs))


def visit_times(
    place: RankPlace, side: Side, request: TrialRequest, num_steps: int
) -> dict[str, Any]:
    """Makes a session on this rank, times steps of it, and gives everything back."""
    seat = Place(
        config=side.config,
        rank=place.rank,
        world_size=place.world_size,
        device=place.device,
        work_group=place.work_group if place.world_size > 1 else None,
        control_group=place.control_group,
    )
    session = None
    try:
        session = side.make(seat)
        session.prepare(request)
        session.rehearse()
        session.run(SETTLE_STEPS)
        session.capture()
        samples = session.run(num_steps)
        found = VisitTimes(
            times_s=[sample.wall_s for sample in samples],
            samples_per_step=session.samples_per_step,
            loss=samples[-1].loss,
            metrics=dict(session.measure_overlap()) if side.name == LOONGFORGE else {},
        )
    except Exception as error:  # a visit that fails is a row, whatever failed
        found = VisitTimes(times_s=[], error=f"{type(error).__name__}: {error}")
    if session is not None:
        session.close()
    del session
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return asdict(found)


def interleaved(
    sides: Sequence[Side], batch_size: int, comm: str, num_steps: int, num_rounds: int
) -> dict[str, list[list[VisitTimes]]]:
    """Visits the sides in turn, each second round backwards; returns visits by side and rank.

    A rank that fails in a collective leaves the others there, so a round with an error starts its
    ranks anew.
    """
    found: dict[str, list[list[VisitTimes]]] = {side.name: [] for side in sides}
    config = sides[0].config
    backend = "nccl" if config.cluster.device == "cuda" else "gloo"
    pool = RankPool(config.num_workers, backend)
    try:
        for number in range(num_rounds):
            for side in sides if number % 2 == 0 else tuple(reversed(sides)):
                request = side.request(batch_size, comm, number)
                try:
                    raw = pool.run(
                        visit_times, side, request, num_steps, deadline_s=VISIT_DEADLINE_S
                    )
                    ranks = [VisitTimes(**item) for item in raw]
                except Exception as error:  # ranks that hang, or are gone
                    said = str(error).strip() or repr(error)
                    ranks = [VisitTimes(times_s=[], error=said.splitlines()[-1])]
                found[side.name].append(ranks)
                if any(rank.error for rank in ranks):
                    pool.close()
    finally:
        pool.close()
    return found


def compared(
    visits: Mapping[str, Sequence[Sequence[VisitTimes]]], batch_size: int, comm: str
) -> list[dict[str, Any]]:
    """Returns one row a side: step time and throughput pooled over its visits, and the ratio.

    `ratio` is the side's throughput over LoongForge's with its 95 % interval, None where one of the
    two was not measured; its verdict is faster, slower or undetermined.
    """
    readings = {name: [_reading(ranks) for ranks in of] for name, of in visits.items()}
    steps = {
        name: [item for item in of if isinstance(item, Interval)] for name, of in readings.items()
    }
    between = between_visits({name: of for name, of in steps.items() if of})
    means = {name: pooled(of, between[name]) for name, of in steps.items() if of}
    firsts = {name: next(ranks[0] for ranks in visits[name] if ranks[0].times_s) for name in means}
    rates = {name: throughput(mean, firsts[name].samples_per_step) for name, mean in means.items()}
    rows = []
    for name in visits:
        row: dict[str, Any] = {"batch": batch_size, "mode": name, "comm": comm}
        lost = [item for item in readings[name] if isinstance(item, str)]
        row |= {"lost_visits": lost} if lost else {}
        if name not in means:
            rows.append({**row, "error": lost[0] if lost else "not visited"})
            continue
        row |= {
            "step_s": asdict(means[name]),
            "samples_per_s": asdict(rates[name]),
            "loss": firsts[name].loss,
            "metrics": firsts[name].metrics,
        }
        if name != LOONGFORGE:
            row |= _against(rates[name], rates.get(LOONGFORGE))
        rows.append(row)
    return rows


def against_words(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the comparison for people, a line a row."""
    lines = []
    for row in rows:
        head = f"{row['batch']:5} {row['mode']:10} {row['comm']:4}"
        if "error" in row:
            lines.append(f"{head} {row['error']}")
            continue
        rate = row["samples_per_s"]
        words = f"{rate['value']:.1f} samples/s (95 %: {rate['lo']:.1f} to {rate['hi']:.1f}; "
        words += f"{rate['num_visits']} visits, {rate['num_steps']} steps)"
        if row.get("ratio"):
            share = row["ratio"]
            words += f", {share['value']:.3f}x LoongForge (95 %: {share['lo']:.3f} to "
            words += f"{share['hi']:.3f}): {row['verdict']}"
        elif "verdict" in row:
            words += f", against LoongForge {row['verdict']}"
        mismatch = row["metrics"].get("wall_mismatch_frac")
        words += f"; by the wall clock {-mismatch:+.1%}" if mismatch is not None else ""
        lines.append(f"{head} {words}")
        lines += [
            f"{'':5} {'':10} {'':4} a visit was lost: {why}" for why in row.get("lost_visits", ())
        ]
    return lines


def _against(ours: Interval, theirs: Interval | None) -> dict[str, Any]:
    """Returns the ratio of two throughputs; of step times it has no end where one may be 0."""
    if theirs is None:
        return {"ratio": None, "verdict": "undetermined"}
    share = ratio(ours, theirs)
    verdict = "faster" if share.lo > 1 else "slower" if share.hi < 1 else "undetermined"
    return {"ratio": asdict(share), "verdict": verdict}


def _reading(ranks: Sequence[VisitTimes]) -> Interval | str:
    """Returns the slowest rank's mean step, or why there is none."""
    failed = [rank.error for rank in ranks if rank.error]
    if failed:
        return failed[0]
    slowest = max(ranks, key=lambda rank: statistics.fmean(rank.times_s))
    reading = read_visit(slowest.times_s, slowest.samples_per_step)
    return reading.step_s if reading.step_s is not None else reading.error
