import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lf_ray.testing.sim.timeline import Task, run_lanes

SHARED = {("backward", "comm"): (0.5, 0.8)}


def test_lanes_without_contention_run_side_by_side() -> None:
    compute = [Task("backward", 3.0), Task("backward", 1.0)]
    assert run_lanes(compute, [Task("comm", 2.0, after=1)], {}) == pytest.approx(5.0)
    assert run_lanes(compute, [Task("comm", 0.5, after=1)], {}) == pytest.approx(4.0)


def test_contention_slows_both_lanes_while_both_are_busy() -> None:
    # 0.8 of the message takes one second; backward does half its work in it.
    end_s = run_lanes([Task("backward", 1.5)], [Task("comm", 0.8)], SHARED)
    assert end_s == pytest.approx(1.0 + 1.0)


def test_a_task_waits_for_the_other_lane() -> None:
    compute = [Task("backward", 1.0), Task("update", 1.0, after=1)]
    assert run_lanes(compute, [Task("comm", 2.0, after=1)], {}) == pytest.approx(4.0)


def test_lanes_that_wait_for_each_other_are_a_bug() -> None:
    with pytest.raises(AssertionError, match="wait for each other"):
        run_lanes([Task("a", 1.0, after=1)], [Task("b", 1.0, after=1)], {})


@settings(max_examples=50, deadline=None)
@given(
    works=st.lists(st.floats(0.01, 5), min_size=1, max_size=12),
    sends=st.lists(st.floats(0.01, 5), min_size=0, max_size=12),
)
def test_the_end_lies_between_full_overlap_and_none(works: list[float], sends: list[float]) -> None:
    compute = [Task("backward", item) for item in works]
    side = [Task("comm", item, after=min(i, len(works))) for i, item in enumerate(sends)]
    free = run_lanes(compute, side, {})
    contended = run_lanes(compute, side, SHARED)
    assert max(sum(works), sum(sends)) <= free + 1e-9
    assert free <= contended + 1e-9
    assert contended <= sum(works) + sum(sends) * (1 + 0.5 / 0.8)
