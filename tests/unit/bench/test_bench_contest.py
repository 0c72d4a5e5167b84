import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lf_ray.bench.contest import tables
from lf_ray.bench.contest.ledger import Ledger, Scores
from lf_ray.bench.contest.race import (
    CONTESTANTS,
    FAIR_RAY,
    OURS,
    PLAIN_RAY,
    first_points,
    run_search,
)
from lf_ray.bench.contest.standings import cost_ratio, p_score, regret_curve, stability_frac
from lf_ray.bench.contest.tables import SPACES, Ranking, SimTable
from lf_ray.bench.peers import InOrder, OptunaAlone, Peer, RayOptuna
from lf_ray.bench.search import main
from lf_ray.protocol import Knobs, KnobValue, OutcomeKind, TrialOutcome
from lf_ray.search.space import Space, space_from_literal
from lf_ray.testing.objectives import out_of_memory

LITERAL: dict[str, list[KnobValue]] = {
    "graph.scope": ["off", "step+optimizer"],
    "batch.per_gpu": [16, 32, 64, 704, 768],
    "overlap.bucket_size_mb": [25.0, 64.0, 256.0],
    "overlap.ratio": [0.0, 0.6, 1.0],
}


class SmallTable(SimTable):
    """Eight H200 with a space that every searcher is through with in a moment."""

    def __init__(self) -> None:
        super().__init__("sim_8xh200")
        self.space = space_from_literal(LITERAL, self.truth.baseline())


@pytest.fixture(scope="module")
def table() -> SmallTable:
    return SmallTable()


@pytest.fixture(scope="module")
def ranking(table: SmallTable) -> Ranking:
    return Ranking(table)


def test_a_ranking_counts_what_fits_and_what_is_near(ranking: Ranking) -> None:
    assert ranking.num_points == 2 * 5 * 3 * 3
    assert 0 < ranking.oom_frac < 0.5
    assert 0 < ranking.near_frac < 0.2
    assert ranking.regret_frac(None) == 1


@pytest.mark.slow
def test_the_default_tables_can_tell_searchers_apart() -> None:
    for name in ("sim_8xh200", "sim_2xh200_slow"):
        assert Ranking(SimTable(name)).near_frac < 0.1, name
    assert set(SPACES) >= {"sim_8xa100", "sim_8xh200", "sim_2xh200_slow"}


@pytest.mark.parametrize("contestant", CONTESTANTS, ids=[item.name for item in CONTESTANTS])
def test_every_contestant_ends_with_books_that_add_up(
    contestant: Any, table: SmallTable, ranking: Ranking
) -> None:
    scores = run_search(table, ranking, contestant, seed=1, max_trials=12)
    spent = [gpu_s for gpu_s, _ in scores.curve]
    assert spent == sorted(spent)
    assert scores.gpu_s_total == spent[-1] > 0
    assert 0 <= scores.overhead_frac < 1
    assert scores.num_repeat_oom <= scores.num_oom <= scores.num_trials
    assert scores.recommended is not None
    assert abs(scores.claim_error_frac) < 0.1
    if contestant is OURS:
        assert scores.num_repeat_oom == scores.num_duplicates == 0


def test_warm_groups_are_what_makes_a_trial_cheap(table: SmallTable, ranking: Ranking) -> None:
    plain = run_search(table, ranking, PLAIN_RAY, seed=2, max_trials=10)
    fair = run_search(table, ranking, FAIR_RAY, seed=2, max_trials=10)
    assert plain.gpu_s_total > 2 * fair.gpu_s_total


@pytest.mark.parametrize("seed", [0, 1])
def test_ours_is_right_and_claims_what_is_true(
    seed: int, table: SmallTable, ranking: Ranking
) -> None:
    ours = run_search(table, ranking, OURS, seed, max_trials=60)
    assert ours.regret_frac < 0.02
    assert abs(ours.claim_error_frac) < 0.01


@pytest.mark.slow
def test_ours_is_right_for_less_than_the_fair_variant_is() -> None:
    """Found to take 0.42 of its GPU-seconds (median of five seeds).

    Not so on the small table, whose 90 points anyone is through with soon.
    """
    table = SimTable("sim_2xh200_slow")
    ranking = Ranking(table)
    ours = run_search(table, ranking, OURS, 0, max_trials=60)
    fair = run_search(table, ranking, FAIR_RAY, 0, max_trials=60)
    assert ours.regret_frac < 0.02
    assert ours.cost_gpu_s < 0.75 * fair.cost_gpu_s


def test_a_search_repeats_itself_for_a_seed(table: SmallTable, ranking: Ranking) -> None:
    first = run_search(table, ranking, FAIR_RAY, seed=3, max_trials=8)
    again = run_search(table, ranking, FAIR_RAY, seed=3, max_trials=8)
    assert [regret for _, regret in first.curve] == [regret for _, regret in again.curve]


