"""Out of memory as a boundary; points that come to the same thing."""

from typing import Any

import pytest

from lf_ray.protocol import OutcomeKind, Purpose, TrialOutcome, TrialRecord, TrialRequest
from lf_ray.search.plan.boundary import (
    Effects,
    Misfit,
    credible,
    dominated,
    dominating,
    twin_reason,
    undecoded_knobs,
)
from lf_ray.testing.objectives import BASELINE_KNOBS, layer_gradients, out_of_memory


def knobs(**changed: Any) -> dict[str, Any]:
    return {**BASELINE_KNOBS, **{name.replace("__", "."): value for name, value in changed.items()}}


@pytest.mark.parametrize(
    ("changed", "ruled_out"),
    [
        ({"batch__per_gpu": 16}, True),
        ({"batch__per_gpu": 8}, True),
        ({"batch__per_gpu": 6}, False),
        ({"batch__per_gpu": 8, "batch__accumulation": 2}, True),
        ({"batch__per_gpu": 4, "batch__accumulation": 4}, False),
        ({"batch__per_gpu": 8, "overlap__ratio": 0.1, "data__workers": 3}, True),
        ({"batch__per_gpu": 8, "graph__scope": "step"}, True),
        ({"batch__per_gpu": 16, "memory__backend": "expandable"}, False),
    ],
)
def test_more_of_what_did_not_fit_does_not_fit(changed: dict[str, Any], ruled_out: bool) -> None:
    assert dominated(knobs(**changed), knobs(batch__per_gpu=8), "oom") is ruled_out


def test_a_captured_point_says_nothing_of_an_eager_one() -> None:
    captured = knobs(batch__per_gpu=8, graph__scope="step")
    assert not dominated(knobs(batch__per_gpu=8), captured, "oom")


def test_without_a_compiler_no_arena_can_be_built() -> None:
    first = knobs(memory__backend="arena", memory__block_sizes="1-2")
    second = knobs(memory__backend="arena", memory__block_sizes="2-4", batch__per_gpu=2)
    assert dominated(second, first, "compiler")
    assert not dominated(knobs(), first, "compiler")


def test_other_reasons_rule_out_the_point_alone() -> None:
    assert dominated(knobs(), knobs(), "capture")
    assert not dominated(knobs(overlap__ratio=0.9), knobs(), "capture")


def test_host_memory_counts_loader_processes() -> None:
    assert dominated(knobs(data__workers=4), knobs(data__workers=2), "host_memory")
    assert not dominated(knobs(data__workers=1), knobs(data__workers=2), "host_memory")


def test_settings_that_send_the_same_messages_are_one() -> None:
    effects = Effects(layer_gradients(4))
    one_bucket = [effects.key(knobs(overlap__bucket_size_mb=size)) for size in (16.0, 64.0)]
    assert len(set(one_bucket)) == 1
    ratios = {
        effects.key(knobs(overlap__bucket_size_mb=64.0, overlap__ratio=ratio / 10))
        for ratio in range(11)
    }
    assert len(ratios) == 2
    halves = effects.key(knobs(overlap__bucket_size_mb=2.5))
    assert halves not in one_bucket
    assert effects.key(knobs(batch__per_gpu=8)) != effects.key(knobs())


def fed(state: str) -> TrialRecord:
    """Returns a record that says how much of the data the frame cache has."""
    return TrialRecord(
        request=TrialRequest(id="t000", knobs=knobs(), seed=0, purpose=Purpose.BASELINE),
        outcome=TrialOutcome(kind=OutcomeKind.COMPLETED, effective={"data_cache": state}),
    )


def test_where_no_frame_is_left_to_decode_who_decodes_is_one() -> None:
    cached = Effects((), undecoded_knobs(fed("whole")))
    base, more = knobs(), knobs(data__workers=4, data__decode_threads=2)
    assert cached.key(more) == cached.key(base)
    assert cached.key(knobs(data__prefetch=8)) != cached.key(base)
    assert cached.key(more | {"data.cache": False}) != cached.key(base | {"data.cache": False})
    made_up = Effects((), undecoded_knobs(fed("no_frames")))
    assert made_up.key(more | {"data.cache": False}) == made_up.key(base)
    assert (
        twin_reason(more, base, "t000") == "no frame is left to decode, so it is the same as t000"
    )
    assert "messages" in twin_reason(knobs(overlap__ratio=0.5), base, "t000")


@pytest.mark.parametrize("state", ["off", "part"])
def test_where_frames_are_left_nothing_is_the_same(state: str) -> None:
    effects = Effects((), undecoded_knobs(fed(state)))
    assert effects.key(knobs(data__workers=4)) != effects.key(knobs())


def test_before_the_baseline_only_equal_knobs_are_the_same() -> None:
    effects = Effects()
    assert effects.key(knobs(overlap__bucket_size_mb=64.0)) != effects.key(knobs())
    assert effects.key(knobs()) == effects.key(knobs())


def test_a_misfit_that_larger_points_contradict_rules_out_nothing() -> None:
    misfit = Misfit("t002", knobs(overlap__ratio=0.5), out_of_memory())
    assert credible([misfit], [knobs(batch__per_gpu=2)]) == [misfit]
    assert credible([misfit], [knobs()]) == []
    assert dominating(knobs(batch__per_gpu=8), [misfit]) == (
        "t002",
        "at least as large as t002, which did not fit: CUDA out of memory in backward",
    )
    assert dominating(knobs(batch__per_gpu=2), [misfit]) is None
