"""One search on one table under a simulated clock: ours as in a sweep, a peer as its users run it.

A visit costs what the table says, a searcher's thinking costs the processor time that it takes.
"""

import time
from dataclasses import dataclass, replace

import numpy as np

from lf_ray.bench.contest.ledger import Ledger, Scores
from lf_ray.bench.contest.tables import Group, Ranking, Table
from lf_ray.bench.peers import InOrder, OptunaAlone, Peer, RayOptuna
from lf_ray.clock import FakeClock
from lf_ray.measure import read_visit
from lf_ray.protocol import (
    Budget,
    Knobs,
    KnobValue,
    OutcomeKind,
    Purpose,
    TrialRecord,
    TrialRequest,
)
from lf_ray.search.conductor import Conductor, MemoryLog
from lf_ray.search.plan.decisions import Proposer, Request, rules_of
from lf_ray.search.plan.searching import ARTICLE_SETTING
from lf_ray.search.plan.visits import is_trial
from lf_ray.search.planner import Planner
from lf_ray.search.samplers.plain import proposer_of
from lf_ray.settings import MeasureLevel, MeasureSettings, SamplerKind, SweepConfig, SweepSettings

STANDARD = MeasureSettings(
    level=MeasureLevel.standard,
    target_frac=0.01,
    min_steps=20,
    max_steps=200,
    max_s=120.0,
    winner_steps=200,
)
OWN_STEPS = 50
OWN_SKIPPED = 10
"""A peer's own rule: fifty steps, the mean of the last forty. Peers bring none; this is generous
beside the windows that other tuners use (three steps, or a mean with the capture in it)."""
TRIAL_START_S = 3.1
TRIAL_REUSE_S = 0.21
"""What a Ray Tune trial of a function costs beyond its work, and with actors reused (measured)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contestant:
    """Who searches, and how.

    Attributes:
        searcher: ours | ray | ray_fair | optuna | random | grid.
        warm: one group for all trials; else each trial starts its own.
        our_measuring: stop and read visits by our rules instead of fifty steps.
        start_s: orchestration of each trial.
        suggested: told to try early what the simulated cluster suggests, as sweeps on GPUs are.
    """

    name: str
    searcher: str
    warm: bool = False
    our_measuring: bool = False
    start_s: float = 0.0
    suggested: bool = False


PLAIN_RAY = Contestant(name="ray tune + optuna", searcher="ray", start_s=TRIAL_START_S)
FAIR_RAY = Contestant(
    name="ray tune + optuna, fair", searcher="ray_fair", warm=True, start_s=TRIAL_REUSE_S
)
OURS = Contestant(name="lf-ray", searcher="ours", warm=True, our_measuring=True)
SUGGESTED = Contestant(
    name="lf-ray, with its suggestion",
    searcher="ours",
    warm=True,
    our_measuring=True,
    suggested=True,
)
TOLD = (
    SUGGESTED,
    replace(PLAIN_RAY, name="ray tune + optuna, told the same", suggested=True),
    replace(FAIR_RAY, name="ray tune + optuna, fair, told the same", suggested=True),
)
OTHERS = (
    Contestant(name="optuna alone", searcher="optuna"),
    Contestant(name="random", searcher="random"),
    Contestant(name="grid", searcher="grid"),
)
ABLATIONS = (
    Contestant(
        name="ray tune + optuna, our measuring",
        searcher="ray",
        our_measuring=True,
        start_s=TRIAL_START_S,
    ),
    Contestant(
        name="ray tune + optuna, fair, our measuring",
        searcher="ray_fair",
        warm=True,
        our_measuring=True,
        start_s=TRIAL_REUSE_S,
    ),
    Contestant(name="optuna alone, our measuring", searcher="optuna", our_measuring=True),
    Contestant(name="random, our measuring", searcher="random", our_measuring=True),
    Contestant(
        name="lf-ray, random sampler", searcher="ours_random", warm=True, our_measuring=True
    ),
    Contestant(name="lf-ray, own groups", searcher="ours", our_measuring=True),
    Contestant(name="lf-ray, fifty steps", searcher="ours", warm=True),
)
CONTESTANTS = (OURS, PLAIN_RAY, FAIR_RAY, *TOLD, *OTHERS, *ABLATIONS)


@dataclass(slots=True)
class Track:
    """A clock, a group on it, and the books."""

    table: Table
    ranking: Ranking
    contestant: Contestant
    seed: int
    clock: FakeClock
    ledger: Ledger
    compiled: set[KnobValue]
    group: Group

    @classmethod
    def laid(cls, table: Table, ranking: Ranking, contestant: Contestant, seed: int) -> "Track":
        """Returns a track at its start."""
        clock = FakeClock()
        references = contestant.searcher.startswith("ours")
        compiled: set[KnobValue] = set()
        group = table.group(seed, clock, compiled, with_references=references)
        ledger = Ledger(ranking, table.num_gpus)
        return cls(table, ranking, contestant, seed, clock, ledger, compiled, group)

    def visit(self, request: TrialRequest) -> TrialRecord:
        """Runs a visit as the contestant does."""
        self.clock.sleep(self.contestant.start_s)
        if not self.contestant.warm:
            references = self.contestant.searcher.startswith("ours")
            self.group = self.table.group(
                self.seed, self.clock, self.compiled, with_references=references
            )
        record = self.group.run(request)
        self.ledger.visit(record.outcome)
        return record

    def note(self, recommended: Knobs | None, claimed: float) -> None:
        """Notes where the search stands now."""
        gpu_s = self.clock.monotonic_s() * self.table.num_gpus
        self.ledger.moment(gpu_s, recommended, claimed)


def run_search(
    table: Table, ranking: Ranking, contestant: Contestant, seed: int, max_trials: int
) -> Scores:
    """Returns the scores of one search."""
    track = Track.laid(table, ranking, contestant, seed)
    if contestant.searcher == "ours":
        _run_ours(track, proposer_of(SamplerKind.tpe))
    elif contestant.searcher == "ours_random":
        _run_ours(track, proposer_of(SamplerKind.random))
    else:
        _run_peer(track, _peer_of(track), max_trials)
    return track.ledger.scores()


def first_points(table: Table, *, suggested: bool = False) -> list[dict[str, KnobValue]]:
    """Returns what is tried first: the baseline, the article's setting, what is suggested."""
    space = table.space
    article = {
        name: space.clipped(name, value)
        for name, value in ARTICLE_SETTING.items()
        if name in space.choices
    }
    told = table.suggestion if suggested else None
    return [space.canonical(knobs) for knobs in ({}, article, told) if knobs is not None]


