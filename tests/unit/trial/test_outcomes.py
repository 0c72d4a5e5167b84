"""Single ranks' errors and numbers as one outcome that names the first of them."""

import gc
import math
import weakref

import pytest

from lf_ray.errors import CaptureError, ConfigError, DataError, MachineError
from lf_ray.protocol import OutcomeKind, StepSample
from lf_ray.testing.sessions import OutOfMemoryError
from lf_ray.trial.faults.outcomes import (
    ErrorReport,
    divergence,
    error_kind,
    error_report,
    first_error,
    lost,
    outcome_of_errors,
)


def report(rank: int, kind: str = "exception", wall_s: float = 1.0) -> ErrorReport:
    return ErrorReport(
        rank=rank, phase="steps", kind=kind, text=f"text {rank}", where="a.py:1", wall_s=wall_s
    )


def sample(rank: int, step: int, loss: float = 1.0, grad_norm: float = 1.0) -> StepSample:
    return StepSample(
        step=step,
        rank=rank,
        wall_s=0.1,
        device_s=0.1,
        loss=loss,
        grad_norm=grad_norm,
        wait_s=0.0,
        phases_s={},
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "oom"),
        (RuntimeError("NCCL error: ncclUnhandledCudaError: 'out of memory'"), "oom"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "oom"),
        (MemoryError(), "host_memory"),
        (CaptureError("c"), "capture"),
        (ConfigError("c"), "settings"),
        (MachineError("m"), "machine"),
        (RuntimeError("Connection closed by peer [127.0.0.1]:1"), "peer_lost"),
        (RuntimeError("NCCL communicator was aborted on rank 1"), "peer_lost"),
        (
            RuntimeError("Failed to recv, got 0 bytes. Connection was likely closed. Did the"),
            "peer_lost",
        ),
        (
            RuntimeError("ncclRemoteError: remote process exited or there was a network error"),
            "peer_lost",
        ),
        (
            RuntimeError(
                "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7"
            ),
            "hang",
        ),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "exception"),
        (DataError("tail: connection reset by peer"), "exception"),
        (ZeroDivisionError("division by zero"), "exception"),
    ],
)
def test_errors_are_told_apart(error: Exception, kind: str) -> None:
    assert error_kind(error) == kind


def test_a_report_names_the_innermost_place_of_ours() -> None:
    def deep() -> None:
        raise ValueError("boom\nand more")

    with pytest.raises(ValueError, match="boom") as caught:
        deep()
    told = error_report(caught.value, rank=3, phase="build", wall_s=5.0)
    assert "in deep" in told.where
    assert told.line.startswith("rank 3, build: ValueError: boom and more at ")


def test_a_report_lets_go_of_what_the_frames_held() -> None:
    class Tensor:
        pass

    def allocate() -> None:
        tensor = Tensor()
        seen.append(weakref.ref(tensor))
        raise OutOfMemoryError("too much")

    seen: list[weakref.ref[Tensor]] = []
    try:
        allocate()
    except OutOfMemoryError as error:
        error_report(error, rank=0, phase="build", wall_s=0.0)
        gc.collect()
        assert seen[0]() is None


def test_the_first_error_is_the_earliest_of_those_that_explain() -> None:
    reports = [report(0, "peer_lost", 1.0), report(2, wall_s=3.0), report(1, wall_s=2.0)]
    assert first_error(reports).rank == 1


@pytest.mark.parametrize("num_reports", [1, 2])
@pytest.mark.parametrize("communicated", [True, False])
@pytest.mark.parametrize(
    ("kind", "infeasible"), [("oom", True), ("host_memory", True), ("exception", False)]
)
def test_memory_is_an_answer_and_costs_the_group_only_in_communication(
    kind: str, infeasible: bool, communicated: bool, num_reports: int
) -> None:
    reports = [report(rank, kind) for rank in range(num_reports)]
    outcome = outcome_of_errors(reports, num_ranks=2, communicated=communicated)
    assert (outcome.kind is OutcomeKind.INFEASIBLE) is infeasible
    assert outcome.group_lost is (communicated or not infeasible)
    assert outcome.rank == 0


@pytest.mark.parametrize(("num_reports", "lost_group"), [(2, False), (1, True)])
def test_a_refusal_keeps_the_group_only_if_all_ranks_refuse(
    num_reports: int, lost_group: bool
) -> None:
    reports = [report(rank, "machine") for rank in range(num_reports)]
    outcome = outcome_of_errors(reports, num_ranks=2, communicated=False)
    assert outcome.kind is OutcomeKind.INFEASIBLE
    assert outcome.error_kind == "settings"
    assert outcome.group_lost is lost_group


def test_ranks_that_only_saw_a_peer_go_make_a_lost_worker() -> None:
    outcome = outcome_of_errors([report(0, "peer_lost")], num_ranks=2, communicated=True)
    assert outcome.error_kind == "worker_lost"
    assert outcome.group_lost


def test_long_texts_become_one_short_line() -> None:
    outcome = lost("worker_lost", "first line\n" + "x" * 5000)
    assert "\n" not in outcome.reason
    assert len(outcome.reason) < 500


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_rank_with_the_bad_loss_is_named_before_those_that_received_it(value: float) -> None:
    samples = {
        0: [sample(0, 0), sample(0, 1, grad_norm=math.nan)],
        1: [sample(1, 0), sample(1, 1, loss=value, grad_norm=math.nan)],
    }
    outcome = divergence(samples)
    assert outcome is not None
    assert (outcome.kind, outcome.rank) == (OutcomeKind.FAILED, 1)
    assert "on rank 1 in step 1" in outcome.reason
    assert not outcome.group_lost


def test_the_earliest_step_is_named() -> None:
    samples = {
        0: [sample(0, 4, grad_norm=math.inf), sample(0, 5, loss=math.nan)],
        1: [sample(1, 4), sample(1, 5)],
    }
    outcome = divergence(samples)
    assert outcome is not None
    assert "grad norm is inf on rank 0 in step 4" in outcome.reason


def test_finite_numbers_do_not_diverge() -> None:
    assert divergence({0: [sample(0, 0)], 1: [sample(1, 0)]}) is None


def test_reports_survive_the_wire() -> None:
    told = report(1, "oom")
    assert ErrorReport.from_json(told.to_json()) == told
