"""One step as boxes on two lanes, compute and communication, from what its phases measured.

The lengths are measured means. Where exactly each bucket lies inside its stretch is not recorded:
buckets are drawn at equal lengths, and the page says so.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from lf_ray.analysis.points import Point

PHASE_ORDER = (
    "wait",
    "device",
    "prefix",
    "forward",
    "backward",
    "comm",
    "exposed",
    "reduce",
    "clip",
    "optim",
    "update",
    "gap",
)
_ON_THE_WIRE = ("comm", "exposed", "reduce")
_MOST_BOXES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """A stretch of one lane, in seconds from the step's start."""

    lane: str
    name: str
    start_s: float
    length_s: float


def in_step_order(names: Iterable[str]) -> list[str]:
    """Returns phase names in the order in which a step goes through them."""

    def place(name: str) -> int:
        found = [index for index, part in enumerate(PHASE_ORDER) if part in name]
        return found[0] if found else len(PHASE_ORDER)

    return sorted(names, key=lambda name: (place(name), name))


def step_boxes(point: Point, *, hides: bool = True) -> list[Box]:
    """Returns the boxes of a point's mean step; none where its phases were not measured.

    Args:
        point: a measured setting.
        hides: whether the share that backward hides can be told; on a CPU it can't.
    """
    boxes: list[Box] = []
    at_s = 0.0
    for name in in_step_order(point.phases_s):
        length_s = point.phases_s[name]
        if any(part in name for part in _ON_THE_WIRE):
            if "hidden" not in name:
                boxes += _buckets("sent after backward", at_s, length_s, _num_sent(point, False))
                at_s += length_s
            continue
        boxes.append(Box(lane="compute", name=name, start_s=at_s, length_s=length_s))
        at_s += length_s
        if "backward" in name:
            hidden_s = min(_hidden_s(point), length_s) if hides else 0.0
            start_s = at_s - hidden_s
            boxes += _buckets("sent during backward", start_s, hidden_s, _num_sent(point, True))
    return [box for box in boxes if box.length_s > 0]


def _hidden_s(point: Point) -> float:
    named = [seconds for name, seconds in point.phases_s.items() if "hidden" in name]
    if named:
        return sum(named)
    share, comm_s = point.metrics.get("overlap_hidden", 0.0), point.metrics.get("t_comm_s", 0.0)
    return max(0.0, share * comm_s)


def _num_sent(point: Point, during: bool) -> int:
    total = point.effective.get("num_buckets", 1)
    share = point.effective.get("share_during_backward", point.knobs.get("overlap.ratio", 0.0))
    if not isinstance(total, int | float) or not isinstance(share, int | float):
        return 1
    early = round(float(total) * float(share))
    return max(1, early if during else round(float(total)) - early)


def _buckets(name: str, start_s: float, length_s: float, number: int) -> list[Box]:
    number = min(number, _MOST_BOXES)
    each_s = length_s / number
    return [
        Box(lane="communication", name=name, start_s=start_s + i * each_s, length_s=each_s)
        for i in range(number)
    ]
