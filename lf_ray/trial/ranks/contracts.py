"""What a visit needs from the rest, as protocols: a session, a control line, a watch.

Real ones: `runtime.session`, `trial.ranks.control`, `trial.ranks.serve`; fakes for tests:
`lf_ray.testing.sessions`. No torch, no Ray.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from lf_ray.protocol import (
    GateResult,
    GradientTensor,
    KnobValue,
    StepSample,
    TrialRequest,
)
from lf_ray.trial.faults.outcomes import ErrorReport


class WorkerSession(Protocol):
    """One worker's model, data and step, as a visit needs it."""

    @property
    def samples_per_step(self) -> int:
        """Returns the samples over all ranks that one step consumes."""
        ...

    @property
    def lr(self) -> Sequence[float]:
        """Returns the learning rate of each step since `prepare`."""
        ...

    @property
    def gradients(self) -> tuple[GradientTensor, ...]:
        """Returns what is sent, in ready order; empty before the first backward."""
        ...

    @property
    def costs_s(self) -> Mapping[str, float]:
        """Returns seconds of this visit that a phase hides, by name: reference ..."""
        ...

    def prepare(self, request: TrialRequest) -> Mapping[str, KnobValue]:
        """Builds what the request asks for, without communication; returns what is in force."""
        ...

    def rehearse(self) -> None:
        """Runs forward-backward on the longest batch, without communication."""
        ...

    def capture(self) -> Mapping[str, float]:
        """Captures the step where the request asks for it; returns its metrics."""
        ...

    def run(self, num_steps: int) -> list[StepSample]:
        """Runs and times steps on this rank."""
        ...

    def gate(self) -> GateResult:
        """Compares the first steps with the reference's, over all ranks."""
        ...

    def measure_overlap(self) -> Mapping[str, float]:
        """Measures what the step would take without communication, once for equal settings."""
        ...

    def measure_noise(self, num_steps: int) -> tuple[Sequence[float], Sequence[float], int, int]:
        """Takes squared gradient norms over further batches, without an update.

        Returns this rank's of a small batch, those of a large one, and both batches in samples;
        nothing where the trainer doesn't show its gradients. Never called while steps are timed.
        """
        ...

    def memory(self) -> Mapping[str, float]:
        """Returns bytes by name: allocated, reserved, peak ..."""
        ...

    def news(self) -> Sequence[str]:
        """Returns in words what went wrong on this rank since it was asked last, and was got over.

        A decoding process that was killed and replaced, frames that were skipped.
        """
        ...

    def reset(self) -> Mapping[str, float]:
        """Restores the state before any trial and returns the memory levels that prove it."""
        ...

    def close(self) -> None:
        """Releases graphs, then everything else."""
        ...


class Control(Protocol):
    """The ranks' own line for status, decisions and digests, apart from the gradients' one."""

    @property
    def rank(self) -> int:
        """Returns this rank."""
        ...

    @property
    def size(self) -> int:
        """Returns the number of ranks."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """Returns every rank's plain JSON value, in rank order, on every rank."""
        ...

    def broadcast(self, value: Any) -> Any:
        """Returns rank 0's plain JSON value on every rank."""
        ...


class Watch(Protocol):
    """Who is told what a rank is doing and how long that may take."""

    def enter(self, phase: str, limit_s: float | None) -> None:
        """Notes that a phase begins; never called inside a timed block."""
        ...

    def fault(self, report: ErrorReport) -> None:
        """Tells at once of an error that other ranks may be waiting on."""
        ...
