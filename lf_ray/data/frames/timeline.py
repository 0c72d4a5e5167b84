"""Which frame of a video belongs to which row of its episode. Pure.

Letters: N rows of the episode, F frames of its part of the video.
"""

import numpy as np
from numpy.typing import NDArray

NO_FRAME = -1


def span_frames(
    times_s_F: NDArray[np.float64], from_s: float | None, to_s: float | None, frame_s: float
) -> tuple[int, int]:
    """Returns the first frame of a span and the one after its last."""
    half_s = frame_s / 2
    first = 0 if from_s is None else int(np.searchsorted(times_s_F, from_s - half_s))
    end = len(times_s_F) if to_s is None else int(np.searchsorted(times_s_F, to_s - half_s))
    return first, max(end, first)


def match_rows(
    row_times_s_N: NDArray[np.float64], frame_times_s_F: NDArray[np.float64], frame_s: float
) -> NDArray[np.int64]:
    """Returns the frame of each row, NO_FRAME where the video has none.

    As many frames as rows belong together one by one, whatever their clocks say (29.97 against 30
    frames a second drift apart in an episode). Otherwise the nearest in time does, both counted
    from the start, if it is within half a frame and no other row is nearer to it: no frame is
    shown twice.
    """
    num_rows = len(row_times_s_N)
    if len(frame_times_s_F) == num_rows:
        return np.arange(num_rows)
    if not len(frame_times_s_F):
        return np.full(num_rows, NO_FRAME)
    rows_s = row_times_s_N - row_times_s_N[0]
    frames_s = frame_times_s_F - frame_times_s_F[0]
    right_N = np.clip(np.searchsorted(frames_s, rows_s), 1, max(len(frames_s) - 1, 1))
    right_N = np.minimum(right_N, len(frames_s) - 1)
    left_N = np.maximum(right_N - 1, 0)
    is_left_N = np.abs(rows_s - frames_s[left_N]) <= np.abs(rows_s - frames_s[right_N])
    nearest_N = np.where(is_left_N, left_N, right_N)
    distance_N = np.abs(rows_s - frames_s[nearest_N])
    # In order of distance, so that of two rows at one frame the nearer keeps it.
    order_N = np.argsort(distance_N, kind="stable")
    _, first_use = np.unique(nearest_N[order_N], return_index=True)
    is_owner_N = np.zeros(num_rows, bool)
    is_owner_N[order_N[first_use]] = True
    is_near_N = distance_N <= frame_s / 2 + 1e-6
    return np.where(is_owner_N & is_near_N, nearest_N, NO_FRAME)


def decode_runs(frames: NDArray[np.int64], keys: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Returns the (first, last) runs to decode for sorted frames, one for each seek.

    Frames that share a keyframe, or whose keyframe is passed on the way, share a run.
    """
    runs: list[tuple[int, int]] = []
    key_of = keys[np.maximum(np.searchsorted(keys, frames, side="right") - 1, 0)]
    for frame, key in zip(frames.tolist(), key_of.tolist()):
        if runs and key <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], frame)
        else:
            runs.append((frame, frame))
    return runs
