"""Many searches of one contestant as figures: medians over seeds, ratios with intervals, curves."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lf_ray.bench.contest.ledger import Scores
from lf_ray.bench.contest.tables import NEAR_FRAC

_BOOTSTRAPS = 2000


@dataclass(frozen=True, slots=True)
class Summary:
    """One contestant on one table, over all seeds."""

    contestant: str
    scores: tuple[Scores, ...]

    @property
    def costs(self) -> list[float]:
        """Returns GPU-seconds to 2 % of each seed; all that was spent where it was not reached."""
        return [score.cost_gpu_s for score in self.scores]

    @property
    def reached_frac(self) -> float:
        """Returns the share of seeds that came to within 2 % and stayed."""
        return statistics.mean(math.isfinite(score.gpu_s_to_near) for score in self.scores)

    def to_json(self) -> dict[str, float | list[float]]:
        """Returns the figures as plain values."""
        claims = [
            abs(s.claim_error_frac) for s in self.scores if s.claim_error_frac == s.claim_error_frac
        ]
        low, high = np.quantile(self.costs, [0.25, 0.75])
        return {
            "gpu_s_to_2pct": short(statistics.median(self.costs)),
            "gpu_s_to_2pct_iqr": [short(low), short(high)],
            "reached_frac": short(self.reached_frac),
            "gpu_s_total": short(statistics.median(s.gpu_s_total for s in self.scores)),
            "regret_frac": short(statistics.median(s.regret_frac for s in self.scores)),
            "false_best_frac": short(
                statistics.mean(s.regret_frac > NEAR_FRAC for s in self.scores)
            ),
            "claim_error_frac": short(statistics.median(claims) if claims else 1.0),
            "overhead_frac": short(statistics.median(s.overhead_frac for s in self.scores)),
            "trials": short(statistics.median(s.num_trials for s in self.scores)),
            "oom": short(statistics.mean(s.num_oom for s in self.scores)),
            "repeat_oom": short(statistics.mean(s.num_repeat_oom for s in self.scores)),
            "duplicates": short(statistics.mean(s.num_duplicates for s in self.scores)),
            "stability_frac": short(stability_frac(self.scores)),
        }


def stability_frac(scores: Sequence[Scores]) -> float:
    """Returns, averaged over knobs, the share of seeds that recommend the commonest value."""
    answers = [score.recommended for score in scores if score.recommended]
    if not answers:
        return 0.0
    shares = []
    for name in answers[0]:
        values = [answer[name] for answer in answers]
        if len(set(values)) > 1:
            shares.append(max(values.count(value) for value in values) / len(values))
    return statistics.mean(shares) if shares else 1.0


def regret_curve(scores: Sequence[Scores], grid: Sequence[float]) -> list[float]:
    """Returns the median regret of the recommendation after each of these GPU-seconds."""
    return [statistics.median(score.regret_at(spent) for score in scores) for spent in grid]


def p_score(ours: Sequence[float], base: Sequence[float]) -> float:
    """Returns the mean share by which a curve closes random search's distance to the optimum."""
    shares = [1 - mine / other for mine, other in zip(ours, base) if other > 1e-9]
    return statistics.mean(shares) if shares else 0.0


def cost_ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Returns the ratio of median costs and its 95 % interval, by bootstrap over seeds."""
    rng = np.random.default_rng(0)
    mine, other = np.asarray(ours), np.asarray(theirs)
    drawn = np.median(rng.choice(mine, (_BOOTSTRAPS, mine.size)), axis=1) / np.median(
        rng.choice(other, (_BOOTSTRAPS, other.size)), axis=1
    )
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.median(mine) / np.median(other)), float(low), float(high)


def short(value: float) -> float:
    """Returns four significant digits, which is more than these figures hold."""
    return float(f"{value:.4g}")
