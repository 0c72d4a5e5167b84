"""What may pass sweep.minutes: the baseline's second visit, since without it there is no answer."""

from collections.abc import Callable

import pytest

from lf_ray.bench.contest.grid_planner import GridPlanner
from lf_ray.clock import FakeClock
from lf_ray.protocol import TrialOutcome, TrialRequest
from lf_ray.search.conductor import Conductor, MemoryLog, run_in_process
from lf_ray.search.plan.decisions import Rules
from lf_ray.search.planner import Planner
from lf_ray.search.samplers.plain import RandomProposer
from lf_ray.search.space import space_from_literal
from lf_ray.search.stages.stage import Stages, stages_of, whole_space
from lf_ray.search.stages.staged_planner import StagedPlanner
from lf_ray.settings import SweepConfig, knobs_of
from lf_ray.testing.objectives import KneeObjective, out_of_memory, worker_lost

NO_TIME = Rules(minutes=0.001)
STAGES: Stages = {
    "graph": {"graph.scope": ["off", "step"]},
    "overlap": {"overlap.ratio": [0.0, 1.0]},
}
Fate = Callable[[TrialRequest], TrialOutcome | None]


class Sweep:
    """A sweep, in stages or not, or a grid, that has no time."""

    def __init__(self, kind: str, fate: Fate) -> None:
        self.kind, self.fate = kind, fate

    def conductor(self, log: MemoryLog, clock: FakeClock) -> Conductor:
        config = SweepConfig(name="x")
        config.cluster.workers, config.batch.per_gpu = 2, 8
        knobs = knobs_of(config)
        space = space_from_literal(whole_space(STAGES), knobs)
        planner: StagedPlanner | GridPlanner | Planner
        if self.kind == "staged":
            stages = stages_of(STAGES, config, NO_TIME, knobs)
            planner = StagedPlanner(space, stages, NO_TIME, RandomProposer(), 2)
        elif self.kind == "grid":
            planner = GridPlanner(space, NO_TIME)
        else:
            planner = Planner(space, NO_TIME, RandomProposer())
        conductor = Conductor(planner, log, (), clock)
        header = {"id": "x", "name": "x", "space": space.to_plain(), "baseline_knobs": knobs}
        conductor.begin(header, tuple(log.events))
        return conductor

    def run(self, log: MemoryLog, clock: FakeClock) -> tuple[int, list[str]]:
        """Returns the exit code and the ids of what was started."""
        stop = run_in_process(
            self.conductor(log, clock), KneeObjective(clock=clock, fate=self.fate)
        )
        kinds = ("started", "replicate")
        asked = [event.data["request"]["id"] for event in log.events if event.kind in kinds]
        return stop.exit_code, [name.split(".")[-1] for name in asked]


def lost_at_first(request: TrialRequest) -> TrialOutcome | None:
    return worker_lost() if request.id.split(".")[-1] == "t000" else None


@pytest.mark.parametrize("kind", ["plain", "staged", "grid"])
def test_the_baseline_gets_its_second_visit(kind: str) -> None:
    clock = FakeClock()
    assert Sweep(kind, lost_at_first).run(MemoryLog(clock), clock) == (0, ["t000", "t000r1"])


@pytest.mark.parametrize("kind", ["plain", "staged", "grid"])
def test_it_gets_no_third(kind: str) -> None:
    clock = FakeClock()
    sweep = Sweep(kind, lambda _: worker_lost())
    assert sweep.run(MemoryLog(clock), clock) == (1, ["t000", "t000r1"])


@pytest.mark.parametrize("kind", ["plain", "staged", "grid"])
def test_a_sweep_killed_in_that_visit_takes_it_up_again(kind: str) -> None:
    clock = FakeClock()
    sweep = Sweep(kind, lost_at_first)
    log = MemoryLog(clock)
    sweep.run(log, clock)
    begun = [i for i, event in enumerate(log.events) if event.kind in ("started", "replicate")]
    cut = MemoryLog(clock)
    cut.events.extend(log.events[: begun[1] + 1])
    code, asked = sweep.run(cut, clock)
    assert (code, set(asked)) == (0, {"t000", "t000r1"})


@pytest.mark.parametrize("kind", ["plain", "staged", "grid"])
def test_halving_a_baseline_that_does_not_fit_keeps_to_the_time(kind: str) -> None:
    clock = FakeClock()
    code, asked = Sweep(kind, lambda _: out_of_memory()).run(MemoryLog(clock), clock)
    assert (code, asked) == (1, ["t000"])
