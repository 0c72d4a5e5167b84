"""Sweeps whose knobs start the workers anew, where one start is slower than another."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from lf_ray.analysis.gain import compared, gain_over
from lf_ray.analysis.points import gather
from lf_ray.clock import FakeClock
from lf_ray.protocol import ChangeCost, Knobs, TrialRecord, TrialRequest, change_cost
from lf_ray.search.plan.decisions import Rules
from lf_ray.search.plan.visits import throughput
from lf_ray.search.space import Literal
from lf_ray.testing.fake_sweep import FakeSweep
from lf_ray.testing.objectives import KneeObjective

MakeSweep = Callable[..., FakeSweep]
BACKENDS: Literal = {
    "memory.backend": ["caching", "expandable"],
    "overlap.ratio": [0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
    "overlap.bucket_size_mb": [4.0, 8.0, 16.0, 32.0],
}
NEW_WORKERS = "these workers are others"


def true_rate(knobs: Knobs) -> float:
    """Returns a rate that the other backend, a small ratio and a large bucket raise."""
    bucket = float(knobs["overlap.bucket_size_mb"]) / 32
    backend = 1.1 if knobs["memory.backend"] == "expandable" else 1.0
    return 100.0 * backend * (1.2 - 0.2 * float(knobs["overlap.ratio"])) * (1 + 0.05 * bucket)


@dataclass
class Moody:
    """Workers that are, from one start to the next, slower or faster.

    Attributes:
        moods: speed of each start over what is true, over and over.
        lost: ids of requests after which the group is replaced.
    """

    objective: KneeObjective
    moods: tuple[float, ...] = (1.0, 0.95)
    lost: tuple[str, ...] = ()
    start: int = 0
    previous: Knobs | None = None

    def __post_init__(self) -> None:
        self.objective.true_rate = lambda knobs: true_rate(knobs) * self._mood

    @property
    def _mood(self) -> float:
        return self.moods[(self.start - 1) % len(self.moods)]

    def __call__(self, request: TrialRequest) -> TrialRecord:
        anew = change_cost(self.previous, request.knobs) is ChangeCost.RESTART
        self.start += anew
        record = self.objective(request)
        self.previous = None if request.id in self.lost else request.knobs
        costs_s = {**record.outcome.costs_s, "restart": 12.0 * anew}
        return replace(record, outcome=replace(record.outcome, costs_s=costs_s))


def swept(
    make_sweep: MakeSweep, literal: Literal = BACKENDS, rules: Rules | None = None, **more: object
) -> FakeSweep:
    clock = FakeClock()
    objective = KneeObjective(noise_frac=0.001, spread_frac=0.002, clock=clock)
    execute = Moody(objective, **more)  # type: ignore[arg-type]
    sweep = make_sweep(literal, execute, clock=clock, rules=rules or Rules(trials=14))
    assert sweep.run().exit_code == 0
    return sweep


def seen_anew(sweep: FakeSweep) -> list[str]:
    """Returns the ids of baseline visits that were made because the workers were others."""
    lines = sweep.lines("replicate")
    return [line["request"]["id"] for line in lines if NEW_WORKERS in line["reason"]]


def test_workers_that_can_run_the_baseline_are_held_against_it_once_a_start(
    make_sweep: MakeSweep,
) -> None:
    sweep = swept(make_sweep)
    started, starts, before = list[str](), Counter[int](), None
    visits, start = seen_anew(sweep), 0
    for request in sweep.started():
        start += change_cost(before, request.knobs) is ChangeCost.RESTART
        before = request.knobs
        if request.id in visits:
            starts[start] += 1
            started.append(str(request.knobs["memory.backend"]))
    assert starts
    assert set(starts.values()) == {1}
    assert set(started) == {"caching"}


def test_a_sweep_that_needs_no_other_workers_pays_nothing(make_sweep: MakeSweep) -> None:
    hot = {name: values for name, values in BACKENDS.items() if name != "memory.backend"}
    sweep = swept(make_sweep, hot, moods=(1.0,), lost=("t003", "t006"))
    assert sweep.state.start == 3
    assert seen_anew(sweep) == []


def test_slow_starts_are_taken_out_of_points_that_share_the_baselines_workers(
    make_sweep: MakeSweep,
) -> None:
    sweep = swept(
        make_sweep, rules=Rules(trials=24, baseline_every=2), moods=(1.0, 1.0, 0.95, 0.95)
    )
    state = sweep.state
    assert state.baseline is not None
    base = true_rate(state.baseline.knobs)
    gains = [
        gain_over(state.baseline, point).value / (true_rate(point.knobs) / base)
        for point in state.eligible
        if point.knobs["memory.backend"] == "caching"
    ]
    assert len(gains) > 5
    assert max(abs(gain - 1) for gain in gains) < 0.005
    drift = gather(state.in_order).drift
    assert drift is not None
    assert "starts of the workers differ" in drift.reason


def test_points_of_other_workers_carry_the_error_of_a_start(make_sweep: MakeSweep) -> None:
    state = swept(make_sweep).state
    baseline = state.baseline
    assert baseline is not None
    other = next(
        point
        for point in state.eligible
        if point.knobs["memory.backend"] == "expandable" and point.start_frac > 0
    )
    same = next(point for point in state.eligible if point.knobs == baseline.knobs)
    assert compared(same, baseline) == (throughput(same), throughput(baseline))
    mine, theirs = compared(other, baseline)
    assert mine.value == throughput(other).value
    assert mine.hi > throughput(other).hi
    assert theirs.hi >= throughput(baseline).hi
