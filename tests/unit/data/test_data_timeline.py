"""Which frame belongs to which row."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lf_ray.data.frames.timeline import NO_FRAME, decode_runs, match_rows, span_frames


def test_equal_counts_match_one_by_one_whatever_the_clocks_say() -> None:
    rows_s = 0.05 + np.arange(1000) / 30
    frames_s = np.arange(1000) / 29.97
    assert match_rows(rows_s, frames_s, 1 / 30).tolist() == list(range(1000))


def test_a_missing_last_frame_is_no_frame_not_a_repeat() -> None:
    rows_s, frames_s = np.arange(10) / 20, np.arange(9) / 20
    assert match_rows(rows_s, frames_s, 0.05).tolist() == [*range(9), NO_FRAME]


def test_a_missing_frame_in_the_middle_costs_its_row_only() -> None:
    rows_s = np.arange(10) / 20
    frames_s = np.delete(rows_s, 4)
    expected = [0, 1, 2, 3, NO_FRAME, 4, 5, 6, 7, 8]
    assert match_rows(rows_s, frames_s, 0.05).tolist() == expected


def test_more_frames_than_rows_are_matched_by_time() -> None:
    rows_s, frames_s = np.arange(5) / 10, np.arange(10) / 20
    assert match_rows(rows_s, frames_s, 0.1).tolist() == [0, 2, 4, 6, 8]


def test_a_variable_rate_is_matched_by_time() -> None:
    frames_s = np.array([0.0, 0.04, 0.11, 0.14, 0.21, 0.24, 0.33])
    rows_s = frames_s[[0, 1, 2, 4, 5, 6]] + 0.004
    assert match_rows(rows_s, frames_s, 0.05).tolist() == [0, 1, 2, 4, 5, 6]


@given(
    st.lists(st.floats(0, 20), min_size=1, max_size=40),
    st.lists(st.floats(0, 20), min_size=0, max_size=40),
)
def test_no_frame_is_ever_shown_twice(rows: list[float], frames: list[float]) -> None:
    matched = match_rows(np.sort(np.array(rows)), np.sort(np.array(frames, np.float64)), 0.05)
    used = matched[matched != NO_FRAME]
    assert len(matched) == len(rows)
    assert len(set(used.tolist())) == len(used)


def test_a_span_takes_its_own_frames_only() -> None:
    times_s = np.arange(60) / 20
    assert span_frames(times_s, None, None, 0.05) == (0, 60)
    assert span_frames(times_s, 1.0, 2.0, 0.05) == (20, 40)
    assert span_frames(times_s, 1.0 + 1e-4, 2.0 - 1e-4, 0.05) == (20, 40)


def test_runs_share_a_seek_where_a_keyframe_is_passed() -> None:
    keys = np.array([0, 10, 20, 30])
    runs = decode_runs(np.array([3, 5, 12, 19, 20, 35]), keys)
    assert runs == [(3, 5), (12, 20), (35, 35)]
    assert decode_runs(np.array([], np.int64), keys) == []
