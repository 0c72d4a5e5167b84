"""Two lanes of a GPU that slow each other down: compute on one, communication and update beside it.

A fluid discrete-event model. Each lane works through its tasks in order; while both are busy, each
advances at a rate that depends on what runs beside what (they share multiprocessors and memory
bandwidth). The clock jumps from one completion to the next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Rates = Mapping[tuple[str, str], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Task:
    """Work of one kind.

    Attributes:
        work_s: how long it takes alone.
        after: how many tasks of the other lane must be done before it starts.
    """

    kind: str
    work_s: float
    after: int = 0


def run_lanes(compute: Sequence[Task], side: Sequence[Task], rates: Rates) -> float:
    """Returns when both lanes are done, started together.

    Args:
        compute: tasks of the compute lane, in order.
        side: tasks of the side lane, in order.
        rates: speed of compute and side for a pair of kinds; pairs not named run at full speed.
    """
    now_s = 0.0
    done, sent = 0, 0
    left_s = compute[0].work_s if compute else 0.0
    side_left_s = side[0].work_s if side else 0.0
    while done < len(compute) or sent < len(side):
        works = done < len(compute) and compute[done].after <= sent
        sends = sent < len(side) and side[sent].after <= done
        assert works or sends, "the two lanes wait for each other"
        speed = side_speed = 1.0
        if works and sends:
            pair = (compute[done].kind, side[sent].kind)
            speed, side_speed = rates.get(pair, (1.0, 1.0))
        until = left_s / speed if works else float("inf")
        side_until = side_left_s / side_speed if sends else float("inf")
        passed_s = min(until, side_until)
        now_s += passed_s
        if sends:
            side_left_s -= passed_s * side_speed
        if works:
            left_s -= passed_s * speed
        if works and until <= side_until:
            done += 1
            left_s = compute[done].work_s if done < len(compute) else 0.0
        if sends and side_until <= until:
            sent += 1
            side_left_s = side[sent].work_s if sent < len(side) else 0.0
    return now_s
