"""What a sweep has come to, folded from the events of its journal and from nothing else.

So that a resumed sweep stands exactly where the interrupted one stood. Keeps books; decides
nothing.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from lf_ray.analysis.knee import Knee
from lf_ray.analysis.points import Gathered, Gatherer, Point, best_of, eligible
from lf_ray.measure.starts import Starts
from lf_ray.protocol import (
    GradientTensor,
    Knobs,
    KnobValue,
    OutcomeKind,
    Purpose,
    TrialRecord,
    TrialRequest,
)
from lf_ray.record.events import JournalEvent
from lf_ray.record.history import DeadPoint
from lf_ray.search.plan.audit import audited
from lf_ray.search.plan.boundary import (
    Effects,
    Misfit,
    credible,
    dominating,
    gradient_bytes,
    memory_key,
    twin_reason,
    undecoded_knobs,
)
from lf_ray.search.plan.prices import Prices, prices_of
from lf_ray.search.space import Space, point_key

TRIAL_PURPOSES = (Purpose.BASELINE, Purpose.SEARCH)
MAX_STARTS = 3


@dataclass
class SweepState:
    """Everything that decisions rest on.

    Attributes:
        space: what varies; ladders become values once the baseline has told what is sent.
        phase: search | remeasure | slices | done.
        anchor: id of the point that the slices go through.
        records: what came back, by point; in_order: all of it, as it came.
        in_flight: requests sent by this process of which nothing came back yet.
        orphans: requests that were under way when the sweep was interrupted.
        active_s: seconds at work up to the last event, pauses between resumes left out.
        opened_s: of these, until the first record came back.
        undecoded: data knobs that do nothing, because no frame is left to decode, by data.cache.
        knees: what slices said, by anchor, knob and how much was known.
        misfits: points found infeasible; fitting: those that completed.
        streak: kind of the latest failures in a row, and how many.
        start: of the workers, from which the latest record came, from 1; baseline_start: in which
            the baseline was visited last.
    """

    space: Space
    phase: str = "search"
    phase_reason: str = ""
    anchor: str | None = None
    num_slicings: int = 0
    records: dict[str, list[TrialRecord]] = field(default_factory=dict)
    in_order: list[TrialRecord] = field(default_factory=list)
    requests: dict[str, TrialRequest] = field(default_factory=dict)
    starts: Counter[str] = field(default_factory=Counter)
    in_flight: dict[str, TrialRequest] = field(default_factory=dict)
    orphans: dict[str, TrialRequest] = field(default_factory=dict)
    num_rounds: int = 0
    open_suggestions: list[Knobs] = field(default_factory=list)
    dead: list[DeadPoint] = field(default_factory=list)
    misfits: list[Misfit] = field(default_factory=list)
    fitting: list[Knobs] = field(default_factory=list)
    gradients: tuple[GradientTensor, ...] = ()
    undecoded: dict[KnobValue, tuple[str, ...]] = field(default_factory=dict)
    effects: Effects = field(default_factory=Effects)
    streak: tuple[str, int] = ("", 0)
    streak_reason: str = ""
    last_knobs: Knobs | None = None
    baseline_id: str | None = None
    visits_since_baseline: int = 0
    start: int = 0
    baseline_start: int = 0
    ended: tuple[str, int] | None = None
    hurried: bool = False
    active_s: float = 0.0
    opened_s: float = 0.0
    num_records: int = 0
    last_wall_s: float | None = None

    def __post_init__(self) -> None:
        self._by_key: dict[str, str] = {}
        self._by_effect: dict[str, str] = {}
        self._starts = Starts()
        self._gathered: Gathered | None = None
        self._credible: list[Misfit] = []
        self._dominating: dict[tuple[object, ...], tuple[str, str] | None] = {}
        self._gatherer = Gatherer()
        self._best: Point | None = None
        self._points: dict[str, Point] = {}
        self.knees: dict[tuple[str, str, int, int], Knee] = {}

    def fold(self, event: JournalEvent) -> None:
        """Takes one event in."""
        resumed = event.kind == "note" and bool(event.data.get("resumed"))
        if self.last_wall_s is not None and not resumed:
            self.active_s += max(0.0, event.wall_s - self.last_wall_s)
        self.last_wall_s = event.wall_s
        if event.kind in ("started", "replicate"):
            self._fold_started(TrialRequest.from_json(event.data["request"]))
        elif event.kind == "finished":
            self._fold_finished(audited(TrialRecord.from_json(event.data["record"])))
        elif event.kind == "round":
            self.num_rounds += 1
            self.open_suggestions = [dict(item) for item in event.data["suggestions"]]
        elif event.kind == "dead":
            self._fold_dead(event)
        elif event.kind == "stage" and "phase" in event.data:
            self._fold_phase(event)
        elif event.kind == "ended":
            self.ended = (str(event.data["reason"]), int(event.data["exit_code"]))
        elif event.kind == "note" and event.data.get("hurried"):
            self.hurried = True
        elif resumed:
            self.orphans.update(self.in_flight)
            self.in_flight.clear()
            self.ended = None

    def _fold_started(self, request: TrialRequest) -> None:
        point_id = request.replicate_of or request.id
        self.orphans.pop(request.id, None)
        self.in_flight[request.id] = request
        self.requests[request.id] = request
        self.starts[request.id] += 1
        if self.starts[request.id] > 1:
            return
        self._by_key.setdefault(point_key(request.knobs), point_id)
        if self.gradients or self.undecoded:
            self._by_effect.setdefault(self.effects.key(request.knobs), point_id)
        self._close_suggestion(request.knobs)
        self.last_knobs = request.knobs
        if request.purpose is Purpose.BASELINE:
            self.baseline_id = request.id
            self.space = self.space.rebased(request.knobs)
        is_baseline = point_id == self.baseline_id
        self.visits_since_baseline = 0 if is_baseline else self.visits_since_baseline + 1

    def _fold_finished(self, record: TrialRecord) -> None:
        request = record.request
        self.in_flight.pop(request.id, None)
        self.orphans.pop(request.id, None)
        group = self.records.setdefault(record.point_id, [])
        group.append(record)
        self.in_order.append(record)
        self._gathered = None
        self.start = self._starts.number(record)
        if record.point_id == self.baseline_id:
            self.baseline_start = self.start
        self.num_records += 1
        if len(self.records) == 1 and len(group) == 1:
            self.opened_s = self.active_s
        if record.gradients and not self.gradients:
            self._learn_gradients(record.gradients)
        undecoded = undecoded_knobs(record)
        if undecoded.keys() - self.undecoded.keys():
            self.undecoded |= undecoded
            self._learn_effects()
        if record.outcome.kind is OutcomeKind.INFEASIBLE:
            self.misfits.append(Misfit(request.id, request.knobs, record.outcome))
        if record.outcome.kind is OutcomeKind.FAILED:
            kind, count = self.streak
            same = kind == record.outcome.error_kind
            self.streak = (record.outcome.error_kind, count + 1 if same else 1)
            self.streak_reason = record.outcome.reason
        elif record.outcome.kind is OutcomeKind.COMPLETED:
            self.streak = ("", 0)
            self.fitting.append(request.knobs)
        self._credible = credible(self.misfits, self.fitting)
        self._dominating.clear()

    def _learn_gradients(self, gradients: tuple[GradientTensor, ...]) -> None:
        self.gradients = gradients
        sent = gradient_bytes(gradients, self.space.baseline["overlap.comm_dtype"])
        self.space = self.space.resolved(sent)
        self._learn_effects()

    def _learn_effects(self) -> None:
        self.effects = Effects(self.gradients, self.undecoded)
        self._by_effect.clear()
        for request in self.requests.values():
            key = self.effects.key(request.knobs)
            self._by_effect.setdefault(key, request.replicate_of or request.id)

    def _fold_dead(self, event: JournalEvent) -> None:
        data = event.data
        point = DeadPoint(knobs=dict(data["knobs"]), same_as=data["same_as"], reason=data["reason"])
        self.dead.append(point)
        self._close_suggestion(point.knobs)

    def _fold_phase(self, event: JournalEvent) -> None:
        self.phase = str(event.data["phase"])
        self.phase_reason = str(event.data["reason"])
        if self.phase == "slices":
            self.anchor = str(event.data["best"])
            self.num_slicings += 1

    def _close_suggestion(self, knobs: Knobs) -> None:
        key = point_key(knobs)
        self.open_suggestions = [item for item in self.open_suggestions if point_key(item) != key]

    def elapsed_s(self, now_wall_s: float) -> float:
        """Returns the seconds that the sweep has been at work, pauses between resumes left out."""
        if self.last_wall_s is None:
            return 0.0
        return self.active_s + max(0.0, now_wall_s - self.last_wall_s)

    @property
    def num_trials(self) -> int:
        """Returns the started trials, each once; replicates and slice visits are none."""
        return sum(r.purpose in TRIAL_PURPOSES for r in self.requests.values())

    @property
    def baseline(self) -> Point | None:
        """Returns the baseline's point once something came back of it."""
        return self.points.get(self.baseline_id) if self.baseline_id else None

    @property
    def best(self) -> Point | None:
        """Returns the point that would be called best now."""
        self._gather()
        return self._best

    @property
    def eligible(self) -> list[Point]:
        """Returns the points that compete: completed, gated, finite."""
        return eligible(self.points.values())

    @property
    def points(self) -> dict[str, Point]:
        """Returns what is known of each setting by id, in the order in which they came back."""
        self._gather()
        return self._points

    def _gather(self) -> Gathered:
        if self._gathered is None:
            self._gathered = self._gatherer.gather(self.in_order)
            self._points = {point.id: point for point in self._gathered.points}
            self._best = best_of(self._gathered.points)
        return self._gathered

    @property
    def prices(self) -> Prices:
        """Returns what visits would cost now."""
        return prices_of(self.in_order, self.last_knobs)

    def point_at(self, knobs: Knobs) -> str | None:
        """Returns the id of the point with exactly these knobs, if it was ever started."""
        return self._by_key.get(point_key(knobs))

    def twin_of(self, knobs: Knobs) -> str | None:
        """Returns the id of a started point that comes to the same thing."""
        if not self.gradients and not self.undecoded:
            return None
        return self._by_effect.get(self.effects.key(knobs))

    def ruled_out(self, knobs: Knobs) -> tuple[str, str] | None:
        """Returns id and reason of what makes a trial of this point pointless."""
        known = self.point_at(knobs)
        if known:
            return known, f"the same knobs as {known}"
        twin = self.twin_of(knobs)
        if twin:
            return twin, twin_reason(knobs, self.requests[twin].knobs, twin)
        need = memory_key(knobs)
        if need not in self._dominating:
            self._dominating[need] = dominating(knobs, self._credible)
        return self._dominating[need]

    def num_visits(self, point_id: str) -> int:
        """Returns the settled visits of a point."""
        point = self.points.get(point_id)
        return len(point.visits) if point else 0

    def num_failures(self, point_id: str) -> int:
        """Returns how often a visit of the point came to nothing."""
        good = (OutcomeKind.COMPLETED, OutcomeKind.PRUNED)
        return sum(r.outcome.kind not in good for r in self.records.get(point_id, ()))

    def started_of(self, point_id: str) -> list[TrialRequest]:
        """Returns the requests that visited a point, in order."""
        return [
            request
            for request in self.requests.values()
            if (request.replicate_of or request.id) == point_id
        ]

    def counts(self) -> dict[str, int]:
        """Returns how many trials ended in which way, by outcome."""
        trials = [p for p in self.points.values() if p.purpose in TRIAL_PURPOSES]
        found = Counter(str(point.outcome.kind) for point in trials)
        return {str(kind): found.get(str(kind), 0) for kind in OutcomeKind}


def state_of(space: Space, events: Iterable[JournalEvent]) -> SweepState:
    """Returns the state that a journal has led to."""
    state = SweepState(space)
    for event in events:
        state.fold(event)
    return state
