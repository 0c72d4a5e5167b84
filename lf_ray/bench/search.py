"""`python -m lf_ray.bench search`: GPU-seconds until an answer is right, ours and others'.

    python -m lf_ray.bench search                               one simulated cluster, all searchers
    python -m lf_ray.bench search --tables outputs/*/*/journal.jsonl --seeds 8     your own sweeps

Every searcher starts with the same two points (baseline, article's setting) on the same tables,
under a simulated clock that charges start-up, compilation, capture, failures and thinking. The
ratios are of searchers that are told nothing else. On a recorded table of GPUs that a simulated
cluster is there for, there are rows for ours as sweeps on GPUs run it, told early what that cluster
finds best, and for the others told the same. A table of figures, then one line of JSON.
"""

import argparse
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from lf_ray.bench.arguments import json_line, whole
from lf_ray.bench.contest.frozen import frozen_names, frozen_path
from lf_ray.bench.contest.ledger import Scores
from lf_ray.bench.contest.race import (
    ABLATIONS,
    FAIR_RAY,
    OTHERS,
    OURS,
    PLAIN_RAY,
    SUGGESTED,
    TOLD,
    Contestant,
    run_search,
)
from lf_ray.bench.contest.standings import Summary, cost_ratio, p_score, regret_curve, short
from lf_ray.bench.contest.tables import SPACES, Ranking, SimTable, Table
from lf_ray.bench.replay import replay_table
from lf_ray.errors import LfRayError

DEFAULT_TABLES = ("sim_8xa100", "sim_8xh200", "sim_2xh200_slow")
SAYS_LITTLE_FRAC = 0.1
_CURVE_POINTS = 12


@lru_cache(maxsize=8)
def ground(name: str) -> tuple[Table, Ranking]:
    """Returns a table by name, or by the path of a journal, with its ranking."""
    if name in SPACES:
        table: Table = SimTable(name)
    else:
        table = replay_table(frozen_path(name) if name in frozen_names() else Path(name))
    return table, Ranking(table)


def play(task: tuple[str, Contestant, int, int]) -> tuple[str, str, Scores]:
    """Returns the scores of one search, with the names of table and contestant."""
    name, contestant, seed, max_trials = task
    table, ranking = ground(name)
    return name, contestant.name, run_search(table, ranking, contestant, seed, max_trials)


def tasks_of(options: argparse.Namespace) -> list[tuple[str, Contestant, int, int]]:
    """Returns all searches: those that are compared everywhere, the rest on one table."""
    tasks = []
    for place, name in enumerate(options.tables):
        contestants = [OURS, PLAIN_RAY, FAIR_RAY]
        contestants += TOLD if ground(name)[0].suggestion is not None else []
        if options.all or place == 0:
            contestants += [*OTHERS, *ABLATIONS]
        tasks += [
            (name, contestant, seed, options.trials)
            for contestant in contestants
            for seed in range(options.seeds)
        ]
    return tasks


def summaries_of(
    played: Iterable[tuple[str, str, Scores]],
) -> dict[str, dict[str, Summary]]:
    """Returns summaries by table and contestant."""
    grouped: dict[str, dict[str, list[Scores]]] = {}
    for name, contestant, scores in played:
        grouped.setdefault(name, {}).setdefault(contestant, []).append(scores)
    return {
        name: {who: Summary(who, tuple(scores)) for who, scores in by_name.items()}
        for name, by_name in grouped.items()
    }


def report(summaries: Mapping[str, Mapping[str, Summary]]) -> dict[str, object]:
    """Returns everything as one JSON value."""
    tables: dict[str, object] = {}
    plain, fair, repeats = [], [], 0
    for name, by_name in summaries.items():
        table, ranking = ground(name)
        ours = by_name[OURS.name]
        ratios = _ratios(OURS, by_name)
        plain.append(ratios[PLAIN_RAY.name][0])
        fair.append(ratios[FAIR_RAY.name][0])
        repeats += sum(score.num_repeat_oom for score in ours.scores)
        top = max(score.gpu_s_total for score in ours.scores)
        grid = [float(item) for item in np.geomspace(top / 50, top, _CURVE_POINTS)]
        curves = {who: regret_curve(summary.scores, grid) for who, summary in by_name.items()}
        tables[table.name] = {
            "points": ranking.num_points,
            "within_2pct_frac": short(ranking.near_frac),
            "says_little": ranking.near_frac > SAYS_LITTLE_FRAC,
            "oom_frac": short(ranking.oom_frac),
            "recorded_frac": short(table.recorded_frac),
            "contestants": {who: summary.to_json() for who, summary in by_name.items()},
            "ratio_of_ours_to": ratios,
            "ratio_of_suggested_to": _ratios(SUGGESTED, by_name),
            "curve_gpu_s": [short(item) for item in grid],
            "curve_regret_frac": {
                who: [short(item) for item in curve] for who, curve in curves.items()
            },
            "p_score": {
                who: short(p_score(curve, curves["random"])) for who, curve in curves.items()
            }
            if "random" in curves
            else {},
        }
    return {
        "bench": "search",
        "ratio_to_ray_tune": short(statistics.geometric_mean(plain)),
        "ratio_to_ray_tune_fair": short(statistics.geometric_mean(fair)),
        "repeat_oom": repeats,
        "seeds": max(len(s.scores) for by_name in summaries.values() for s in by_name.values()),
        "simulated": all(name in SPACES for name in summaries),
        "tables": tables,
    }


