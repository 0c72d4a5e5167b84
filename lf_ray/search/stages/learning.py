"""The stage that trains: does a larger batch learn as well, and with which learning-rate rule?

Makes the runs of a plan. Where the batch of the best goodput learns worse, the next best is run.
"""

from dataclasses import replace

from lf_ray.analysis.staged.convergence import (
    Converges,
    Run,
    convergence_of,
    rank_batch,
    runs_of,
)
from lf_ray.analysis.staged.named import advised_rule, with_rule
from lf_ray.protocol import Budget, Knobs, OutcomeKind, Purpose, TrialRequest
from lf_ray.record.events import JournalEvent
from lf_ray.search.plan.decisions import Decision, Request, Rules, Stop, Wait
from lf_ray.search.plan.state import SweepState
from lf_ray.search.space import Space
from lf_ray.search.stages.learning_plan import BEST_RULE, LearningPlan, LearningRun, batch_key

NOISE_STEPS = 12
_MAX_TRIES = 2
_NO_CAP_S = 7 * 86_400.0


class LearningPlanner:
    """Makes the runs of a plan, one after the other; each is tried twice at most.

    Args:
        space: of the whole sweep.
        num_ranks: that a step's samples are spread over.

    Attributes:
        state: books of this stage alone.
    """

    def __init__(self, space: Space, plan: LearningPlan, rules: Rules, num_ranks: int) -> None:
        self.rules = rules
        self.state = SweepState(Space(space.baseline, {}, {}))
        self._plan = plan
        self._num_ranks = num_ranks

    def observe(self, event: JournalEvent) -> None:
        """Takes an event of the stage in."""
        self.state.fold(event)

    def decide(self, now_wall_s: float) -> Decision:
        """Returns the next run, or why there are no more."""
        state = self.state
        if state.orphans:
            return Request(next(iter(state.orphans.values())), "was under way when interrupted")
        if not self._plan.runs:
            return Stop(self._plan.note, 0)
        if len(state.in_flight) >= self.rules.num_groups:
            return Wait("every group is busy")
        runs, worse = self._runs_so_far()
        for index, (label, knobs, seed) in enumerate(runs):
            name = self._next_try(index)
            if name is None:
                continue
            found = self._resolved(knobs)
            if found is None:
                return Wait("the rules' runs come first")
            return Request(self._request(name, f"c{index:03d}", found, seed), label)
        if state.in_flight:
            return Wait("the last runs are under way")
        words = f"all {len(runs)} training runs are done"
        if worse:
            words += f"; learnt worse than the baseline: {', '.join(worse)}"
            if len(worse) == len(self._plan.in_turn) and self._plan.left_out:
                words += f"; {self._plan.left_out}"
        return Stop(words, 0)

    def _runs_so_far(self) -> tuple[list[LearningRun], list[str]]:
        """Returns the plan's runs and those that goodput's worse ones led to, and which were worse.

        Of goodput's points the next one is run when the one before has learnt worse.
        """
        runs, worse = list(self._plan.runs), list[str]()
        if self.state.in_flight or any(map(self._next_try, range(len(runs)))):
            return runs, worse
        made = self._made()
        baseline = runs[0][1]
        planned = {batch_key(knobs) for _, knobs, _ in runs}
        for run in self._plan.in_turn:
            knobs = run[1]
            if batch_key(knobs) not in planned:
                runs.append(run)
            if convergence_of(self._ruled(knobs), baseline, made).verdict is not Converges.FAILED:
                break
            worse.append(f"batch {self._samples_per_step(knobs)}")
        return runs, worse

    def _next_try(self, index: int) -> str | None:
        """Returns the name of a run's next try; None where it is under way or needs none."""
        tries = [f"c{index:03d}", *(f"c{index:03d}r{again}" for again in range(1, _MAX_TRIES))]
        started = [name for name in tries if name in self.state.requests]
        if any(name in self.state.in_flight or self._came_back(name) for name in started):
            return None
        return tries[len(started)] if len(started) < len(tries) else None

    def _made(self) -> list[Run]:
        return runs_of([r for group in self.state.records.values() for r in group])

    def _came_back(self, name: str) -> bool:
        """Returns whether a run needs no second try: it has losses, or can't have any."""
        records = [r for group in self.state.records.values() for r in group]
        record = next((item for item in records if item.request.id == name), None)
        if record is None:
            return False
        return bool(runs_of([record])) or record.outcome.kind is OutcomeKind.INFEASIBLE

    def _resolved(self, knobs: Knobs) -> Knobs | None:
        """Returns the knobs with a rule in place of `BEST_RULE`; None while it is not known."""
        if knobs.get("batch.lr_rule") != BEST_RULE:
            return knobs
        return None if self.state.in_flight else self._ruled(knobs)

    def _ruled(self, knobs: Knobs) -> Knobs:
        """Returns the knobs with the rule that the first compared batch learnt best with."""
        baseline = self._plan.runs[0][1]
        present = {**knobs, "batch.lr_rule": baseline["batch.lr_rule"]}
        return with_rule(present, baseline, advised_rule(self._made(), baseline))

    def _samples_per_step(self, knobs: Knobs) -> int:
        return rank_batch(knobs) * self._num_ranks

    def _request(self, name: str, point: str, knobs: Knobs, seed: int) -> TrialRequest:
        steps = max(1, self._plan.samples // self._samples_per_step(knobs))
        base = knobs == self._plan.runs[0][1]
        return TrialRequest(
            id=name,
            knobs=dict(knobs),
            seed=seed,
            purpose=Purpose.SLICE,
            replicate_of=point if name != point else None,
            budget=Budget(
                min_steps=steps,
                max_steps=steps,
                max_s=_NO_CAP_S,
                target_frac=self.rules.measure.target_frac,
                delta_frac=self.rules.delta,
            ),
            deadlines=replace(self.rules.deadlines),
            noise_steps=NOISE_STEPS if base else 0,
            run_samples=self._plan.samples,
        )
