"""Who is late, and who only waits for them.

Pure. Each rank says which phase it enters and how long that may take; one that is still in it
when the time is over is late. A late rank sends where it stands, if it can: the one that says
nothing, or stands outside every collective, is the one the others wait for.
"""

import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

from lf_ray.protocol import TrialOutcome, Wire
from lf_ray.trial.faults.outcomes import innermost, lost

_WAITING_WORDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "barrier(",
    "broadcast(",
    "work.wait(",
    "collective.wait(",
    "synchronize(",
    "exchange(",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The phase that a rank is in since when, and how long it may stay."""

    phase: str
    limit_s: float
    since_s: float

    def is_over(self, now_s: float, grace_s: float) -> bool:
        """Returns whether the phase, grace included, has taken too long."""
        return now_s - self.since_s > self.limit_s + grace_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing(Wire):
    """Where a late rank stands, told by itself.

    Attributes:
        waiting: it is inside a collective, so another rank keeps it.
    """

    rank: int
    phase: str
    where: str
    waiting: bool


def standing(rank: int, phase: str, thread_id: int) -> Standing:
    """Returns where a thread of this process stands now."""
    frame = sys._current_frames().get(thread_id)
    if frame is None:
        return Standing(rank=rank, phase=phase, where="its thread has ended", waiting=False)
    stack = traceback.extract_stack(frame)
    waiting = any(
        any(word in (item.line or "") for word in _WAITING_WORDS)
        or "torch/distributed" in item.filename
        for item in stack[-6:]
    )
    where = innermost(stack) or "an unknown place"
    return Standing(rank=rank, phase=phase, where=where, waiting=waiting)


def hang(
    progress: Mapping[int, Progress],
    standings: Mapping[int, Standing],
    processes: Mapping[int, str],
    now_s: float,
    grace_s: float = 0.0,
) -> TrialOutcome | None:
    """Returns the outcome of a group in which a rank is late, naming the one that keeps the others.

    `processes` says what is known of each rank's process: running, stopped, gone, unknown.
    """
    late = {rank: item for rank, item in progress.items() if item.is_over(now_s, grace_s)}
    if not late:
        return None
    rank = min(late, key=lambda item: (_innocence(item, standings, processes), item))
    item = late[rank]
    text = (
        f"hang: rank {rank} is in phase {item.phase!r} for {now_s - item.since_s:.0f} s "
        f"(limit {item.limit_s:.0f} s), {_state(rank, standings, processes)}"
    )
    waiting = sorted(other for other in late if other != rank)
    if waiting:
        text += f"; late with it: rank {', '.join(str(other) for other in waiting)}"
    return lost("hang", text, rank)


def _innocence(rank: int, standings: Mapping[int, Standing], processes: Mapping[int, str]) -> int:
    if processes.get(rank) == "gone":
        return 0
    if processes.get(rank) == "stopped":
        return 1
    if rank not in standings:
        return 2
    return 4 if standings[rank].waiting else 3


def _state(rank: int, standings: Mapping[int, Standing], processes: Mapping[int, str]) -> str:
    if processes.get(rank) in ("gone", "stopped"):
        return f"its process is {processes[rank]}"
    if rank not in standings:
        return "it does not answer"
    item = standings[rank]
    return f"waiting at {item.where}" if item.waiting else f"it stands at {item.where}"
