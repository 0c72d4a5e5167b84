"""What searchers are compared on: a space, what each point truly gives, and a group that answers.

A table is simulated (here) or recorded (`lf_ray.bench.replay`). Searchers only ever see records.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from lf_ray.clock import FakeClock
from lf_ray.protocol import Knobs, KnobValue, TrialRecord, TrialRequest
from lf_ray.search.space import Space, point_key, space_from_literal
from lf_ray.testing.sim.cluster import SimulatedCluster, Truth

NEAR_FRAC = 0.02
"""A point this near to the best is as good as found; the same for every searcher."""

RATIOS: Sequence[KnobValue] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
SPACES: Mapping[str, Mapping[str, Sequence[KnobValue]]] = {
    "sim_8xa100": {
        "memory.backend": ("caching", "expandable", "arena"),
        "graph.scope": ("off", "step+optimizer"),
        "pipeline.prefix": ("off", "on"),
        "batch.per_gpu": (32, 48, 64, 96, 128),
        "data.workers": (0, 4),
        "overlap.bucket_size_mb": (16.0, 25.0, 64.0, 256.0, 1024.0),
        "overlap.ratio": RATIOS,
    },
    "sim_8xh200": {
        "memory.backend": ("caching", "expandable"),
        "graph.scope": ("off", "step+optimizer"),
        "pipeline.prefix": ("off", "on"),
        "batch.per_gpu": (16, 24, 32, 48, 64, 704, 768),
        "overlap.comm_dtype": ("fp32", "bf16"),
        "overlap.bucket_size_mb": (25.0, 64.0, 128.0, 256.0, 512.0, 1024.0),
        "overlap.ratio": RATIOS,
    },
    "sim_2xh200_slow": {
        "graph.scope": ("off", "step+optimizer"),
        "pipeline.prefix": ("off", "on"),
        "batch.per_gpu": (16, 24, 32, 48, 64),
        "overlap.comm_dtype": ("fp32", "bf16"),
        "overlap.bucket_size_mb": (1.0, 4.0, 25.0, 64.0, 128.0, 256.0, 512.0, 2048.0),
        "overlap.ratio": RATIOS,
    },
}
SPACES = {**SPACES, "sim_2xh200": SPACES["sim_2xh200_slow"]}


class Group(Protocol):
    """Warm workers on a turned clock."""

    def run(self, request: TrialRequest) -> TrialRecord:
        """Returns the record of one visit and moves the clock."""
        ...


class Table(Protocol):
    """A comparison's ground."""

    name: str
    num_gpus: int
    space: Space

    @property
    def recorded_frac(self) -> float:
        """Returns the share of the space's points of which the table knows something."""
        ...

    def true_samples_per_s(self, knobs: Knobs) -> float:
        """Returns what a point gives in the long run, 0 where it does not fit or is not known."""
        ...

    @property
    def suggestion(self) -> Knobs | None:
        """Returns what our sweeps would be told to try early on this machine; None for nothing."""
        ...

    def group(
        self, seed: int, clock: FakeClock, compiled: set[KnobValue], *, with_references: bool
    ) -> Group:
        """Returns a group that has not started yet.

        Args:
            seed: of what readings scatter by.
            clock: turned by everything that takes time.
            compiled: batches that the machine's compiler cache has; the group's are added.
            with_references: measure steps without communication as our own visits do.
        """
        ...


class SimTable:
    """A simulated cluster as a table."""

    recorded_frac = 1.0
    suggestion = None  # a simulated cluster would be told its own answer

    def __init__(self, name: str) -> None:
        self.name = name
        self.truth = Truth(name)
        self.num_gpus = self.truth.profile.num_ranks
        self.space = space_from_literal(SPACES[name], self.truth.baseline())

    def true_samples_per_s(self, knobs: Knobs) -> float:
        """Returns the model's throughput of a point."""
        return self.truth.samples_per_s(knobs)

    def group(
        self, seed: int, clock: FakeClock, compiled: set[KnobValue], *, with_references: bool
    ) -> SimulatedCluster:
        """Returns a simulated group."""
        return SimulatedCluster(
            self.truth, seed, clock, with_references=with_references, compiled=compiled
        )


class Ranking:
    """The true standing of every point of a table."""

    def __init__(self, table: Table) -> None:
        self._rates = {
            point_key(point): table.true_samples_per_s(point) for point in table.space.points()
        }
        self.best = max(self._rates.values())

    @property
    def num_points(self) -> int:
        """Returns the distinct points of the space."""
        return len(self._rates)

    @property
    def near_frac(self) -> float:
        """Returns the share of points within 2 % of the best; above 0.1 the table says little."""
        near = sum(rate >= (1 - NEAR_FRAC) * self.best for rate in self._rates.values())
        return near / len(self._rates)

    @property
    def oom_frac(self) -> float:
        """Returns the share of points that do not fit, or that the table does not know."""
        return sum(rate == 0 for rate in self._rates.values()) / len(self._rates)

    def regret_frac(self, knobs: Knobs | None) -> float:
        """Returns how far a recommendation truly lies below the best; 1 without one."""
        return 1.0 if knobs is None else 1 - self._rates[point_key(knobs)] / self.best
