"""The bucket plan: neighbouring layers, whole tensors, the share nearest to the ratio."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lf_ray.errors import ConfigError
from lf_ray.protocol import GradientTensor
from lf_ray.runtime.bucket_plan import (
    ALIGN_ELEMENTS,
    MIB,
    bucket_plan,
    issued_during_backward,
    own_part,
    padded_elements,
    share_during_backward,
)
from lf_ray.settings import SHARING_RANKS

KIB_ELEMENTS = 256  # fp32 elements in a KiB


def _gradients(*layers: tuple[str, list[int]]) -> list[GradientTensor]:
    return [
        GradientTensor(name=f"{layer}.{index}", num_elements=kib * KIB_ELEMENTS, layer=layer)
        for layer, sizes in layers
        for index, kib in enumerate(sizes)
    ]


def _names(plan_buckets: object) -> list[list[str]]:
    return [list(bucket.names) for bucket in plan_buckets]  # type: ignore[attr-defined]


def test_buckets_hold_whole_neighbouring_layers_up_to_the_size() -> None:
    gradients = _gradients(("c", [300, 100]), ("b", [300, 100]), ("a", [300, 100]))
    plan = bucket_plan(gradients, 800 / 1024, "fp32")
    assert _names(plan.buckets) == [["c.0", "c.1", "b.0", "b.1"], ["a.0", "a.1"]]
    assert plan.split_layers == ()
    assert [bucket.num_bytes for bucket in plan.buckets] == [800 * 1024, 400 * 1024]


def test_layer_is_not_split_where_it_would_have_fitted_a_bucket_of_its_own() -> None:
    gradients = _gradients(("b", [500]), ("a", [400, 400]))
    plan = bucket_plan(gradients, 900 / 1024, "fp32")
    assert _names(plan.buckets) == [["b.0"], ["a.0", "a.1"]]


def test_layer_larger_than_a_bucket_is_split_between_tensors_and_named() -> None:
    gradients = _gradients(("b", [10]), ("a", [500, 500, 1500, 10]), ("z", [10]))
    plan = bucket_plan(gradients, 1.0, "fp32")
    assert _names(plan.buckets) == [["b.0"], ["a.0", "a.1"], ["a.2"], ["a.3", "z.0"]]
    assert plan.split_layers == ("a",)


def test_size_is_as_sent_so_bf16_holds_twice_as_much() -> None:
    gradients = _gradients(*((str(layer), [512]) for layer in range(8)))
    assert len(bucket_plan(gradients, 1.0, "fp32").buckets) == 4
    assert len(bucket_plan(gradients, 1.0, "bf16").buckets) == 2


@given(
    sizes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 200_000)), min_size=1, max_size=30),
    size_mb=st.sampled_from([1 / 64, 1 / 8, 0.5, 1.0, 25.0]),
    dtype=st.sampled_from(["fp32", "bf16"]),
    ratio=st.floats(0, 1),
)
def test_every_tensor_is_sent_once_in_order_and_sizes_hold(
    sizes: list[tuple[int, int]], size_mb: float, dtype: str, ratio: float
) -> None:
    gradients = [
        GradientTensor(name=f"t{index}", num_elements=count, layer=f"l{layer}")
        for index, (layer, count) in enumerate(sizes)
    ]
    plan = bucket_plan(gradients, size_mb, dtype)
    assert [name for bucket in plan.buckets for name in bucket.names] == [
        gradient.name for gradient in gradients
    ]
    for bucket in plan.buckets:
        assert len(bucket.names) == 1 or bucket.num_bytes <= size_mb * MIB
    assert [bucket.first for bucket in plan.buckets] == [
        0,
        *(bucket.last for bucket in plan.buckets[:-1]),
    ]
    assert plan.num_elements == sum(padded_elements(g.num_elements) for g in gradients)
    shares = [
        sum(bucket.num_bytes for bucket in plan.buckets[:count]) / plan.num_bytes
        for count in range(len(plan.buckets) + 1)
    ]
    share = share_during_backward(plan, ratio)
    assert abs(share - ratio) <= min(abs(other - ratio) for other in shares) + 1e-9


def test_ratio_ends_mean_nothing_and_everything() -> None:
    plan = bucket_plan(_gradients(*((str(layer), [900]) for layer in range(5))), 1.0, "fp32")
    assert issued_during_backward(plan, 0.0) == 0
    assert issued_during_backward(plan, 1.0) == 5
    assert issued_during_backward(plan, 0.5) == 2  # 0.4 and 0.6 are equally near: the smaller


def test_signature_is_equal_exactly_where_the_messages_are() -> None:
    gradients = _gradients(*((str(layer), [900]) for layer in range(4)))
    by_one = bucket_plan(gradients, 1.0, "fp32")
    by_more = bucket_plan(gradients, 1.5, "fp32")
    assert by_one.signature(0.5) == by_more.signature(0.55)
    assert by_one.signature(0.5) != by_one.signature(1.0)
    assert by_one.signature(0.5) != bucket_plan(gradients, 2.0, "fp32").signature(0.5)
    assert by_one.signature(0.5) != bucket_plan(gradients, 0.5, "bf16").signature(0.5)


def test_bounds_by_hand_cut_where_they_say() -> None:
    gradients = _gradients(("b", [1, 1]), ("a", [1, 1]))
    plan = bucket_plan(gradients, 25, "fp32", bounds=["b.0", "a.1"])
    assert _names(plan.buckets) == [["b.0"], ["b.1", "a.0", "a.1"]]


@pytest.mark.parametrize("bounds", [["a.1", "b.0"], ["b.0"], ["b.0", "nowhere", "a.1"], []])
def test_bounds_out_of_order_are_refused(bounds: list[str]) -> None:
    with pytest.raises(ConfigError, match="in ready order"):
        bucket_plan(_gradients(("b", [1, 1]), ("a", [1, 1])), 25, "fp32", bounds=bounds)


@pytest.mark.parametrize(("size_mb", "dtype"), [(0.0, "fp32"), (-1.0, "fp32"), (1.0, "fp8")])
def test_unusable_settings_are_refused(size_mb: float, dtype: str) -> None:
    with pytest.raises(ConfigError):
        bucket_plan(_gradients(("a", [1])), size_mb, dtype)


def test_module_needs_no_torch() -> None:
    script = "import sys, lf_ray.runtime.bucket_plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_ranks_that_may_share_get_parts_of_one_length_that_cover_a_bucket() -> None:
    assert [n for n in range(1, 65) if ALIGN_ELEMENTS % n == 0] == list(SHARING_RANKS)
    for num_ranks in SHARING_RANKS:
        parts = [own_part(64, 64 + ALIGN_ELEMENTS, rank, num_ranks) for rank in range(num_ranks)]
        assert parts[0][0] == 64
        assert parts[-1][1] == 64 + ALIGN_ELEMENTS
        assert [last for _, last in parts[:-1]] == [first for first, _ in parts[1:]]
