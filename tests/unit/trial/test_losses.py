"""Signs of a lost group, and which of them is its first cause."""

import threading

import pytest

from lf_ray.protocol import OutcomeKind
from lf_ray.trial.faults.deadlines import Progress, Standing, hang, standing
from lf_ray.trial.faults.losses import Graces, Signs, loss_of
from lf_ray.trial.faults.outcomes import ErrorReport, lost


def fault(rank: int, kind: str = "exception", wall_s: float = 1.0) -> ErrorReport:
    return ErrorReport(
        rank=rank, phase="steps", kind=kind, text=f"of {rank}", where="", wall_s=wall_s
    )


def at(rank: int, *, waiting: bool) -> Standing:
    return Standing(rank=rank, phase="steps", where=f"file.py:{rank} in f", waiting=waiting)


GRACES = Graces()
PROGRESS = {rank: Progress(phase="steps", limit_s=30.0, since_s=0.0) for rank in (0, 1)}
LATE_S = 30.0 + GRACES.late_s + 0.1


def test_no_sign_is_no_loss() -> None:
    assert loss_of(Signs(num_ranks=2, now_s=5.0, processes={0: "running", 1: "running"})) is None


def test_an_agreed_outcome_tells_most() -> None:
    agreed = lost("exception", "agreed", 1)
    signs = Signs(num_ranks=2, now_s=5.0, agreed=agreed, gone=[0], first_s=0.0)
    assert loss_of(signs) is agreed


def test_a_rank_s_own_error_waits_for_the_gate() -> None:
    def at_time(now_s: float) -> Signs:
        return Signs(num_ranks=2, now_s=now_s, faults=[fault(1)], first_s=0.0)

    assert loss_of(at_time(GRACES.fault_s - 0.1)) is None
    loss = loss_of(at_time(GRACES.fault_s + 0.1))
    assert loss is not None
    assert (loss.error_kind, loss.rank, loss.group_lost) == ("exception", 1, True)


def test_an_own_error_explains_a_peer_s_end_told_before_it() -> None:
    faults = [fault(0, "peer_lost", 1.0), fault(1, "exception", 2.0)]
    loss = loss_of(Signs(num_ranks=2, now_s=9.0, faults=faults, first_s=0.0))
    assert loss is not None
    assert (loss.error_kind, loss.rank) == ("exception", 1)


def test_out_of_memory_of_one_rank_stays_an_answer() -> None:
    loss = loss_of(Signs(num_ranks=2, now_s=9.0, faults=[fault(1, "oom")], first_s=0.0))
    assert loss is not None
    assert loss.kind is OutcomeKind.INFEASIBLE
    assert loss.group_lost


def test_a_process_that_is_gone_waits_for_ray_to_say_why() -> None:
    early = Signs(num_ranks=2, now_s=GRACES.gone_s - 0.1, gone=[1], first_s=0.0)
    assert loss_of(early) is None
    memory = lost("host_memory", "node running low on memory", 1)
    told = Signs(num_ranks=2, now_s=0.5, gone=[1], first_s=0.0, ended=memory)
    loss = loss_of(told)
    assert loss is not None
    assert loss.kind is OutcomeKind.INFEASIBLE
    assert "low on memory" in loss.reason
    silent = Signs(num_ranks=2, now_s=GRACES.gone_s + 0.1, gone=[1], first_s=0.0)
    loss = loss_of(silent)
    assert loss is not None
    assert (loss.error_kind, loss.rank) == ("worker_lost", 1)


@pytest.mark.parametrize("gone", [[1], [0, 1]])
def test_the_rank_that_could_still_tell_was_not_the_first_to_go(gone: list[int]) -> None:
    faults = [fault(0, "peer_lost")]
    loss = loss_of(Signs(num_ranks=2, now_s=9.0, faults=faults, gone=gone, first_s=0.0))
    assert loss is not None
    assert loss.rank == 1
    assert "rank 1 is gone" in loss.reason


@pytest.mark.parametrize("told", [None, 0, 1])
def test_train_ends_the_others_before_it_speaks(told: int | None) -> None:
    ended = lost("worker_lost", "A worker health check failed", told)
    loss = loss_of(Signs(num_ranks=2, now_s=0.7, gone=[0, 1], first_s=0.0, ended=ended))
    assert loss is not None
    assert loss.rank == 0
    assert "the process of rank 0 is gone; A worker health check" in loss.reason


def test_a_worker_s_own_error_is_not_blamed_on_a_process() -> None:
    ended = lost("exception", "AttributeError: x", 1)
    assert loss_of(Signs(num_ranks=2, now_s=0.7, gone=[0, 1], ended=ended)) is ended


def test_ranks_that_only_saw_a_peer_go_are_believed_in_the_end() -> None:
    signs = Signs(
        num_ranks=2,
        now_s=9.0,
        faults=[fault(0, "peer_lost")],
        processes={0: "unknown", 1: "unknown"},
        first_s=0.0,
    )
    loss = loss_of(signs)
    assert loss is not None
    assert loss.error_kind == "worker_lost"


def test_a_deadline_has_its_grace() -> None:
    assert loss_of(Signs(num_ranks=2, now_s=LATE_S - 0.2, progress=PROGRESS)) is None
    assert loss_of(Signs(num_ranks=2, now_s=LATE_S, progress=PROGRESS)) is not None


@pytest.mark.parametrize(
    ("standings", "processes", "text"),
    [
        ([at(0, waiting=True), at(1, waiting=False)], {}, "it stands at file.py:1"),
        ([at(0, waiting=True)], {}, "it does not answer"),
        ([at(0, waiting=False)], {1: "stopped"}, "its process is stopped"),
        ([at(0, waiting=False)], {1: "gone"}, "its process is gone"),
    ],
)
def test_the_rank_that_keeps_the_others_is_named(
    standings: list[Standing], processes: dict[int, str], text: str
) -> None:
    loss = hang(PROGRESS, {item.rank: item for item in standings}, processes, LATE_S)
    assert loss is not None
    assert loss.rank == 1
    assert text in loss.reason
    assert "late with it: rank 0" in loss.reason


def test_one_late_rank_alone_is_named_with_its_phase() -> None:
    progress = {0: Progress(phase="build", limit_s=5.0, since_s=90.0)}
    loss = hang(progress, {0: at(0, waiting=True)}, {}, 97.0)
    assert loss is not None
    assert "rank 0 is in phase 'build' for 7 s (limit 5 s), waiting at" in loss.reason


@pytest.mark.parametrize("waiting", [True, False])
def test_a_thread_in_a_collective_is_seen_as_waiting(waiting: bool) -> None:
    held, ready = threading.Event(), threading.Event()

    def all_reduce() -> None:
        ready.set()
        held.wait(10.0)

    def decode() -> None:
        ready.set()
        held.wait(10.0)

    def step() -> None:
        if waiting:
            all_reduce()
        else:
            decode()

    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    assert ready.wait(10.0)
    assert thread.ident is not None
    told = standing(1, "steps", thread.ident)
    held.set()
    thread.join(10.0)
    assert told.waiting is waiting
    assert "test_losses.py" in told.where
