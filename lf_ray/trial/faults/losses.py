"""Whether a group is lost, and which of the signs is the first cause. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lf_ray.protocol import TrialOutcome
from lf_ray.trial.faults.deadlines import Progress, Standing, hang
from lf_ray.trial.faults.outcomes import (
    PEER_LOST,
    ErrorReport,
    first_error,
    lost,
    outcome_of_errors,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Graces:
    """How long to wait for a better sign before a verdict.

    Attributes:
        fault_s: after one rank's error: for the others to reach the gate, or to tell theirs.
        gone_s: after a process is gone: for Ray to say why (its memory monitor may have ended it).
        late_s: after a deadline: for late ranks to say where they stand.
    """

    fault_s: float = 1.0
    gone_s: float = 2.5
    late_s: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Signs:
    """What is known of a group's ranks at one moment.

    Attributes:
        agreed: the outcome that the ranks closed a gate with (start or reset), if any.
        faults: errors told by single ranks.
        first_s: when the first fault was told or the first process found gone.
        processes: running, stopped, gone or unknown, by rank.
        gone: ranks whose process is gone, in the order in which that was seen.
        ended: why the launcher's side is over, None while it runs.
    """

    num_ranks: int
    now_s: float
    agreed: TrialOutcome | None = None
    faults: Sequence[ErrorReport] = ()
    first_s: float | None = None
    processes: Mapping[int, str] = field(default_factory=dict)
    gone: Sequence[int] = ()
    ended: TrialOutcome | None = None
    progress: Mapping[int, Progress] = field(default_factory=dict)
    standings: Mapping[int, Standing] = field(default_factory=dict)
    graces: Graces = field(default_factory=Graces)

    @property
    def first_gone(self) -> int:
        """Returns the rank that went first; one that could still tell of a fault did not."""
        told = {item.rank for item in self.faults}
        return next((rank for rank in self.gone if rank not in told), self.gone[0])

    def waited(self, grace_s: float) -> bool:
        """Returns whether the first sign is older than this."""
        return self.first_s is not None and self.now_s - self.first_s > grace_s


def loss_of(signs: Signs) -> TrialOutcome | None:
    """Returns why the group is lost, None while it is not.

    An agreed outcome tells most; then a rank's own error; then what Ray says; then a process that
    is gone; then ranks that only saw a peer go; last a deadline that has passed.
    """
    if signs.agreed is not None:
        return signs.agreed
    over = signs.ended is not None or signs.waited(signs.graces.fault_s)
    own = [item for item in signs.faults if item.kind != PEER_LOST]
    if own and over:
        return outcome_of_errors([first_error(own)], num_ranks=signs.num_ranks, communicated=True)
    if signs.ended is not None:
        return _named(signs.ended, signs)
    if signs.gone:
        if not signs.waited(signs.graces.gone_s):
            return None
        rank = signs.first_gone
        return lost("worker_lost", f"the process of rank {rank} is gone", rank)
    if signs.faults and over:
        return outcome_of_errors(signs.faults, num_ranks=signs.num_ranks, communicated=True)
    return hang(signs.progress, signs.standings, signs.processes, signs.now_s, signs.graces.late_s)


def _named(ended: TrialOutcome, signs: Signs) -> TrialOutcome:
    """Returns the launcher's reason with the rank that only the processes tell.

    Train may have ended the others by the time it speaks; who went first is what counts.
    """
    if not signs.gone or ended.error_kind not in ("worker_lost", "host_memory"):
        return ended
    rank = signs.first_gone
    return lost(ended.error_kind, f"the process of rank {rank} is gone; {ended.reason}", rank)
