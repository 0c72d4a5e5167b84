"""Where a step's time goes, and the most that tuning could still take out of it.

Pure. A sweep that is bound by its data, or that has nothing left to gain, must say so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lf_ray.analysis.points import Point
from lf_ray.measure.clusters import PartRatio, part_ratio

DATA_BOUND_FRAC = 0.2
_MAX_RUNS, _MIN_RUN_STEPS = 10, 4
_MIN_VISITS = 5
_REMOVABLE = {
    "data": ("wait", "loader"),
    "communication": ("exposed",),
    "launch gaps": ("gap", "launch"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Roofline:
    """One point's step, taken apart.

    Attributes:
        shares: of the step by phase, largest first; what no phase accounts for is "other".
        removable_s: seconds a step that tuning could at best take out, by what they are lost to.
        bound: how many times faster a step without them would be.
        wait: share of the step that waits for data, with its interval.
    """

    step_s: float
    shares: Mapping[str, float]
    removable_s: Mapping[str, float]
    bound: float
    wait: PartRatio

    @property
    def wait_frac(self) -> float:
        """Returns the share of the step that waits for data."""
        return self.wait.value

    @property
    def data_bound(self) -> bool:
        """Returns whether the step waits for its data so long that other knobs say little."""
        return self.wait_frac > DATA_BOUND_FRAC


def roofline(point: Point) -> Roofline | None:
    """Returns where the point's step time goes; None where it was not measured."""
    if point.step_s is None:
        return None
    step_s = point.step_s.value
    wait = wait_of(point)
    removable = _removable_s(point, step_s, wait.value)
    left_s = max(step_s - sum(removable.values()), 0.05 * step_s)
    return Roofline(
        step_s=step_s,
        shares=_shares(point.phases_s, step_s),
        removable_s=removable,
        bound=step_s / left_s,
        wait=wait,
    )


def is_data_bound(point: Point | None) -> bool:
    """Returns whether the point's step waits for its data; False where it was not measured."""
    found = roofline(point) if point else None
    return found is not None and found.data_bound


def is_bucket(knob: str) -> bool:
    """Returns whether a knob says what is sent when; it wins nothing while data is short."""
    return knob.startswith("overlap.")


def is_starved_bucket(baseline: Point, point: Point) -> bool:
    """Returns whether a point's gain can't be told from data that came in faster meanwhile.

    That is where baseline and point wait for data both and differ by buckets alone. Where tuning
    itself has brought the step to where data is the limit, a gain is a gain.
    """
    changed = [name for name, value in point.knobs.items() if baseline.knobs.get(name) != value]
    return is_data_bound(baseline) and is_data_bound(point) and all(map(is_bucket, changed))


def wait_share(point: Point) -> float:
    """Returns the share of steady time that the slowest rank's step waited for its data."""
    return wait_of(point).value


def wait_of(point: Point) -> PartRatio:
    """Returns that share with its interval.

    Its parts are visits where there are five or more, which then show how they differ, else
    runs of neighbouring steps within visits.
    """
    visits = [
        list(zip(record.trace.wait_s, record.trace.wall_s))[record.steady_from :]
        for record in point.records
        if record.trace is not None and record.step_s is not None
    ]
    parts = (
        visits if len(visits) >= _MIN_VISITS else [run for steps in visits for run in _runs(steps)]
    )
    waited = [sum(wait_s for wait_s, _ in steps) for steps in parts]
    walls = [sum(wall_s for _, wall_s in steps) for steps in parts]
    return part_ratio(waited, walls) or PartRatio(value=0.0, lo=None, hi=None, num_parts=0)


def _runs(steps: Sequence[tuple[float, float]]) -> list[Sequence[tuple[float, float]]]:
    num_runs = max(1, min(_MAX_RUNS, len(steps) // _MIN_RUN_STEPS))
    bounds = [round(index * len(steps) / num_runs) for index in range(num_runs + 1)]
    return [steps[lo:hi] for lo, hi in pairwise(bounds)]


def share_in_words(share: PartRatio, digits: int = 0) -> str:
    """Returns a share in percent with its interval, where it has one."""
    said = f"{share.value:.{digits}%}"
    if share.lo is None or share.hi is None:
        return said
    return f"{said} (95 %: {share.lo:.{digits}%} to {share.hi:.{digits}%})"


def advice_in_words(baseline: Roofline | None, best: Roofline | None) -> tuple[str, ...]:
    """Returns what the phases say to someone who wonders whether to tune on."""
    said: list[str] = []
    if baseline is not None and baseline.shares:
        top = [f"{in_plain(name)} {share:.0%}" for name, share in list(baseline.shares.items())[:4]]
        said.append(f"At the baseline a step of {_ms(baseline.step_s)} goes to {', '.join(top)}.")
    if best is None:
        return tuple(said)
    if best.data_bound:
        said.append(
            f"The step waits for data {share_in_words(best.wait)} of the time: raise data.workers, "
            "cache decoded frames, or sweep the input path (sweeps/data.py) first; bucket and "
            "ratio can't be judged while the data is the limit."
        )
    lost = [f"{name} {_ms(s)}" for name, s in best.removable_s.items() if s > 0.005 * best.step_s]
    if lost:
        said.append(
            f"What tuning could still take out of a step: {', '.join(lost)}; at most "
            f"{best.bound:.2f}x."
        )
    else:
        said.append("No waiting, exposed communication or gap is left to tune away.")
    return tuple(said)


def in_plain(phase: str) -> str:
    """Returns a phase's name as people read it."""
    return phase.replace("_", " ")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _shares(phases_s: Mapping[str, float], step_s: float) -> dict[str, float]:
    shares = {name: seconds / step_s for name, seconds in phases_s.items() if seconds > 0}
    rest = 1 - sum(shares.values())
    ordered = dict(sorted(shares.items(), key=lambda item: -item[1]))
    return {**ordered, "other": rest} if rest > 0.005 and shares else ordered


def _removable_s(point: Point, step_s: float, wait_frac: float) -> dict[str, float]:
    found = {
        name: sum(
            seconds
            for phase, seconds in point.phases_s.items()
            if any(part in phase for part in parts) and "peer" not in phase
        )
        for name, parts in _REMOVABLE.items()
    }
    found["data"] = max(found["data"], wait_frac * step_s)
    if not found["communication"] and "t_no_comm_s" in point.metrics:
        # Without a timeline: what a step takes longer than one that sends nothing.
        found["communication"] = step_s - point.metrics["t_no_comm_s"]
    return {name: min(max(seconds, 0.0), step_s) for name, seconds in found.items()}
