"""A node that is late is waited for; one that has ended while it started is not."""

import pytest

from lf_ray.trial.cluster import _node_once_there


def asked(answers: list[object]) -> object:
    answer = answers.pop(0)
    if isinstance(answer, Exception):
        raise answer
    return answer


def test_a_late_node_is_waited_for() -> None:
    answers: list[object] = [RuntimeError("not yet"), RuntimeError("not yet"), {"node": 1}]
    assert _node_once_there(lambda name: asked(answers), lambda: False, "n") == {"node": 1}


def test_a_node_that_has_ended_is_told_at_once() -> None:
    answers: list[object] = [RuntimeError("not yet")] * 2
    lost = iter([False, True])
    with pytest.raises(TimeoutError, match="timed out: its raylet has ended"):
        _node_once_there(lambda name: asked(answers), lambda: next(lost), "n")
    assert answers == []
