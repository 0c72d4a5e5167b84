"""A flat buffer's copy on the host gives back what it took, whole or any stretch of it."""

import pytest
import torch

from lf_ray.runtime.host_copy import HostCopy

CPU = torch.device("cpu")
LENGTH = 3_000_001


@pytest.fixture(scope="module")
def values() -> torch.Tensor:
    return torch.arange(LENGTH, dtype=torch.float32)


@pytest.mark.parametrize(
    ("first", "length"), [(0, LENGTH), (0, 1), (LENGTH - 1, 1), (1023, 2), (7, 0)]
)
def test_any_stretch_comes_back(values: torch.Tensor, first: int, length: int) -> None:
    kept = HostCopy(LENGTH, CPU)
    kept.take(values)
    back = torch.zeros(length)
    kept.give(back, first)
    assert torch.equal(back, values[first : first + length])


def test_later_changes_of_the_values_are_not_seen(values: torch.Tensor) -> None:
    own = values.clone()
    kept = HostCopy(LENGTH, CPU)
    kept.take(own)
    own.zero_()
    back = torch.zeros(4)
    kept.give(back, 10)
    assert back.tolist() == [10, 11, 12, 13]


def test_room_may_be_larger_than_what_it_takes(values: torch.Tensor) -> None:
    kept = HostCopy(LENGTH + 5000, CPU)
    kept.take(values)
    back = torch.zeros_like(values)
    kept.give(back)
    assert torch.equal(back, values)


def test_room_for_nothing_is_no_error() -> None:
    kept = HostCopy(0, CPU)
    kept.take(torch.zeros(0))
    kept.give(torch.zeros(0))
