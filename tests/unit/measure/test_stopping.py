import itertools
import math

import numpy as np
import pytest

from lf_ray.measure import decide, pooled, read_visit, tolerance
from lf_ray.protocol import Budget
from lf_ray.testing.sim.noise import Factors, StepNoise

STANDARD = Budget(min_steps=20, max_steps=160, max_s=1e9, target_frac=0.01)
BLOCK = 6


def steps_until_stop(row: Factors, budget: Budget) -> tuple[int, str]:
    """Runs a visit as the trial loop does: a look after every block of steps."""
    for num_steps in range(BLOCK, row.size + 1, BLOCK):
        decision = decide(row[:num_steps], budget, samples_per_step=1)
        if decision.stop:
            return num_steps, decision.rule
    return row.size, "end"


def test_coverage_survives_the_sequential_stop_over_2000_series() -> None:
    rng = np.random.default_rng(21)
    regimes = [
        StepNoise(cv=cv, phi=phi, between_frac=0.003, spike_prob=prob, spike_frac=(0.01, 0.05))
        for cv, phi, prob in itertools.product((0.004, 0.012, 0.025), (0.0, 0.2, 0.4), (0.0, 0.04))
    ]
    each = math.ceil(2000 / len(regimes))
    hits, rules = [], []
    for noise in regimes:
        for row in noise.factors(rng, each, 166):
            row[0] += 5
            row[1:3] += 0.1
            row[3] += 8
            num_steps, rule = steps_until_stop(row, STANDARD)
            rules.append(rule)
            interval = read_visit(row[:num_steps], 1, tolerance(STANDARD)).step_s
            if interval is not None:
                point = pooled([interval])
                hits.append(point.lo <= noise.long_run_factor <= point.hi)
    assert len(hits) > 0.98 * each * len(regimes)
    assert np.mean(hits) >= 0.93
    assert rules.count("settled") > 0.9 * len(rules)


def test_a_quiet_visit_stops_at_its_least_steps() -> None:
    row = StepNoise(cv=0.004).factors(np.random.default_rng(1), 1, 60)[0]
    assert steps_until_stop(row, STANDARD) == (24, "settled")


def test_steps_longer_than_foreseen_get_a_reading_within_four_caps() -> None:
    budget = Budget(min_steps=20, max_steps=40, max_s=10.0, target_frac=0.05)
    slow = [2.6, 2.61, 2.59, 2.6, 2.58, 2.6, 2.61, 2.6, 2.59, 2.6, 2.6, 2.61, 2.6]
    assert not decide(slow[:4], budget, 8).stop
    read = decide(slow, budget, 8)
    assert (read.stop, read.rule) == (True, "cap")
    assert "steady steps" in read.reason
    slower = decide([11.0] * 4, budget, 8)
    assert (slower.stop, slower.rule) == (True, "cap")
    assert "at least 8 are needed" in slower.reason


def test_the_caps_hold_and_say_what_was_missing() -> None:
    row = StepNoise(cv=0.2, phi=0.0).factors(np.random.default_rng(2), 1, 60)[0]
    by_steps = decide(row[:40], Budget(max_steps=40, target_frac=0.01), 1)
    assert (by_steps.stop, by_steps.rule) == (True, "cap")
    assert "steady steps" in by_steps.reason
    by_time = decide(row[:30], Budget(max_steps=60, max_s=20.0, target_frac=0.01), 1)
    assert (by_time.stop, by_time.rule) == (True, "cap")
    ramp = decide(np.linspace(2, 1, 40), Budget(max_steps=40), 1)
    assert ramp.rule == "cap"
    assert "still" in ramp.reason


def test_a_clearly_slower_visit_is_raced_out_early() -> None:
    budget = Budget(max_steps=160, target_frac=0.005, incumbent_samples_per_s=1.0)
    rows = StepNoise(cv=0.006, phi=0.3).factors(np.random.default_rng(3), 50, 166) * 1.3
    ends = [steps_until_stop(row, budget) for row in rows]
    assert [rule for _, rule in ends].count("raced") >= 49
    assert np.median([num_steps for num_steps, _ in ends]) <= 18


@pytest.mark.parametrize("slower_frac", [0.0, 0.01, 0.02])
def test_an_equal_or_nearly_equal_visit_is_hardly_ever_raced_out(slower_frac: float) -> None:
    budget = Budget(max_steps=60, target_frac=0.005, incumbent_samples_per_s=1.0)
    noise = StepNoise(cv=0.012, phi=0.3, between_frac=0.003)
    rows = noise.factors(np.random.default_rng(4), 300, 60) * (1 + slower_frac)
    raced = [steps_until_stop(row, budget)[1] == "raced" for row in rows]
    assert np.mean(raced) <= 0.01


def test_a_visit_that_its_cap_would_not_settle_ends_early() -> None:
    budget = Budget(min_steps=20, max_steps=200, max_s=1e9, target_frac=0.01)
    rows = StepNoise(cv=0.25, phi=0.5).factors(np.random.default_rng(7), 40, 200)
    ends = [steps_until_stop(row, budget) for row in rows]
    assert {rule for _, rule in ends} == {"cap"}
    assert np.median([num_steps for num_steps, _ in ends]) <= 100
    hopeful = StepNoise(cv=0.03, phi=0.2).factors(np.random.default_rng(8), 40, 200)
    assert [steps_until_stop(row, budget)[1] for row in hopeful].count("settled") >= 38
