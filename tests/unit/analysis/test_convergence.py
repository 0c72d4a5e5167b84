"""The convergence check on made-up runs: when it passes, fails, can't tell, and refuses to say."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lf_ray.analysis.staged.convergence import (
    Converges,
    Run,
    best_rule,
    compared,
    convergence_of,
    runs_of,
)
from lf_ray.protocol import (
    KnobValue,
    OutcomeKind,
    Purpose,
    Trace,
    TrialOutcome,
    TrialRecord,
    TrialRequest,
)

BASE: dict[str, KnobValue] = {
    "batch.per_gpu": 4,
    "batch.accumulation": 1,
    "batch.lr_rule": "none",
    "overlap.comm_dtype": "fp32",
    "overlap.ratio": 1.0,
}


def run(
    level: float,
    seed: int = 0,
    *,
    steps: int = 500,
    batch: int = 8,
    knobs: Mapping[str, KnobValue] = BASE,
    scatter: float = 0.01,
) -> Run:
    rng = np.random.default_rng(seed + round(level * 1e6))
    return Run(
        id=f"c{seed}",
        knobs=knobs,
        seed=seed,
        loss=tuple(float(level * (1 + scatter * rng.standard_normal())) for _ in range(steps)),
        samples_per_step=batch,
    )


BASELINE = [run(1.0, seed) for seed in range(3)]


@pytest.mark.parametrize(
    ("level", "verdict"),
    [
        (0.9, Converges.PASSED),
        (1.0, Converges.PASSED),
        (1.1, Converges.FAILED),
    ],
)
def test_what_learns_as_well_passes_and_what_learns_worse_fails(
    level: float, verdict: Converges
) -> None:
    found = compared(BASELINE, [run(level)])
    assert found.verdict is verdict, found.reason
    assert (found.num_seeds, found.num_steps, found.num_samples) == (3, 500, 4000)
    assert found.ratio == pytest.approx(level, rel=0.01)


def test_seeds_that_differ_leave_it_undetermined() -> None:
    wide = [run(level, seed) for seed, level in enumerate((0.9, 1.0, 1.1))]
    found = compared(wide, [run(1.015)])
    assert found.verdict is Converges.UNDETERMINED
    assert found.hi is not None
    assert found.hi > 1.02


@pytest.mark.parametrize(
    ("baseline", "candidate", "says"),
    [
        (BASELINE[:2], [run(1.0)], "2 of 3 baseline seeds"),
        (BASELINE, [run(1.0, steps=499)], "499 of 500 steps"),
        ([BASELINE[0]] * 3, [run(1.0)], "1 of 3 baseline seeds"),
        (BASELINE, [run(1.0, steps=250, batch=16)], "250 of 500 steps"),
    ],
)
def test_fewer_steps_or_seeds_is_no_check(
    baseline: list[Run], candidate: list[Run], says: str
) -> None:
    found = compared(baseline, candidate)
    assert found.verdict is Converges.NOT_CHECKED
    assert says in found.reason


def test_runs_are_compared_at_equal_samples() -> None:
    falling = tuple(2.0 - step / 1000 for step in range(1000))
    longer = [
        Run(id="b", knobs=BASE, seed=seed, loss=falling, samples_per_step=8) for seed in range(3)
    ]
    half = Run(id="c", knobs=BASE, seed=0, loss=falling[:500], samples_per_step=8)
    found = compared(longer, [half])
    assert found.num_samples == 4000
    assert found.ratio == pytest.approx(1.0)


def test_a_diverged_run_fails_whatever_the_others_say() -> None:
    broken = Run(
        id="c9", knobs=BASE, seed=0, loss=(1.0, math.nan), samples_per_step=8, diverged=True
    )
    found = compared(BASELINE, [broken])
    assert found.verdict is Converges.FAILED
    assert "c9 diverged" in found.reason


def broken(seed: int) -> Run:
    return replace(run(1.0, seed), id=f"b{seed}", loss=(1.0, math.nan), diverged=True)


def test_baseline_seeds_that_diverge_are_counted_out_loud() -> None:
    found = compared([*BASELINE, broken(7), broken(8)], [run(1.0)])
    assert found.verdict is Converges.PASSED
    assert (found.num_seeds, found.num_diverged) == (3, 2)
    assert "2 of 5 baseline seeds diverged" in found.reason
    assert "diverged" not in compared(BASELINE, [run(1.0)]).reason
    few = compared([*BASELINE[:2], broken(2)], [run(1.0)])
    assert few.verdict is Converges.NOT_CHECKED
    assert "only 2 of 3 baseline seeds" in few.reason
    assert "1 of 3 baseline seeds diverged" in few.reason
    # Its second try came to its end: the seed is not lost.
    assert compared([*BASELINE, broken(1)], [run(1.0)]).num_diverged == 0
    none = compared([broken(0), broken(1)], [run(1.0)])
    assert (none.verdict, none.reason) == (
        Converges.NOT_CHECKED,
        "2 of 2 baseline seeds diverged",
    )


def test_only_knobs_that_change_the_arithmetic_ask_for_a_check() -> None:
    faster = {**BASE, "overlap.ratio": 0.0}
    assert convergence_of(faster, BASE, []).verdict is Converges.NOT_NEEDED
    halved = {**BASE, "overlap.comm_dtype": "bf16"}
    assert convergence_of(halved, BASE, []).verdict is Converges.NOT_CHECKED
    larger = {**BASE, "batch.per_gpu": 8, "batch.lr_rule": "sqrt", "overlap.ratio": 0.5}
    own = run(1.0, knobs={**larger, "overlap.ratio": 1.0}, batch=16)
    longer = [run(1.0, seed, steps=1000) for seed in range(3)]
    assert convergence_of(larger, BASE, [*longer, own]).verdict is Converges.PASSED
    other_rule = {**larger, "batch.lr_rule": "linear"}
    found = convergence_of(other_rule, BASE, [*longer, own], why_none="no time")
    assert found.verdict is Converges.NOT_CHECKED
    assert "no time" in found.reason


def test_a_run_counts_for_every_split_of_its_samples_into_micro_batches() -> None:
    split = {**BASE, "batch.per_gpu": 2, "batch.accumulation": 2}
    found = convergence_of(split, BASE, BASELINE)
    assert (found.verdict, "other micro-batches" in found.reason) == (Converges.NOT_NEEDED, True)
    larger = {**BASE, "batch.per_gpu": 8}
    longer = [run(1.0, seed, steps=1000) for seed in range(3)]
    worse = run(1.2, knobs=larger, batch=16)
    in_two = {**larger, "batch.per_gpu": 4, "batch.accumulation": 2}
    assert convergence_of(in_two, BASE, [*longer, worse]).verdict is Converges.FAILED


def test_the_rule_with_the_lowest_loss_wins_and_a_diverged_one_can_not() -> None:
    broken = Run(id="x", knobs=BASE, seed=0, loss=(0.1,), samples_per_step=8, diverged=True)
    runs = {"linear": [run(1.1)], "sqrt": [run(1.0)], "none": [broken]}
    assert best_rule(runs) == "sqrt"
    assert best_rule({"none": [broken]}) is None


def record(**changes: Any) -> TrialRecord:
    request = TrialRequest(
        id="c000", knobs=BASE, seed=1, purpose=Purpose.SLICE, run_samples=changes.pop("samples", 8)
    )
    outcome = TrialOutcome(
        kind=changes.pop("kind", OutcomeKind.COMPLETED),
        error_kind=changes.pop("error_kind", ""),
        reason="x",
    )
    loss = changes.pop("loss", (1.0, 0.9))
    trace = Trace(wall_s=(1.0, 1.0), loss=loss, grad_norm=(1.0, 1.0), wait_s=(0.0, 0.0))
    return TrialRecord(request=request, outcome=outcome, trace=trace, samples_per_step=4)


def test_a_run_counts_by_its_losses_not_by_its_speed() -> None:
    unsteady = record(kind=OutcomeKind.INVALID, error_kind="unsteady")
    lost = record(kind=OutcomeKind.FAILED, error_kind="worker_lost")
    diverged = record(kind=OutcomeKind.FAILED, error_kind="diverged", loss=(1.0, math.inf))
    visit = record(samples=None)
    assert [item.diverged for item in runs_of([unsteady, lost, diverged, visit])] == [False, True]
