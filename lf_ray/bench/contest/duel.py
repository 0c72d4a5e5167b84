"""Two searches of one space on the same workers, and their winners measured in turn.

Ours is the sweep command itself; the other is Ray Tune with OptunaSearch, as one would write it.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lf_ray.analysis.answer import answer_of
from lf_ray.analysis.gain import compared
from lf_ray.analysis.points import Point, gather, knob_key
from lf_ray.bench.contest.plain_tune import (
    bound,
    fit_plain,
    lost,
    plain_ray,
    run_in_turn,
    run_searched,
    trial_name,
)
from lf_ray.bench.contest.race import OWN_SKIPPED, OWN_STEPS
from lf_ray.bench.peers import METRIC, RayOptuna
from lf_ray.errors import LfRayError, four_parts
from lf_ray.measure.interval import ratio
from lf_ray.protocol import Budget, Interval, Knobs, OutcomeKind, Purpose, TrialRecord, TrialRequest
from lf_ray.record.history import read_journal
from lf_ray.search.command import run_sweep
from lf_ray.search.space import Literal, Space
from lf_ray.settings import SweepConfig, knobs_of
from lf_ray.trial.launch import LAUNCH, open_groups

NAME = "live"
_EARLY_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """What a search came to.

    Attributes:
        knobs: all of its winner's.
        claimed_samples_per_s: what it says of it; 0 where none of its trials came to a number.
        num_trials: that were begun.
        num_without: of them, those without a number: failed, out of memory, or out of time.
        wall_s: everything, from the command to its end.
    """

    knobs: Knobs
    claimed_samples_per_s: float
    num_trials: int
    num_without: int
    wall_s: float


def run_ours(literal: Literal, words: Sequence[str], config: SweepConfig) -> Search:
    """Runs the sweep command; it shows itself and leaves its folder like any sweep.

    Raises:
        LfRayError: it came to no answer.
    """
    root = Path(config.output.dir) / NAME
    before = set(root.glob("*/journal.jsonl"))
    began_s = time.monotonic()
    code = run_sweep(NAME, literal, words, LAUNCH, about=__doc__ or "")
    wall_s = time.monotonic() - began_s
    journals = sorted(set(root.glob("*/journal.jsonl")) - before)
    if code or not journals:
        raise LfRayError(
            four_parts(
                "comparing with a plain Ray Tune sweep",
                "our own sweep ends with an answer",
                f"exit code {code}",
                "See what it said above.",
            )
        )
    answer = answer_of(read_journal(journals[-1]))
    best = answer.winner or answer.baseline
    assert best is not None
    assert best.throughput is not None
    num_trials = sum(answer.outcomes.values())
    return Search(
        knobs=best.knobs,
        claimed_samples_per_s=best.throughput.value,
        num_trials=num_trials,
        num_without=num_trials - answer.outcomes.get(OutcomeKind.COMPLETED, 0),
        wall_s=wall_s,
    )


def run_plain(config: SweepConfig, space: Space, folder: Path, limit_s: float) -> Search:
    """Runs a plain Ray Tune sweep for so many seconds, the start of Ray included.

    It begins with the baseline, and pays for no numerics gate. A trial that has not ended by then
    has no number.

    Raises:
        LfRayError: it was ended before its time.
    """
    measure = replace(config.measure, gate_steps=0)
    config = replace(config, measure=measure)
    began_s = time.monotonic()
    peer = RayOptuna(space, config.sweep.seed, [space.baseline])
    with plain_ray(config, folder / "ray"):
        results = run_searched(
            bound(_plain_trial, config, folder),
            peer.searcher,
            folder / "tune",
            limit_s - (time.monotonic() - began_s),
        )
        wall_s = time.monotonic() - began_s
    if wall_s < limit_s - _EARLY_S:
        raise lost(f"the plain sweep runs for {limit_s:.0f} s", f"an end after {wall_s:.0f} s")
    return best_plain(results, space, wall_s)


def best_plain(
    results: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], space: Space, wall_s: float
) -> Search:
    """Returns the fastest of what plain trials reported, the baseline where none did."""
    rated = [
        (float(metrics[METRIC]), proposal) for proposal, metrics in results if METRIC in metrics
    ]
    claimed, proposal = max(rated, key=lambda item: item[0], default=(0.0, {}))
    return Search(
        knobs=space.canonical(dict(proposal)),
        claimed_samples_per_s=claimed,
        num_trials=len(results),
        num_without=len(results) - len(rated),
        wall_s=wall_s,
    )


def _plain_trial(proposal: dict[str, Any], config: SweepConfig, folder: Path) -> None:
    """The Tune function that one would write: a trainer of its own, the mean of forty steps."""
    request = TrialRequest(
        id=trial_name(),
        knobs={**knobs_of(config), **proposal},
        seed=config.sweep.seed,
        purpose=Purpose.SEARCH,
        budget=Budget(min_steps=OWN_STEPS - OWN_SKIPPED, max_steps=OWN_STEPS - OWN_SKIPPED),
    )
    fit_plain(config, folder, request, warm_steps=OWN_SKIPPED)


def in_turn(config: SweepConfig, sides: Sequence[Knobs], num_visits: int) -> list[TrialRequest]:
    """Returns the visits of all sides, to and fro, so that drift hits all alike."""
    measure = config.measure
    budget = Budget(
        min_steps=measure.min_steps,
        max_steps=measure.max_steps,
        max_s=measure.max_s,
        target_frac=1e-9,
    )
    order = range(len(sides))
    turns = [
        (turn, index)
        for turn in range(num_visits)
        for index in (order if turn % 2 == 0 else reversed(order))
    ]
    return [
        TrialRequest(
            id=f"t{index:03d}" if turn == 0 else f"t{index:03d}r{turn}",
            knobs=dict(sides[index]),
            seed=config.sweep.seed,
            purpose=Purpose.BASELINE if index == 0 else Purpose.SEARCH,
            replicate_of=None if turn == 0 else f"t{index:03d}",
            budget=budget,
        )
        for turn, index in turns
    ]


def confirm(
    config: SweepConfig, searches: Sequence[Search], folder: Path, num_visits: int
) -> tuple[list[TrialRecord], int]:
    """Visits baseline and winners in turn on one warm group, equal ones once.

    Returns the visits that came back, and how many were asked for: fewer come back after Ctrl-C.
    """
    sides: list[Knobs] = [knobs_of(config), *(item.knobs for item in searches)]
    unique = [knobs for index, knobs in enumerate(sides) if knobs not in sides[:index]]
    with open_groups(config, folder) as groups:
        asked = in_turn(config, unique, num_visits)
        results = run_in_turn(groups.trainable, asked, folder / "turns")
    return returned(results), len(asked)


def returned(results: Sequence[Mapping[str, Any]]) -> list[TrialRecord]:
    """Returns the records in Tune's results, in the order of their visits; some may have none."""
    records = [
        TrialRecord.from_json(json.loads(item["record"])) for item in results if "record" in item
    ]
    return sorted(records, key=lambda record: record.clock_s.get("requested", 0.0))


