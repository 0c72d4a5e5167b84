"""Where a step's time goes, and the most that tuning could still take out of it.

Pure. A sweep that is bound by its data, or that has nothing left to gain, must say so.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lf_ray.analysis.points import Point

DATA_BOUND_FRAC = 0.2
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
        wait_frac: share of the step that waits for data.
    """

    step_s: float
    shares: Mapping[str, float]
    removable_s: Mapping[str, float]
    bound: float
    wait_frac: float

    @property
    def data_bound(self) -> bool:
        """Returns whether the step waits for its data so long that other knobs say little."""
        return self.wait_frac > DATA_BOUND_FRAC


def roofline(point: Point) -> Roofline | None:
    """Returns where the point's step time goes; None where it was not measured."""
    if point.step_s is None:
        return None
    step_s = point.step_s.value
    wait_frac = wait_share(point)
    removable = _removable_s(point, step_s, wait_frac)
    left_s = max(step_s - sum(removable.values()), 0.05 * step_s)
    return Roofline(
        step_s=step_s,
        shares=_shares(point.phases_s, step_s),
        removable_s=removable,
        bound=step_s / left_s,
        wait_frac=wait_frac,
    )


def wait_share(point: Point) -> float:
    """Returns the share of steady time that the slowest rank's step waited for its data."""
    waited, total = 0.0, 0.0
    for record in point.records:
        if record.trace is not None and record.step_s is not None:
            waited += sum(record.trace.wait_s[record.steady_from :])
            total += sum(record.trace.wall_s[record.steady_from :])
    return waited / total if total else 0.0


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
            f"The step waits for data {best.wait_frac:.0%} of the time: raise data.workers, "
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
