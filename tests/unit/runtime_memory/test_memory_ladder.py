"""Ladders: names, clipping, what a ladder is predicted to do, and which is proposed."""

import pytest

from lf_ray.errors import ConfigError
from lf_ray.runtime.memory.ladder import GIB, arena_budget, ladder_name, parse_ladder
from lf_ray.runtime.memory.policy import SegmentEvent, forecast, propose_ladder
from lf_ray.runtime.memory.segments import (
    MIB,
    TensorEvent,
    segment_bytes,
    segment_events,
)


def taken(*sizes_bytes: int) -> list[SegmentEvent]:
    return [SegmentEvent(index, size) for index, size in enumerate(sizes_bytes)]


def test_a_ladder_and_its_name_are_each_other() -> None:
    assert parse_ladder("1-2-4-8-16-32") == (1, 2, 4, 8, 16, 32)
    assert ladder_name(parse_ladder("0.25-1-4")) == "0.25-1-4"


@pytest.mark.parametrize("name", ["analysed", "none", "", "1--2", "0-1", "1-1"])
def test_a_name_that_is_no_ladder_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"memory\.block_sizes"):
        parse_ladder(name)


def test_the_article_total_is_clipped_on_an_80_gb_card_with_a_word() -> None:
    budget = arena_budget(78, int(79.2 * GIB), 1)
    assert budget.num_bytes == int(79.2 * GIB) - 3 * GIB
    assert budget.word is not None
    assert "78" in budget.word
    assert "76.2" in budget.word


def test_a_total_that_fits_is_kept_without_a_word() -> None:
    assert arena_budget(20, 80 * GIB, 1) == (20 * GIB, None)
    assert arena_budget(None, 80 * GIB, 1) == (77 * GIB, None)


def test_a_total_below_the_smallest_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="smallest block"):
        arena_budget(None, 4 * GIB, 2)


def test_a_forecast_counts_what_no_block_holds() -> None:
    expected = forecast(taken(GIB, 3 * GIB, GIB), [1, 2], 10 * GIB)
    assert expected.fallback_frac == pytest.approx(1 / 3)
    assert expected.fallback_bytes_frac == pytest.approx(3 / 5)
    assert expected.reserved_bytes == 2 * GIB


def test_freed_room_is_used_again_in_a_forecast() -> None:
    events = [*taken(GIB), SegmentEvent(0, GIB, takes=False), SegmentEvent(1, GIB)]
    assert forecast(events, [1], GIB).fallback_frac == 0.0


def test_the_proposed_ladder_holds_the_largest_segment_and_wastes_least() -> None:
    events = taken(*[20 * MIB] * 40, 5 * GIB)
    ladder = propose_ladder(events, 100 * GIB)
    expected = forecast(events, ladder, 100 * GIB)
    assert ladder[-1] == 5
    assert expected.fallback_frac == 0.0
    for other in ([8], [1, 8], [2, 4, 8], [1, 5]):
        assert expected.reserved_bytes <= forecast(events, other, 100 * GIB).reserved_bytes


def test_large_segments_that_no_power_of_two_fits_get_blocks_of_their_own_size() -> None:
    """Masters, moments and gradients of the 3B model: 4.86 GiB each, and bf16 halves of it."""
    whole = 1_305_000_000 * 4
    events = taken(*[whole] * 4, whole // 2, whole // 2, *[20 * MIB] * 30)
    held = sum(event.num_bytes for event in events)
    ladder = propose_ladder(events, 120 * GIB)
    expected = forecast(events, ladder, 120 * GIB)
    assert expected.fallback_frac == 0.0
    assert expected.reserved_bytes <= 1.05 * held
    assert forecast(events, [1, 2, 4, 8], 120 * GIB).reserved_bytes > 1.15 * held
    # its name loses nothing: the blocks still hold the segments
    assert parse_ladder(ladder_name(ladder)) == ladder


def test_no_proposed_block_exceeds_the_budget() -> None:
    ladder = propose_ladder(taken(3 * GIB, GIB), 2 * GIB)
    assert max(ladder) <= 2


@pytest.mark.parametrize(
    ("num_bytes", "segment"),
    [(100, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (11 * MIB - 1, 12 * MIB)],
)
def test_segments_have_the_caching_allocators_sizes(num_bytes: int, segment: int) -> None:
    assert segment_bytes(num_bytes) == segment


def test_tensors_share_a_segment_and_reuse_what_is_freed() -> None:
    events = [TensorEvent(1, 8 * MIB), TensorEvent(2, 8 * MIB)]
    assert [event.num_bytes for event in segment_events(events)] == [20 * MIB]
    freed = [*events, TensorEvent(1, 0, takes=False), TensorEvent(2, 0, takes=False)]
    assert len(segment_events([*freed, TensorEvent(3, 9 * MIB), TensorEvent(4, 9 * MIB)])) == 1
    # freed neighbours merge: 20 MiB in one piece
    assert len(segment_events([*freed, TensorEvent(3, 20 * MIB)])) == 1
    assert len(segment_events([*events, TensorEvent(3, 20 * MIB)])) == 2