def judged(
    ours: Search, plain: Search, records: Sequence[TrialRecord], num_workers: int
) -> dict[str, Any]:
    """Returns what the comparison says, as JSON values.

    `ratio` is ours over plain, both as measured in turn; None where one of them did not settle,
    or both are the same setting.
    """
    points = gather(records).points
    found = {point.key: point for point in points}
    baseline = points[0]
    both = [found.get(knob_key(item.knobs)) for item in (ours, plain)]
    between = against(both[0], both[1])
    if both[0] is not None and both[0] is both[1]:
        verdict = "the same setting"
    elif between is None:
        without = [point for point in (*both, baseline) if point and not point.throughput]
        reason = without[0].outcome.reason if without else "one was not measured"
        verdict = f"undetermined: {reason}"
    elif between.lo > 1:
        verdict = "faster"
    else:
        verdict = "slower" if between.hi < 1 else "undetermined"
    rows = {}
    for name, search, point in zip(("ours", "plain"), (ours, plain), both, strict=True):
        rows[name] = {
            "knobs": {
                knob: value
                for knob, value in search.knobs.items()
                if value != baseline.knobs.get(knob)
            },
            "claimed_samples_per_s": search.claimed_samples_per_s,
            "samples_per_s": _wire(point.throughput if point else None),
            "visits_samples_per_s": [
                visit.throughput.value for visit in (point.visits if point else ())
            ],
            "over_baseline": _wire(against(point, baseline)),
            "trials": search.num_trials,
            "without_number": search.num_without,
            "worker_s": search.wall_s * num_workers,
        }
    return {
        "baseline_samples_per_s": _wire(baseline.throughput),
        **rows,
        "ratio": _wire(between),
        "verdict": verdict,
    }


def against(point: Point | None, other: Point | None) -> Interval | None:
    """Returns the ratio of two points; None where one has no number, or both are the same."""
    if point is None or other is None or point is other:
        return None
    if point.throughput is None or other.throughput is None:
        return None
    return ratio(*compared(point, other))


def table(said: Mapping[str, Any]) -> str:
    """Returns the comparison for eyes."""
    lines = [
        f"{'':10}{'trials':>8}{'lost':>8}{'worker-s':>10}{'claimed':>10}"
        f"{'measured in turn':>26}{'over baseline':>24}"
    ]
    base = said["baseline_samples_per_s"]
    lines.append(f"{'baseline':10}{'':36}{_words(base, '.0f'):>26}")
    for name in ("ours", "plain"):
        row = said[name]
        lines.append(
            f"{name:10}{row['trials']:8d}{row['without_number']:8d}{row['worker_s']:10.0f}"
            f"{row['claimed_samples_per_s']:10.0f}{_words(row['samples_per_s'], '.0f'):>26}"
            f"{_words(row['over_baseline'], '.3f'):>24}"
        )
    for name in ("ours", "plain"):
        knobs = ", ".join(f"{knob}={value}" for knob, value in said[name]["knobs"].items())
        lines.append(f"{name}: {knobs or 'the baseline'}")
    lines.append(f"ours over plain: {_words(said['ratio'], '.3f')}, {said['verdict']}")
    return "\n".join(lines)


def _words(values: Mapping[str, Any] | None, form: str) -> str:
    if values is None:
        return "-"
    return f"{values['value']:{form}} [{values['lo']:{form}}, {values['hi']:{form}}]"


def _wire(interval: Interval | None) -> dict[str, Any] | None:
    return interval.to_json() if interval else None
