"""What one search cost and where it stood at every moment, and the figures that follow."""

import math
from dataclasses import dataclass, field

from lf_ray.bench.contest.tables import NEAR_FRAC, Ranking
from lf_ray.protocol import Knobs, OutcomeKind, TrialOutcome
from lf_ray.search.plan.boundary import dominated
from lf_ray.search.space import point_key


@dataclass(frozen=True, slots=True)
class Moment:
    """After a visit.

    Attributes:
        gpu_s: spent until then, everything included.
        regret_frac: of the recommendation at that time, by the truth.
        claimed_samples_per_s: what the searcher says that the recommendation gives.
    """

    gpu_s: float
    regret_frac: float
    claimed_samples_per_s: float


@dataclass(slots=True)
class Ledger:
    """The books of one search on one table."""

    ranking: Ranking
    num_gpus: int
    moments: list[Moment] = field(default_factory=list)
    measured_s: float = 0.0
    num_trials: int = 0
    num_oom: int = 0
    num_repeat_oom: int = 0
    num_duplicates: int = 0
    recommended: Knobs | None = None
    _seen: set[str] = field(default_factory=set)
    _infeasible: list[tuple[Knobs, str]] = field(default_factory=list)

    def visit(self, outcome: TrialOutcome) -> None:
        """Counts a visit's measured seconds."""
        self.measured_s += outcome.costs_s.get("measured", 0.0)

    def trial(self, knobs: Knobs, outcome: TrialOutcome) -> None:
        """Counts a started trial; intended replicates are no trials."""
        self.num_trials += 1
        if outcome.kind is OutcomeKind.INFEASIBLE:
            self.num_oom += 1
            known = any(dominated(knobs, other, kind) for other, kind in self._infeasible)
            self.num_repeat_oom += known
            self._infeasible.append((dict(knobs), outcome.error_kind))
        key = point_key(knobs)
        self.num_duplicates += key in self._seen
        self._seen.add(key)

    def moment(self, gpu_s: float, recommended: Knobs | None, claimed: float) -> None:
        """Notes where the search stands."""
        self.recommended = recommended
        self.moments.append(Moment(gpu_s, self.ranking.regret_frac(recommended), claimed))

    def scores(self) -> "Scores":
        """Returns the figures of this search."""
        last = self.moments[-1]
        reached = math.inf
        for moment in reversed(self.moments):
            if moment.regret_frac > NEAR_FRAC:
                break
            reached = moment.gpu_s
        truth = self.ranking.best * (1 - last.regret_frac)
        return Scores(
            gpu_s_to_near=reached,
            gpu_s_total=last.gpu_s,
            regret_frac=last.regret_frac,
            claim_error_frac=last.claimed_samples_per_s / truth - 1 if truth > 0 else math.nan,
            overhead_frac=1 - self.measured_s * self.num_gpus / last.gpu_s,
            num_trials=self.num_trials,
            num_oom=self.num_oom,
            num_repeat_oom=self.num_repeat_oom,
            num_duplicates=self.num_duplicates,
            curve=tuple((moment.gpu_s, moment.regret_frac) for moment in self.moments),
            recommended=self.recommended,
        )


@dataclass(frozen=True, slots=True)
class Scores:
    """The figures of one search.

    Attributes:
        gpu_s_to_near: GPU-seconds from which on the recommendation stayed within 2 % of the best;
            infinite where it never came there or did not stay.
        regret_frac: of the last recommendation.
        claim_error_frac: what it claims over what is true, less one.
        overhead_frac: share of all GPU-seconds in which no steady step was measured.
        curve: GPU-seconds and regret after every visit.
    """

    gpu_s_to_near: float
    gpu_s_total: float
    regret_frac: float
    claim_error_frac: float
    overhead_frac: float
    num_trials: int
    num_oom: int
    num_repeat_oom: int
    num_duplicates: int
    curve: tuple[tuple[float, float], ...]
    recommended: Knobs | None

    @property
    def cost_gpu_s(self) -> float:
        """Returns GPU-seconds to 2 %, at least all that was spent where it was not reached."""
        return min(self.gpu_s_to_near, self.gpu_s_total)

    def regret_at(self, gpu_s: float) -> float:
        """Returns the regret of the recommendation that stood after so many GPU-seconds."""
        past = [regret for spent, regret in self.curve if spent <= gpu_s]
        return past[-1] if past else 1.0
