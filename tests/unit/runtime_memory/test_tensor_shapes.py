"""analyze_tensor_shapes without a GPU: what is followed, counted and proposed."""

import pytest
import torch

from lf_ray.errors import ConfigError
from lf_ray.runtime.memory import analyze_tensor_shapes, parse_ladder
from lf_ray.runtime.memory.analysis import followed_tensors, size_class
from lf_ray.runtime.memory.segments import MIB

CPU = torch.device("cpu")


def test_tensors_are_counted_with_their_sizes_and_ends() -> None:
    source = torch.ones(1024)
    with followed_tensors() as followed:
        first = source * 2
        view = first.view(32, 32)
        second = view + 1
        del first, second
        kept_alive = len(followed.events)
        del view
    begins = [event.num_bytes for event in followed.events if event.takes]
    assert begins == [4096, 4096]
    assert kept_alive == 3  # the view holds the first tensor's memory
    assert len(followed.events) == 4


def test_backward_is_followed_too() -> None:
    weight = torch.ones(64, 64, requires_grad=True)

    def step() -> None:
        weight.grad = None
        (weight @ weight).sum().backward()  # type: ignore[no-untyped-call]

    analysis = analyze_tensor_shapes(step, num_steps=3, device=CPU)
    assert analysis.source == "modelled allocator"
    assert analysis.num_steps == 3
    # forward's product and backward's two products and their sum, at least, in every step
    assert analysis.histogram[size_class(64 * 64 * 4)] >= 9
    assert analysis.bytes_histogram["16 KiB"] == analysis.histogram["16 KiB"] * 16384


def test_a_steady_step_takes_no_segment_after_its_first_pass() -> None:
    def step() -> None:
        torch.ones(3 * MIB // 4) * 2

    once = analyze_tensor_shapes(step, num_steps=1, device=CPU)
    often = analyze_tensor_shapes(step, num_steps=5, device=CPU)
    assert once.segments == often.segments == {20 * MIB: 1}


def test_the_proposal_is_a_ladder_with_its_predicted_fallback() -> None:
    analysis = analyze_tensor_shapes(lambda: torch.ones(1000), num_steps=2, device=CPU)
    assert parse_ladder(analysis.ladder_name) == analysis.ladder
    assert analysis.predicted_fallback_frac == 0.0
    tiny = analysis.predict([0.001])
    assert tiny.fallback_frac == 1.0


def test_no_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_steps"):
        analyze_tensor_shapes(lambda: None, num_steps=0, device=CPU)


@pytest.mark.parametrize(
    ("num_bytes", "name"),
    [(1, "512 B"), (512, "512 B"), (513, "1 KiB"), (2 * MIB, "2 MiB"), (2**31 + 1, "4 GiB")],
)
def test_size_classes_are_powers_of_two(num_bytes: int, name: str) -> None:
    assert size_class(num_bytes) == name
