"""What every worker group must do, whether its ranks are threads or Ray's workers.

A test class inherits one of the contracts and brings a fixture `group`: an owner with two fake
ranks and the faults of `planned_faults`, reached through `submit` and `state`. Faults are tied to
request ids, so one group serves all cases.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from lf_ray.protocol import (
    Budget,
    Deadlines,
    OutcomeKind,
    Purpose,
    TrialRecord,
    TrialRequest,
)
from lf_ray.settings import SweepConfig, knobs_of
from lf_ray.testing.sessions import Fault

KNOBS = knobs_of(SweepConfig())


class SubmittingGroup(Protocol):
    """A group as its contract sees it.

    Attributes:
        step_s: deadline of a step; a slow first batch takes three times as long.
        kept_within_s: from the end of a trial that left the group as it was to the next one's
            first step; `replaced_within_s`: where the group was replaced. Generous: a quiet
            machine takes 2 s and 30 s at most.
    """

    step_s: float
    kept_within_s: float
    replaced_within_s: float

    def submit(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Runs a request and returns its record."""
        ...

    def state(self) -> dict[str, Any]:
        """Returns the owner's state."""
        ...


def planned_faults(marks: Path, step_s: float) -> tuple[Fault, ...]:
    """Returns the faults of the contracts' requests; `marks` keeps which have happened."""
    slow_s = 3 * step_s

    def once(name: str) -> str:
        return str(marks / name)

    one = (1,)
    return (
        *out_of_memory_faults(),
        Fault(request="nan", kind="nan", phase="step", ranks=one, step=6),
        Fault(request="slow_batch", kind="sleep", phase="rehearsal", ranks=one, seconds=slow_s),
        Fault(request="gate", kind="gate", phase="gate"),
        Fault(request="disagree", kind="disagree", phase="build", ranks=one),
        Fault(request="mismatch", kind="mismatch", phase="build", ranks=one),
        Fault(request="refused", kind="settings", phase="build"),
        Fault(request="raises", kind="exception", phase="step", ranks=one, step=5),
        Fault(
            request="raises_once",
            kind="exception",
            phase="step",
            ranks=one,
            step=5,
            once=once("raises"),
        ),
        Fault(request="capture", kind="capture", phase="capture"),
        Fault(
            request="killed",
            kind="sigkill",
            phase="step",
            ranks=one,
            step=5,
            once=once("killed"),
        ),
        Fault(
            request="killed_meeting",
            kind="sigkill",
            phase="collective",
            ranks=one,
            step=5,
            once=once("meeting"),
        ),
        Fault(request="stopped", kind="sigstop", phase="step", ranks=one, step=5),
        Fault(request="hung", kind="sleep", phase="step", ranks=one, step=5, seconds=3600),
        Fault(request="leaks", kind="exception", phase="reset", ranks=one, once=once("leaks")),
        Fault(request="news", kind="news", phase="memory", ranks=one),
        Fault(request="short", kind="short", phase="step", ranks=one, step=5),
    )


GATES_OF_MEMORY: Mapping[str, tuple[str, int]] = {
    "build": ("build", 0),
    "rehearsal": ("rehearsal", 0),
    "first_step": ("step", 0),
    "capture": ("capture", 0),
    "late": ("step", 25),
}
"""Where memory runs out: a phase of the session and a step. In the first two nothing is sent."""


def out_of_memory_faults(num_ranks: int = 2) -> tuple[Fault, ...]:
    """Returns a fault for each gate, on all ranks (`oom_GATE_all`) and on rank 1 (`.._one`)."""
    return tuple(
        Fault(request=f"oom_{gate}_{who}", kind="oom", phase=phase, ranks=ranks, step=step)
        for gate, (phase, step) in GATES_OF_MEMORY.items()
        for who, ranks in (("all", tuple(range(num_ranks))), ("one", (1,)))
    )