def _run_ours(track: Track, proposer: Proposer) -> None:
    measure = STANDARD
    if not track.contestant.our_measuring:
        measure = MeasureSettings(
            level=MeasureLevel.standard,
            target_frac=1e-9,
            min_steps=OWN_STEPS,
            max_steps=OWN_STEPS,
            max_s=1e9,
            winner_steps=OWN_STEPS,
        )
    config = SweepConfig(measure=measure, sweep=SweepSettings(seed=track.seed))
    suggestion = track.table.suggestion if track.contestant.suggested else None
    enqueued = () if suggestion is None else (suggestion,)
    planner = Planner(track.table.space, rules_of(config, enqueued=enqueued), proposer)
    conductor = Conductor(planner, MemoryLog(track.clock), [], track.clock)
    conductor.begin({"id": "bench", "name": track.table.name})
    while True:
        started_s = time.process_time()
        decision = conductor.next()
        track.clock.sleep(time.process_time() - started_s)
        if not isinstance(decision, Request):
            break
        record = track.visit(decision.request)
        if is_trial(decision.request) or decision.request.replicate_of is None:
            track.ledger.trial(decision.request.knobs, record.outcome)
        started_s = time.process_time()
        conductor.finish(record)
        best = planner.state.best
        track.clock.sleep(time.process_time() - started_s)
        claimed = best.throughput.value if best and best.throughput else 0.0
        track.note(best.knobs if best else None, claimed)


def _run_peer(track: Track, peer: Peer, max_trials: int) -> None:
    best: tuple[float, Knobs | None] = (0.0, None)
    for index in range(max_trials):
        started_s = time.process_time()
        asked = peer.ask()
        track.clock.sleep(time.process_time() - started_s)
        if asked is None:
            break
        knobs = track.table.space.canonical(asked)
        incumbent = best[0] if best[0] > 0 and track.contestant.our_measuring else None
        request = TrialRequest(
            id=f"t{index:03d}",
            knobs=knobs,
            seed=track.seed,
            purpose=Purpose.SEARCH,
            budget=_budget(track.contestant, incumbent),
        )
        record = track.visit(request)
        track.ledger.trial(knobs, record.outcome)
        value = _reading(record, track.contestant)
        peer.tell(value)
        if value is not None and value > best[0]:
            best = (value, knobs)
        track.note(best[1], best[0])


def _peer_of(track: Track) -> Peer:
    space, seed = track.table.space, track.seed
    first = first_points(track.table, suggested=track.contestant.suggested)
    if track.contestant.searcher == "ray":
        return RayOptuna(space, seed, first)
    if track.contestant.searcher == "ray_fair":
        return RayOptuna(space, seed, first, penalty=0.0, ordered=True)
    if track.contestant.searcher == "optuna":
        return OptunaAlone(space, seed, first)
    return InOrder(space, seed, first, shuffled=track.contestant.searcher == "random")


def _budget(contestant: Contestant, incumbent: float | None) -> Budget:
    if not contestant.our_measuring:
        return Budget(min_steps=OWN_STEPS, max_steps=OWN_STEPS, max_s=1e9, target_frac=1e-9)
    return Budget(
        min_steps=STANDARD.min_steps,
        max_steps=STANDARD.max_steps,
        max_s=STANDARD.max_s,
        target_frac=STANDARD.target_frac,
        incumbent_samples_per_s=incumbent,
    )


def _reading(record: TrialRecord, contestant: Contestant) -> float | None:
    """Returns what a peer is told of a trial; None where it raised."""
    if record.outcome.kind is OutcomeKind.INFEASIBLE or record.trace is None:
        return None
    steps_s = np.asarray(record.trace.wall_s)
    if contestant.our_measuring:
        reading = read_visit(steps_s, record.samples_per_step, STANDARD.target_frac)
        if reading.throughput_samples_per_s is not None:
            return reading.throughput_samples_per_s.value
    return float(record.samples_per_step / steps_s[OWN_SKIPPED:].mean())
