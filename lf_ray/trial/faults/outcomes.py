"""Errors and odd numbers of single ranks, turned into one outcome that names the first of them.

Pure: text in, outcome out. Errors are told apart by name and text, so that torch, which raises
most of them, need not be imported here.
"""

import math
import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lf_ray.errors import (
    CaptureError,
    ConfigError,
    DataError,
    MachineError,
    TrainerError,
    TrainerHungError,
)
from lf_ray.protocol import OutcomeKind, StepSample, TrialOutcome, Wire

PEER_LOST = "peer_lost"
_OOM_TEXTS = (
    "out of memory",
    "can't allocate memory",
    "cudnn_status_alloc_failed",
    "cublas_status_alloc_failed",
)
_PEER_TEXTS = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "socket closed",
    "communicator was aborted",
    "remote process exited",
    "timed out waiting",
    "connection refused",
    # Of torch's store, where the rank that holds it has ended.
    "connection was likely closed",
    "while trying to connect",
)
_HANG_TEXTS = ("collective operation timeout", "watchdog got stuck")
_INFEASIBLE = frozenset({"oom", "host_memory", "machine", "settings"})
_MAX_REASON_CHARS = 400
_STANDARD_LIBRARY = os.path.dirname(os.__file__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorReport(Wire):
    """What one rank met, as text: no exception, no frames, no tensors held by them.

    Attributes:
        phase: what the rank was doing (build, rehearsal, first step, capture, steps, reset ...).
        kind: see `TrialOutcome.error_kind`, or peer_lost where another rank's end is all it saw.
        where: file, line and function of the innermost frame that is ours.
        contained: it befell a process of its own, and the rank could go on.
    """

    rank: int
    phase: str
    kind: str
    text: str
    where: str
    wall_s: float
    contained: bool = False

    @property
    def line(self) -> str:
        """Returns the report as one line."""
        place = f" at {self.where}" if self.where else ""
        return f"rank {self.rank}, {self.phase}: {self.text}{place}"


def error_kind(error: BaseException) -> str:
    """Returns the class of like reasons that an exception belongs to."""
    names = {item.__name__ for item in type(error).__mro__}
    text = str(error).lower()
    if "OutOfMemoryError" in names or any(part in text for part in _OOM_TEXTS):
        return "oom"
    if isinstance(error, TrainerHungError) or any(part in text for part in _HANG_TEXTS):
        return "hang"
    if isinstance(error, MemoryError):
        return "host_memory"
    if isinstance(error, CaptureError):
        return "capture"
    if isinstance(error, ConfigError):
        return "settings"
    if isinstance(error, MachineError):
        return "machine"
    if any(part in text for part in _PEER_TEXTS) and not isinstance(error, DataError):
        return PEER_LOST
    return "exception"


def error_report(error: BaseException, *, rank: int, phase: str, wall_s: float) -> ErrorReport:
    """Returns the report of an exception and lets go of the frames (and tensors) it holds."""
    report = ErrorReport(
        rank=rank,
        phase=phase,
        kind=error_kind(error),
        text=_one_line(f"{type(error).__name__}: {error}"),
        where="" if isinstance(error, TrainerError) else _where(error),
        wall_s=wall_s,
        contained=isinstance(error, TrainerError),
    )
    seen: set[int] = set()
    chain: BaseException | None = error
    while chain is not None and id(chain) not in seen:
        seen.add(id(chain))
        traceback.clear_frames(chain.__traceback__)
        following = chain.__cause__ or chain.__context__
        chain.__traceback__ = None
        chain = following
    return report


def _where(error: BaseException) -> str:
    return innermost(traceback.extract_tb(error.__traceback__))


def innermost(frames: Sequence[traceback.FrameSummary]) -> str:
    """Returns file, line and function of the innermost frame that is no library's."""
    ours = [
        item
        for item in frames
        if not item.filename.startswith((_STANDARD_LIBRARY, "<"))
        and "site-packages" not in item.filename
    ]
    if not ours:
        return ""
    last = ours[-1]
    return f"{'/'.join(last.filename.rsplit('/', 3)[-3:])}:{last.lineno} in {last.name}"


def _one_line(text: str) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= _MAX_REASON_CHARS else f"{joined[:_MAX_REASON_CHARS]}..."


def first_error(reports: Sequence[ErrorReport]) -> ErrorReport:
    """Returns the report that explains the others.

    A rank that only saw its peer go explains nothing where another one has an error of its own.
    """
    return min(reports, key=lambda item: (item.kind == PEER_LOST, item.wall_s, item.rank))


def outcome_of_errors(
    reports: Sequence[ErrorReport], *, num_ranks: int, communicated: bool
) -> TrialOutcome:
    """Returns the outcome that ranks' errors in one phase make.

    Where ranks talk to each other in the phase (`communicated`), one rank's error may have left
    another in the middle of a collective: the group is lost with it.
    """
    first = first_error(reports)
    kind = "worker_lost" if first.kind == PEER_LOST else first.kind
    infeasible = kind in _INFEASIBLE
    agreed = len(reports) == num_ranks
    # Out of memory before any communication leaves nothing half sent, on one rank or on all.
    harmless = kind in ("oom", "host_memory") or (infeasible and agreed)
    contained = all(item.contained for item in reports)
    others = f" ({len(reports)} of {num_ranks} ranks)" if len(reports) > 1 else ""
    return TrialOutcome(
        kind=OutcomeKind.INFEASIBLE if infeasible else OutcomeKind.FAILED,
        reason=first.line + others,
        rank=first.rank,
        error_kind="settings" if kind == "machine" else kind,
        stop_rule="error",
        group_lost=not contained and (communicated or not harmless),
    )


def divergence(samples: Mapping[int, Sequence[StepSample]]) -> TrialOutcome | None:
    """Returns the outcome of a loss or grad norm that is no number, naming its first rank.

    The reduced gradient carries one rank's NaN to all, so a rank whose own loss is bad is named
    before one that only received it.
    """
    bad = [
        (item.step, math.isfinite(item.loss), rank, item)
        for rank, steps in samples.items()
        for item in steps
        if not (math.isfinite(item.loss) and math.isfinite(item.grad_norm))
    ]
    if not bad:
        return None
    step, loss_is_finite, rank, sample = min(bad, key=lambda item: item[:3])
    what = f"grad norm is {sample.grad_norm}" if loss_is_finite else f"loss is {sample.loss}"
    return TrialOutcome(
        kind=OutcomeKind.FAILED,
        reason=f"diverged: {what} on rank {rank} in step {step}",
        rank=rank,
        error_kind="diverged",
        stop_rule="error",
    )


def lost(kind: str, reason: str, rank: int | None = None) -> TrialOutcome:
    """Returns the outcome of a trial whose group is gone."""
    infeasible = kind in _INFEASIBLE
    return TrialOutcome(
        kind=OutcomeKind.INFEASIBLE if infeasible else OutcomeKind.FAILED,
        reason=_one_line(reason),
        rank=rank,
        error_kind=kind,
        stop_rule="error",
        group_lost=True,
    )