def request(name: str, step_s: float = 2.0, **changes: Any) -> dict[str, Any]:
    """Returns a request with tight deadlines; `knobs` among the changes are laid over defaults."""
    knobs = {**KNOBS, **changes.pop("knobs", {})}
    values: dict[str, Any] = {
        "id": name,
        "knobs": knobs,
        "seed": 0,
        "purpose": Purpose.SEARCH,
        "budget": Budget(min_steps=20, max_steps=40),
        "deadlines": Deadlines(start_s=90, first_batch_s=20, capture_s=10, step_s=step_s),
    }
    return TrialRequest(**{**values, **changes}).to_json()


class WarmContract:
    """Cases in which the group stays as it is."""

    def test_a_trial_is_measured(self, group: SubmittingGroup) -> None:
        """Steps are timed, settled, and the clocks of a record are in order."""
        record = submitted(group, "plain")
        assert record.outcome.kind is OutcomeKind.COMPLETED
        assert record.outcome.stop_rule == "settled"
        assert record.throughput_samples_per_s is not None
        assert record.trace is not None
        assert len(record.trace.wall_s) == len(record.trace.loss) == len(record.trace.lr)
        assert record.gate is not None
        assert record.gate.passed
        assert record.outcome.effective["num_buckets"] == 2
        assert record.memory_bytes["allocated"] == 101.0
        order = [record.clock_s[n] for n in ("requested", "first_step", "last_step", "finished")]
        assert order == sorted(order)

    def test_the_next_one_finds_the_group_warm(self, group: SubmittingGroup) -> None:
        """Same processes, weights restored: the same losses, and nothing is started."""
        first, second = submitted(group, "warm1"), submitted(group, "warm2")
        assert first.trace is not None
        assert second.trace is not None
        length = min(len(first.trace.loss), len(second.trace.loss))
        assert first.trace.loss[:length] == second.trace.loss[:length]
        assert second.outcome.costs_s["restart"] == 0.0
        assert incarnation(second) == incarnation(first)

    def test_out_of_memory_in_build(self, group: SubmittingGroup) -> None:
        """Before communication it is an answer, and the group stays."""
        check_out_of_memory(group, "build", is_replaced=False)

    def test_out_of_memory_in_the_rehearsal(self, group: SubmittingGroup) -> None:
        """The other ranks hear of it at the gate; nobody hangs, and the group stays."""
        check_out_of_memory(group, "rehearsal", is_replaced=False)

    def test_divergence_names_the_rank(self, group: SubmittingGroup) -> None:
        """A NaN on a rank other than 0 ends the trial; another run would repeat it."""
        record = submitted(group, "nan")
        assert record.outcome.kind is OutcomeKind.FAILED
        assert (record.outcome.error_kind, record.outcome.rank) == ("diverged", 1)
        assert "step 6" in record.outcome.reason
        assert record.metrics["attempts"] == 1.0
        assert record.throughput_samples_per_s is None
        assert submitted(group, "after").outcome.kind is OutcomeKind.COMPLETED

    def test_a_slow_first_batch_is_no_hang(self, group: SubmittingGroup) -> None:
        """A wait before the first step passes the deadline of a step, and is charged apart."""
        record = submitted(group, "slow_batch")
        assert record.outcome.kind is OutcomeKind.COMPLETED
        assert record.metrics["attempts"] == 1.0
        assert record.outcome.costs_s["prepare"] > 2.9 * group.step_s

    def test_what_a_rank_got_over_is_told(self, group: SubmittingGroup) -> None:
        """The trial counts, and its record says what happened on which rank."""
        record = submitted(group, "news")
        assert record.outcome.kind is OutcomeKind.COMPLETED
        assert record.outcome.reason == "rank 1: a fake process was replaced"

    def test_other_numbers_are_invalid(self, group: SubmittingGroup) -> None:
        """The gate's verdict and the step that differs are in the reason."""
        record = submitted(group, "gate")
        assert record.outcome.kind is OutcomeKind.INVALID
        assert record.outcome.error_kind == "gate"
        assert "loss differs in step 1" in record.outcome.reason

    def test_ranks_with_other_settings_are_invalid(self, group: SubmittingGroup) -> None:
        """The setting, both values and the rank are named."""
        record = submitted(group, "disagree")
        assert record.outcome.kind is OutcomeKind.INVALID
        assert record.outcome.rank == 1
        assert "odd True != False" in record.outcome.reason

    def test_settings_that_are_not_in_force_are_invalid(self, group: SubmittingGroup) -> None:
        """What was asked and what was found are told, with the rank."""
        record = submitted(group, "mismatch")
        assert record.outcome.kind is OutcomeKind.INVALID
        assert (record.outcome.error_kind, record.outcome.rank) == ("settings", 1)
        assert "nccl_algo is tree, asked ring" in record.outcome.reason

    def test_refused_knobs_are_infeasible(self, group: SubmittingGroup) -> None:
        """All ranks refuse alike, so the group stays."""
        before = submitted(group, "before")
        record = submitted(group, "refused")
        assert record.outcome.kind is OutcomeKind.INFEASIBLE
        assert record.outcome.error_kind == "settings"
        assert incarnation(submitted(group, "after")) == incarnation(before)


