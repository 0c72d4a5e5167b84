"""Faults at a chosen gate: the same cases on a GPU are in tests/gpu."""

import pytest

from lf_ray.protocol import TrialRequest
from lf_ray.testing.group_contract import GATES_OF_MEMORY, out_of_memory_faults, request
from lf_ray.testing.planned_session import PlannedSession
from lf_ray.testing.sessions import Body, FakeSession, Fault
from lf_ray.testing.sessions import OutOfMemoryError as FakeError


def run_out() -> None:
    raise FakeError("planned")


def steps_until_it_fails(name: str, rank: int) -> tuple[str, int]:
    """Goes through a visit's phases; returns where memory ran out and the steps before."""
    body = Body(meet=lambda value: None, sleep=lambda seconds: None)
    inner = FakeSession(rank=rank, world_size=2, body=body)
    session = PlannedSession(inner, rank, out_of_memory_faults(), {"oom": run_out})
    phase = "build"
    try:
        session.prepare(TrialRequest.from_json(request(name)))
        phase = "rehearsal"
        session.rehearse()
        phase = "step"
        session.run(1)
        phase = "capture"
        session.capture()
        phase = "step"
        session.run(20)
        session.run(20)
    except FakeError:
        return phase, inner.step
    return "none", inner.step


@pytest.mark.parametrize("gate", GATES_OF_MEMORY)
def test_it_runs_out_at_the_gate_and_in_the_step_that_were_chosen(gate: str) -> None:
    phase, step = GATES_OF_MEMORY[gate]
    ran = {"build": 0, "rehearsal": 0, "first_step": 0, "capture": 1, "late": 25}[gate]
    assert steps_until_it_fails(f"oom_{gate}_one", 1) == (phase, ran)
    assert steps_until_it_fails(f"oom_{gate}_one", 0) == ("none", 41)
    assert steps_until_it_fails(f"oom_{gate}_all", 0) == (phase, ran)
    assert step in (0, 25)


def test_the_steps_before_a_fault_that_passes_are_kept() -> None:
    body = Body(meet=lambda value: None, sleep=lambda seconds: None)
    inner = FakeSession(rank=1, world_size=2, body=body)
    seen: list[int] = []
    fault = Fault(request="late", kind="wait", phase="step", ranks=(1,), step=5)
    session = PlannedSession(inner, 1, [fault], {"wait": lambda: seen.append(inner.step)})
    session.prepare(TrialRequest.from_json(request("late")))
    samples = session.run(8) + session.run(4)
    assert seen == [5]
    assert [sample.step for sample in samples] == list(range(12))
