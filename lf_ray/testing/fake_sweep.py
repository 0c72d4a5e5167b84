"""A whole sweep in this process, for tests: fake clock, journal in memory, any objective."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lf_ray.clock import FakeClock
from lf_ray.protocol import KnobValue, TrialRecord, TrialRequest
from lf_ray.record.events import JournalEvent
from lf_ray.search.conductor import Conductor, MemoryLog, Observer, run_in_process
from lf_ray.search.plan.decisions import Proposer, Rules, Stop
from lf_ray.search.plan.state import SweepState
from lf_ray.search.planner import Planner
from lf_ray.search.samplers.plain import RandomProposer
from lf_ray.search.space import Literal, space_from_literal
from lf_ray.testing.objectives import BASELINE_KNOBS

RATIOS = tuple(place / 10 for place in range(11))
DEFAULT_LITERAL: Literal = {
    "overlap.bucket_size_mb": [2.0, 4.0, 8.0, 16.0, 32.0],
    "overlap.ratio": RATIOS,
}


@dataclass
class FakeSweep:
    """One sweep, and what can be asked about it afterwards.

    Attributes:
        execute: answers requests; see `lf_ray.testing.objectives`.
        log: its journal, once it has begun; likewise state.
    """

    execute: Callable[[TrialRequest], TrialRecord]
    literal: Literal = field(default_factory=lambda: DEFAULT_LITERAL)
    rules: Rules = field(default_factory=Rules)
    proposer: Proposer = field(default_factory=RandomProposer)
    baseline: Mapping[str, KnobValue] = field(default_factory=lambda: dict(BASELINE_KNOBS))
    observers: Sequence[Observer] = ()
    clock: FakeClock = field(default_factory=FakeClock)

    def conductor(self, events: Sequence[JournalEvent] = ()) -> Conductor:
        """Begins the sweep, or goes on after the events of an interrupted one."""
        space = space_from_literal(self.literal, self.baseline)
        self.log = MemoryLog(self.clock)
        self.log.events.extend(events)
        planner = Planner(space, self.rules, self.proposer)
        conductor = Conductor(planner, self.log, self.observers, self.clock)
        header: dict[str, Any] = {"id": "x", "name": "overlap", "space": space.to_plain()}
        conductor.begin(header, events)
        self.state: SweepState = planner.state
        return conductor

    def run(self, events: Sequence[JournalEvent] = ()) -> Stop:
        """Runs the sweep to its end."""
        return run_in_process(self.conductor(events), self.execute)

    def started(self, purpose: str | None = None) -> list[TrialRequest]:
        """Returns the requests that were sent, of one purpose or all."""
        kinds = ("started", "replicate")
        requests = [
            TrialRequest.from_json(event.data["request"])
            for event in self.log.events
            if event.kind in kinds
        ]
        return [request for request in requests if purpose in (None, request.purpose)]

    def lines(self, kind: str) -> list[Mapping[str, Any]]:
        """Returns what the events of a kind say."""
        return [event.data for event in self.log.events if event.kind == kind]