class LostWorkerContract:
    """The commonest loss: a worker's process goes away in a step."""

    def test_a_killed_worker_is_replaced(self, group: SubmittingGroup) -> None:
        """The trial is run once more; its record says which rank was lost, and when."""
        before = submitted(group, "before")
        record = submitted(group, "killed")
        assert record.outcome.kind is OutcomeKind.COMPLETED
        assert record.metrics["attempts"] == 2.0
        assert "failed: the process of rank 1 is gone" in record.outcome.reason
        assert incarnation(record) == incarnation(before) + 1
        seconds = record.clock_s["first_step"] - record.clock_s["lost"]
        assert seconds > 0.0
        tell_seconds("worker killed in a step", seconds, group.replaced_within_s)


class ReplacedContract:
    """Cases in which the group can't be trusted any more."""

    def test_a_worker_killed_in_a_collective(self, group: SubmittingGroup) -> None:
        """The rank is named although it is the other one that sees a closed connection."""
        record = submitted(group, "killed_meeting")
        assert record.outcome.kind is OutcomeKind.COMPLETED
        assert "failed: the process of rank 1 is gone" in record.outcome.reason

    def test_an_error_on_one_rank(self, group: SubmittingGroup) -> None:
        """Tried twice; the record has the first error, its rank and its place."""
        record = submitted(group, "raises")
        assert record.outcome.kind is OutcomeKind.FAILED
        assert (record.outcome.error_kind, record.outcome.rank) == ("exception", 1)
        assert "planned exception in step" in record.outcome.reason
        assert "sessions.py" in record.outcome.reason
        assert record.metrics["attempts"] == 2.0
        assert submitted(group, "after").outcome.kind is OutcomeKind.COMPLETED

    def test_an_error_that_passes(self, group: SubmittingGroup) -> None:
        """The second attempt is the record's; the first one is told."""
        record = submitted(group, "raises_once")
        assert record.outcome.kind is OutcomeKind.COMPLETED
        assert "[attempt 1: failed: rank 1, steps" in record.outcome.reason

    def test_out_of_memory_in_the_first_step(self, group: SubmittingGroup) -> None:
        """In the middle of communication: still an answer, but the group is replaced."""
        check_out_of_memory(group, "first_step", is_replaced=True)

    def test_out_of_memory_in_capture(self, group: SubmittingGroup) -> None:
        """A capture that failed poisons the process, whatever the reason."""
        check_out_of_memory(group, "capture", is_replaced=True)

    def test_late_out_of_memory(self, group: SubmittingGroup) -> None:
        """Who has sent what is unknown, on one rank and on all."""
        check_out_of_memory(group, "late", is_replaced=True)

    def test_a_failed_capture(self, group: SubmittingGroup) -> None:
        """It would fail again, so it is not retried; the process is poisoned."""
        before = submitted(group, "before")
        record = submitted(group, "capture")
        assert record.outcome.kind is OutcomeKind.FAILED
        assert record.outcome.error_kind == "capture"
        assert record.metrics["attempts"] == 1.0
        assert incarnation(submitted(group, "after")) == incarnation(before) + 1

    def test_a_stopped_worker_is_a_hang(self, group: SubmittingGroup) -> None:
        """The deadline names the stopped rank, not the one that waits for it."""
        record = submitted(group, "stopped")
        assert record.outcome.kind is OutcomeKind.FAILED
        assert (record.outcome.error_kind, record.outcome.rank) == ("hang", 1)
        assert "its process is stopped" in record.outcome.reason
        assert submitted(group, "after").outcome.kind is OutcomeKind.COMPLETED

    def test_a_rank_that_does_not_come(self, group: SubmittingGroup) -> None:
        """Both ranks are late; the one outside the collective is named, with its place."""
        record = submitted(group, "hung")
        assert (record.outcome.error_kind, record.outcome.rank) == ("hang", 1)
        assert "it stands at" in record.outcome.reason
        assert submitted(group, "after").outcome.kind is OutcomeKind.COMPLETED

    def test_a_leak_found_by_the_reset(self, group: SubmittingGroup) -> None:
        """The trial itself counts; the next one runs on a new group and tells why."""
        before = submitted(group, "leaks")
        assert before.outcome.kind is OutcomeKind.COMPLETED
        after = submitted(group, "after")
        assert after.outcome.kind is OutcomeKind.COMPLETED
        assert "resetting: failed: rank 1, reset" in after.outcome.reason
        assert incarnation(after) == incarnation(before) + 1

    def test_a_step_too_few(self, group: SubmittingGroup) -> None:
        """Work that was not done is no measurement."""
        record = submitted(group, "short")
        assert record.outcome.kind is OutcomeKind.FAILED
        assert "rank 1 ran" in record.outcome.reason

    def test_a_restart_knob(self, group: SubmittingGroup) -> None:
        """A knob that workers read at their start gets a new group, and is no failure."""
        before = submitted(group, "before")
        record = submitted(group, "restart", knobs={"nccl.algo": "ring"})
        assert record.outcome.kind is OutcomeKind.COMPLETED
        assert record.outcome.reason == ""
        assert record.outcome.costs_s["restart"] > 0.0
        assert incarnation(record) == incarnation(before) + 1


