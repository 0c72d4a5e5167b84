"""What Ray Train's error says of a lost group."""

import pytest
from ray.exceptions import OutOfMemoryError
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

from lf_ray.protocol import OutcomeKind
from lf_ray.trial.workers import _outcome_of

PEER = RuntimeError("Connection closed by peer [127.0.0.1]:29890")
DEAD = WorkerHealthCheckFailedError("A worker health check failed.", RuntimeError("it died"))

LOW = OutOfMemoryError("Task was killed due to the node running low on memory.")


@pytest.mark.parametrize(
    ("failures", "kind", "rank"),
    [
        ({1: DEAD}, "worker_lost", 1),
        ({0: PEER, 1: DEAD}, "worker_lost", 1),
        ({0: PEER, 1: PEER}, "worker_lost", None),
        ({0: PEER, 1: AttributeError("no attribute 'x'")}, "exception", 1),
        ({1: LOW}, "host_memory", 1),
    ],
)
def test_the_rank_that_explains_is_named(
    failures: dict[int, Exception], kind: str, rank: int | None
) -> None:
    outcome = _outcome_of(WorkerGroupError("lost", failures))
    assert (outcome.error_kind, outcome.rank) == (kind, rank)
    assert outcome.group_lost
    infeasible = kind == "host_memory"
    assert (outcome.kind is OutcomeKind.INFEASIBLE) is infeasible


def test_an_error_of_train_itself_is_a_lost_group() -> None:
    outcome = _outcome_of(ControllerError(RuntimeError("could not start")))
    assert (outcome.error_kind, outcome.rank) == ("worker_lost", None)
    assert "could not start" in outcome.reason