def _ratios(who: Contestant, by_name: Mapping[str, Summary]) -> dict[str, list[float]]:
    """Returns a contestant's GPU-seconds over each other's, with bounds; {} where it had no part.

    Ours without and with its suggestion are not compared: it is the same searcher.
    """
    if who.name not in by_name:
        return {}
    own = by_name[who.name].costs
    return {
        name: [short(item) for item in cost_ratio(own, summary.costs)]
        for name, summary in by_name.items()
        if name not in (OURS.name, SUGGESTED.name)
    }


def lines_of(summaries: Mapping[str, Mapping[str, Summary]]) -> list[str]:
    """Returns the figures as a table for people."""
    lines = []
    for name, by_name in summaries.items():
        table, ranking = ground(name)
        note = "; over 10 %: it says little" if ranking.near_frac > SAYS_LITTLE_FRAC else ""
        lines += [
            "",
            f"{table.name}: {ranking.num_points} points, {ranking.oom_frac:.0%} {_lacking(table)},"
            f" {ranking.near_frac:.1%} lie within 2 % of the best{note}",
            f"{'':42s}{'GPU-s to 2 %':>13s}{'(quartiles)':>17s}{'reached':>9s}{'false':>7s}"
            f"{'claim':>7s}{'trials':>7s}{'OOM':>6s}{'again':>6s}{'twice':>6s}{'idle':>6s}",
        ]
        for who, summary in by_name.items():
            figures = summary.to_json()
            low, high = np.quantile(summary.costs, [0.25, 0.75])
            lines.append(
                f"{who:42s}{figures['gpu_s_to_2pct']:13.0f}{f'({low:.0f}-{high:.0f})':>17s}"
                f"{figures['reached_frac']:9.0%}{figures['false_best_frac']:7.0%}"
                f"{figures['claim_error_frac']:7.2%}{figures['trials']:7.0f}{figures['oom']:6.1f}"
                f"{figures['repeat_oom']:6.1f}{figures['duplicates']:6.1f}"
                f"{figures['overhead_frac']:6.0%}"
            )
        for own, others in (
            (OURS, (PLAIN_RAY, FAIR_RAY)),
            (SUGGESTED, (PLAIN_RAY, FAIR_RAY, *TOLD)),
        ):
            ratios = _ratios(own, by_name)
            names = [item.name for item in others]
            shown = [
                f"{value:.2f} [{low:.2f}, {high:.2f}] of {name}"
                for name, (value, low, high) in ratios.items()
                if name in names
            ]
            lines += [f"GPU-seconds of {own.name}: {', '.join(shown)}"] if shown else []
    return lines


def _lacking(table: Table) -> str:
    known = table.recorded_frac
    return "do not fit" if known == 1 else f"do not fit or are not among the {known:.0%} recorded"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the comparison and returns 0, or 2 where a table can't be read."""
    options = _parser().parse_args(argv)
    try:
        for name in options.tables:
            ground(name)
    except LfRayError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    tasks = tasks_of(options)
    if options.procs > 1:
        with ProcessPoolExecutor(options.procs, get_context("spawn")) as pool:
            played = list(pool.map(play, tasks, chunksize=4))
    else:
        played = [play(task) for task in tasks]
    summaries = summaries_of(played)
    sys.stdout.write("\n".join(lines_of(summaries)) + "\n")
    sys.stdout.write(json_line(report(summaries)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lf_ray.bench search",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--tables",
        nargs="+",
        default=list(DEFAULT_TABLES),
        help="simulated clusters, frozen tables, or journals; everybody plays on the first",
    )
    parser.add_argument("--seeds", type=whole(1), default=20)
    parser.add_argument("--trials", type=whole(1), default=80, help="trials that each peer gets")
    parser.add_argument("--procs", type=whole(1), default=2, help="processes")
    parser.add_argument("--all", action="store_true", help="everybody plays on every table")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
