"""How long a trainable waits for its group's owner."""

import dataclasses
import math

from lf_ray.protocol import Budget, TrialRequest
from lf_ray.testing.group_contract import request
from lf_ray.trial.runner import longest_s


def asked(budget: Budget) -> TrialRequest:
    return dataclasses.replace(TrialRequest.from_json(request("t0")), budget=budget)


def test_the_wait_for_an_owner_outlasts_all_its_own_deadlines() -> None:
    longest = longest_s(asked(Budget(max_steps=40, max_s=60.0)))
    assert longest is not None
    limits = asked(Budget()).deadlines
    one_attempt_s = 3 * limits.first_batch_s + limits.capture_s + 40 * limits.step_s
    assert longest > 2 * one_attempt_s + 3 * 300.0


def test_steps_without_a_limit_have_no_longest_wait() -> None:
    """Their phases still have the owner's deadlines."""
    assert longest_s(asked(Budget(max_s=math.inf))) is None
