"""The stage that compares winners: the baseline, each winner alone on it, and all together.

Visits are interleaved to and fro, so that a machine's mood hits all alike; they go on until the
answer is clear, every side has had its share, or the time is up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lf_ray.analysis.points import Point
from lf_ray.analysis.staged.convergence import changed_arithmetic
from lf_ray.analysis.staged.multiply import Multiply, multiplied, shared_of
from lf_ray.analysis.staged.stages import ALL, ALL_BUT, BASELINE
from lf_ray.protocol import Interval, Knobs, KnobValue, Purpose, TrialRequest
from lf_ray.record.events import JournalEvent
from lf_ray.search.plan.decisions import Decision, Request, Rules, Stop, Wait
from lf_ray.search.plan.state import SweepState
from lf_ray.search.plan.visits import given_up, revisit, slice_visit
from lf_ray.search.space import Space


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One point of the comparison; `label` is baseline, a stage's name, all, or all but one."""

    label: str
    knobs: Knobs


def sides_of(space: Space, won: Mapping[str, Knobs]) -> list[Side]:
    """Returns what is compared: nothing beyond the baseline where no stage changed anything.

    Args:
        space: of the whole sweep, around the user's baseline.
        won: by stage, the knobs that its winner has otherwise than where the stage began.
    """
    changed = {name: knobs for name, knobs in won.items() if knobs}
    sides = [Side(label=BASELINE, knobs=space.canonical({}))]
    sides += [
        Side(label=name, knobs=space.canonical(dict(knobs))) for name, knobs in changed.items()
    ]
    unsure = [name for name, knobs in changed.items() if changed_arithmetic(knobs, space.baseline)]
    for name in unsure if len(changed) > len(unsure) + 1 else ():
        # What may be left when the larger batch is found to learn worse.
        sides.append(Side(label=f"{ALL_BUT}{name}", knobs=_joined(space, changed, without=name)))
    if len(changed) > 1:
        sides.append(Side(label=ALL, knobs=_joined(space, changed)))
    return sides


def _joined(space: Space, changed: Mapping[str, Knobs], without: str = "") -> Knobs:
    joined: dict[str, KnobValue] = {}
    for name, knobs in changed.items():
        joined |= knobs if name != without else {}
    return space.canonical(joined)


class TogetherPlanner:
    """Visits the sides in turn.

    Args:
        sides: the baseline first.
        rules: that visits go by; `soft_s` bounds the stage.
        visits: of each side, at least and at most.

    Attributes:
        state: books of this stage alone.
    """

    def __init__(
        self, space: Space, sides: Sequence[Side], rules: Rules, visits: tuple[int, int]
    ) -> None:
        self.rules = rules
        self.state = SweepState(Space(space.baseline, {}, {}))
        self._sides = list(sides)
        self._least, self._most = visits

    def observe(self, event: JournalEvent) -> None:
        """Takes an event of the stage in."""
        self.state.fold(event)

    def decide(self, now_wall_s: float) -> Decision:
        """Returns the next visit, or why the comparison is over."""
        state = self.state
        if state.orphans:
            return Request(next(iter(state.orphans.values())), "was under way when interrupted")
        if len(self._sides) < 2:
            return Stop("no stage changed anything: there is nothing to compare", 0)
        if len(state.in_flight) >= self.rules.num_groups:
            return Wait("every group is busy")
        row = self._row()
        over = self._over(row, state.elapsed_s(now_wall_s))
        if over:
            return Wait(over) if state.in_flight else Stop(over, 0)
        least = min(self._count(side) for side in row)
        due = [side for side in row if self._count(side) == least]
        return self._visit(due[-1] if least % 2 else due[0], least)

    def _row(self) -> list[Side]:
        """Returns the sides that further visits can tell something of."""
        known = [(side, self.state.point_at(side.knobs)) for side in self._sides]
        return [side for side, name in known if name is None or not given_up(self.state, name)]

    def _count(self, side: Side) -> int:
        known = self.state.point_at(side.knobs)
        return len(self.state.started_of(known)) if known else 0

    def _over(self, row: Sequence[Side], elapsed_s: float) -> str:
        if not row:
            return "no side could be measured"
        least = min(self._count(side) for side in row)
        if least >= self._most:
            return f"{self._most} visits of each side"
        if least < self._least or self.state.in_flight:
            return ""
        soft_s = self.rules.soft_s
        if soft_s is not None and elapsed_s > soft_s:
            return f"{soft_s:.0f} s are over, {least} visits of each side"
        verdict = self._verdict()
        return f"{least} visits of each side: {verdict}" if verdict else ""

    def _verdict(self) -> str:
        """Returns the verdict in words once it can't be undetermined any more."""
        known = [side for side in self._sides if not side.label.startswith(ALL_BUT)]
        points = {side.label: self._point(side) for side in known}
        baseline, joint = points.pop(BASELINE), points.pop(ALL, None)
        base, together = _rate(baseline), _rate(joint)
        if base is None or together is None:
            return ""
        rates = {label: _rate(point) for label, point in points.items()}
        shared = shared_of(baseline, points, joint)
        found = multiplied(base, rates, together, self.rules.delta, shared)
        return "" if found.verdict is Multiply.UNDETERMINED else str(found.verdict)

    def _point(self, side: Side) -> Point | None:
        known = self.state.point_at(side.knobs)
        return self.state.points.get(known) if known else None

    def _visit(self, side: Side, count: int) -> Request:
        words = f"{_in_words(side.label)}, visit {count + 1}"
        known = self.state.point_at(side.knobs)
        if known is None:
            request = slice_visit(self.state, self.rules, side.knobs, words)
        else:
            request = revisit(self.state, self.rules, known, words, Purpose.SLICE)
        return Request(unraced(request.request), words)


def _rate(point: Point | None) -> Interval | None:
    return point.throughput if point else None


def unraced(request: TrialRequest) -> TrialRequest:
    """Returns the request without a rival to beat: every side is measured to the same end."""
    return replace(request, budget=replace(request.budget, incumbent_samples_per_s=None))


def _in_words(label: str) -> str:
    words = {BASELINE: "the baseline", ALL: "all winners together"}
    if label.startswith(ALL_BUT):
        return f"{label}, together"
    return words.get(label, f"the winner of {label} alone")
