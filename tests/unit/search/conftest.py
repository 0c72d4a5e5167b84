"""How the search tests make a sweep."""

from collections.abc import Callable
from typing import Any

import pytest

from lf_ray.clock import FakeClock
from lf_ray.protocol import TrialRecord, TrialRequest
from lf_ray.search.space import Literal
from lf_ray.testing.fake_sweep import DEFAULT_LITERAL, FakeSweep
from lf_ray.testing.objectives import KneeObjective


@pytest.fixture
def make_sweep() -> Callable[..., FakeSweep]:
    """Makes a sweep of ratio and bucket on the overlap model; all of it can be replaced."""

    def make(
        literal: Literal = DEFAULT_LITERAL,
        execute: Callable[[TrialRequest], TrialRecord] | None = None,
        **settings: Any,
    ) -> FakeSweep:
        clock = settings.pop("clock", None) or FakeClock()
        execute = execute or KneeObjective(clock=clock)
        return FakeSweep(execute, literal, clock=clock, **settings)

    return make