PEERS: dict[str, Callable[[Space, int, Sequence[Knobs]], Peer]] = {
    "ray": lambda space, seed, first: RayOptuna(space, seed, first),
    "ray_fair": lambda space, seed, first: RayOptuna(space, seed, first, penalty=0.0, ordered=True),
    "optuna": OptunaAlone,
    "random": lambda space, seed, first: InOrder(space, seed, first, shuffled=True),
    "grid": lambda space, seed, first: InOrder(space, seed, first, shuffled=False),
}


@pytest.mark.parametrize("name", list(PEERS))
def test_peers_start_alike_stay_in_the_space_and_follow_their_seed(
    name: str, table: SmallTable
) -> None:
    first = first_points(table)

    def asked(seed: int) -> list[Knobs]:
        peer: Peer = PEERS[name](table.space, seed, first)
        points: list[Knobs] = []
        for index in range(14):
            point = peer.ask()
            assert point is not None
            points.append(point)
            peer.tell(None if index % 5 == 4 else 100.0 + index)
        return points

    points = asked(5)
    assert points == asked(5)
    assert points[:2] == [{key: point[key] for key in LITERAL} for point in first]
    for point in points:
        assert all(point[key] in values for key, values in LITERAL.items())


class Scripted:
    """A ranking of two points."""

    best = 100.0

    def regret_frac(self, knobs: Knobs | None) -> float:
        return 1.0 if knobs is None else float(knobs["regret"])


def ledger() -> Ledger:
    return Ledger(Scripted(), num_gpus=8)  # type: ignore[arg-type]


def test_a_lucky_moment_does_not_count_unless_it_lasts() -> None:
    books = ledger()
    for gpu_s, regret in ((10, 0.5), (20, 0.01), (30, 0.3), (40, 0.015), (50, 0.0)):
        books.moment(gpu_s, {"regret": regret}, 90.0)
    assert books.scores().gpu_s_to_near == 40
    books.moment(60, {"regret": 0.1}, 99.0)
    scores = books.scores()
    assert math.isinf(scores.gpu_s_to_near)
    assert scores.cost_gpu_s == 60
    assert scores.claim_error_frac == pytest.approx(0.1)
    assert scores.regret_at(35) == 0.3
    assert scores.regret_at(5) == 1.0


def test_dominated_misfits_and_duplicates_are_counted(table: SmallTable) -> None:
    books = ledger()
    point = table.space.canonical({"batch.per_gpu": 704})
    larger = table.space.canonical({"batch.per_gpu": 768})
    done = TrialOutcome(kind=OutcomeKind.COMPLETED)
    for knobs, outcome in ((point, out_of_memory()), (larger, out_of_memory()), (point, done)):
        books.trial(knobs, outcome)
    books.moment(1, {"regret": 0.0}, 100.0)
    scores = books.scores()
    assert (scores.num_oom, scores.num_repeat_oom, scores.num_duplicates) == (2, 1, 1)


def scores_of(curve: tuple[tuple[float, float], ...], bucket: float) -> Scores:
    books = ledger()
    for gpu_s, regret in curve:
        books.moment(gpu_s, {"regret": regret, "bucket": bucket}, 100.0)
    return books.scores()


def test_curves_ratios_and_stability_say_what_they_should() -> None:
    runs = [scores_of(((10, 0.5), (20, 0.0)), 64.0), scores_of(((10, 0.3), (40, 0.0)), 64.0)]
    assert regret_curve(runs, [5, 10, 20, 40]) == [1.0, 0.4, 0.15, 0.0]
    assert p_score([0.1, 0.0], [0.2, 0.1]) == pytest.approx(0.75)
    value, low, high = cost_ratio([10, 11, 12, 9] * 5, [100, 90, 110, 100] * 5)
    assert value == pytest.approx(0.105)
    assert low < value < high
    other = scores_of(((10, 0.0),), 25.0)
    assert stability_frac([*runs, other]) == pytest.approx((1 / 3 + 2 / 3) / 2, abs=0.2)


def test_the_command_ends_with_one_json_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {name: [values[0], values[-1]] for name, values in LITERAL.items()}
    monkeypatch.setitem(tables.SPACES, "sim_8xh200", few)
    code = main(["--tables", "sim_8xh200", "--seeds", "1", "--trials", "6", "--procs", "1"])
    lines = capsys.readouterr().out.strip().splitlines()
    summary = json.loads(lines[-1])
    assert code == 0
    assert summary["bench"] == "search"
    assert summary["repeat_oom"] == 0
    assert summary["simulated"] is True
    assert summary["ratio_to_ray_tune"] > 0
    assert summary["ratio_to_ray_tune_fair"] > 0
    assert summary["tables"]["sim_8xh200"]["ratio_of_suggested_to"] == {}
    # A simulated cluster would be told its own answer.
    names = {item.name for item in CONTESTANTS if not item.suggested}
    assert set(summary["tables"]["sim_8xh200"]["contestants"]) == names
    assert any(line.startswith("ray tune + optuna, fair ") for line in lines)
