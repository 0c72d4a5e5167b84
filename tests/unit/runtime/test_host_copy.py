"""A flat buffer's copy on the host gives back what it took, whole or any stretch of it."""

import pytest
import torch

from lf_ray.errors import MachineError
from lf_ray.runtime.host_copy import HostCopy
from lf_ray.runtime.rig import most_elements
from lf_ray.runtime.update.flat import FlatParameters
from lf_ray.testing.toy import ToyModel

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


def test_memory_that_is_not_to_be_had_is_said_when_the_room_is_used() -> None:
    kept = HostCopy(2**50, CPU)
    kept.wait()
    with pytest.raises(MachineError, match=r"4194304\.00 GiB a rank"):
        kept.take(torch.zeros(1))


def test_what_is_beyond_the_room_is_no_copy_of_its_end(values: torch.Tensor) -> None:
    kept = HostCopy(LENGTH, CPU)
    kept.take(values)
    with pytest.raises(AssertionError):
        kept.give(torch.zeros(3), LENGTH - 1)


def test_a_models_room_holds_its_flat_buffers_and_what_gets_no_gradient() -> None:
    model = ToyModel(24, 4, frozen_prefix=True)
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    used = FlatParameters([(name, item) for name, item in named if name != "unused"])
    assert used.grad_N.numel() < most_elements(model)
    assert FlatParameters(named).grad_N.numel() == most_elements(model)
