"""A flat buffer's copy on the host gives back what it took, whole or any stretch of it."""

import pytest
import torch

from lf_ray.runtime.host_copy import PART_ELEMENTS, HostCopy

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def values() -> torch.Tensor:
    return torch.arange(2 * PART_ELEMENTS + 5, dtype=torch.float32)


def test_whole(values: torch.Tensor) -> None:
    kept = HostCopy(len(values), CPU)
    kept.take(values)
    back_N = torch.zeros_like(values)
    kept.give(back_N)
    assert torch.equal(back_N, values)


@pytest.mark.parametrize(
    ("first", "length"),
    [
        (0, 1),
        (PART_ELEMENTS - 1, 2),
        (PART_ELEMENTS, PART_ELEMENTS),
        (3, 2 * PART_ELEMENTS),
        (2 * PART_ELEMENTS + 4, 1),
        (7, 0),
    ],
)
def test_stretch(values: torch.Tensor, first: int, length: int) -> None:
    kept = HostCopy(len(values), CPU)
    kept.take(values)
    back_N = torch.zeros(length)
    kept.give(back_N, first)
    assert torch.equal(back_N, values[first : first + length])


def test_later_changes_of_the_values_are_not_seen(values: torch.Tensor) -> None:
    own_N = values.clone()
    kept = HostCopy(len(own_N), CPU)
    kept.take(own_N)
    own_N.zero_()
    back_N = torch.zeros(4)
    kept.give(back_N, 10)
    assert back_N.tolist() == [10, 11, 12, 13]


def test_room_may_be_larger_than_what_it_takes(values: torch.Tensor) -> None:
    kept = HostCopy(len(values) + 3 * PART_ELEMENTS, CPU)
    kept.take(values)
    assert sum(part.numel() for part in kept.parts) == len(values) + 3 * PART_ELEMENTS
    back_N = torch.zeros_like(values)
    kept.give(back_N)
    assert torch.equal(back_N, values)