def check_out_of_memory(group: SubmittingGroup, gate: str, *, is_replaced: bool) -> None:
    """Runs out of memory at a gate, on all ranks and on one; tells when the next trial measured."""
    within_s = group.replaced_within_s if is_replaced else group.kept_within_s
    for who in ("all", "one"):
        before = submitted(group, "before")
        record = submitted(group, f"oom_{gate}_{who}")
        assert record.outcome.kind is OutcomeKind.INFEASIBLE
        assert record.outcome.error_kind == "oom"
        assert record.outcome.group_lost is is_replaced
        if who == "one":
            assert record.outcome.rank == 1
        elif not is_replaced:
            assert "2 of 2 ranks" in record.outcome.reason
        assert record.metrics["attempts"] == 1.0
        after = submitted(group, "after")
        assert after.outcome.kind is OutcomeKind.COMPLETED
        assert incarnation(after) == incarnation(before) + is_replaced
        seconds = after.clock_s["first_step"] - record.clock_s["finished"]
        tell_seconds(f"out of memory, {gate}, {who}", seconds, within_s)


def tell_seconds(fault: str, seconds: float, within_s: float) -> None:
    """Writes one JSON line with the seconds from a fault to the next first step, and checks them.

    `pytest -s` or `-rP` shows the lines.
    """
    line = {"fault": fault, "next_first_step_s": round(seconds, 3), "n": 1, "bound_s": within_s}
    sys.stdout.write(json.dumps(line) + "\n")
    assert seconds < within_s, line


def submitted(group: SubmittingGroup, name: str, **changes: Any) -> TrialRecord:
    """Returns the record of a request."""
    return TrialRecord.from_json(group.submit(request(name, group.step_s, **changes)))


def incarnation(record: TrialRecord) -> int:
    """Returns the number of the group that a record comes from."""
    return int(record.metrics["incarnation"])
