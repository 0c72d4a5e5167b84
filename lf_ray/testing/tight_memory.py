"""Any session with too little memory at a chosen gate, on chosen ranks: for real on a GPU.

On a CUDA device the process's share of memory is capped and one allocation more is asked for; on
a CPU torch's own error is raised in the same place.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lf_ray.protocol import StepSample, TrialRequest
from lf_ray.testing.sessions import Fault
from lf_ray.trial.ranks.contracts import WorkerSession


class TightSession:
    """Passes everything on to another session, but for its faults of kind oom.

    Args:
        inner: the session that does the work.
        rank: its rank.
        faults: their phases may be build, rehearsal, capture and step.
        run_out: raises torch's error.
    """

    def __init__(
        self,
        inner: WorkerSession,
        rank: int,
        faults: Sequence[Fault],
        run_out: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._rank = rank
        self._faults = tuple(faults)
        self._run_out = run_out
        self._request = ""
        self._step = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def prepare(self, request: TrialRequest) -> Mapping[str, Any]:
        """Builds the request, unless memory is to run out here."""
        self._request, self._step = request.id, 0
        self._at("build")
        return self._inner.prepare(request)

    def rehearse(self) -> None:
        """Rehearses, unless memory is to run out here."""
        self._at("rehearsal")
        self._inner.rehearse()

    def capture(self) -> Mapping[str, float]:
        """Captures, unless memory is to run out here."""
        self._at("capture")
        return self._inner.capture()

    def run(self, num_steps: int) -> list[StepSample]:
        """Runs the steps up to the one in which memory is to run out."""
        samples: list[StepSample] = []
        for step in range(self._step, self._step + num_steps):
            if self._due("step", step):
                samples += self._inner.run(step - self._step) if step > self._step else []
                self._run_out()
        samples += self._inner.run(num_steps)
        self._step += num_steps
        return samples

    def _at(self, phase: str) -> None:
        if self._due(phase, 0):
            self._run_out()

    def _due(self, phase: str, step: int) -> bool:
        return any(fault.fires(self._rank, phase, self._request, step) for fault in self._faults)


@dataclass(frozen=True, kw_only=True, slots=True)
class TightFactory:
    """Makes tight sessions around those of another factory; picklable."""

    make_session: Callable[[Any], WorkerSession]
    faults: tuple[Fault, ...]

    def __call__(self, place: Any) -> TightSession:
        """Returns the session of the rank at this place."""
        inner = self.make_session(place)
        return TightSession(
            inner, place.rank, self.faults, lambda: run_out_of_memory(str(place.device))
        )


def run_out_of_memory(device: str) -> None:
    """Raises torch's own error: from the allocator on a GPU, as words on a CPU."""
    import torch

    if not device.startswith("cuda"):
        raise torch.OutOfMemoryError("planned: out of memory")
    total_bytes = torch.cuda.mem_get_info(device)[1]
    cap = torch.cuda.memory_reserved(device) / total_bytes
    torch.cuda.set_per_process_memory_fraction(cap, device)
    try:
        torch.empty(2**30, dtype=torch.uint8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
