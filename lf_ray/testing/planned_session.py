"""Any session with faults at chosen places: the project's own model under them, on GPUs too.

Memory that runs out does so for real on a CUDA device: the process's share is capped and one
allocation more is asked for; on a CPU torch's own error is raised in the same place.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lf_ray.protocol import StepSample, TrialRequest
from lf_ray.testing.sessions import Fault, kill_self, stop_self
from lf_ray.trial.ranks.contracts import WorkerSession

Act = Callable[[], None]


class PlannedSession:
    """Passes everything on to another session, but for the faults of its plan.

    Args:
        inner: the session that does the work.
        rank: its rank.
        faults: their phases may be build, rehearsal, capture and step.
        acts: what each kind of fault does.
    """

    def __init__(
        self, inner: WorkerSession, rank: int, faults: Sequence[Fault], acts: Mapping[str, Act]
    ) -> None:
        self._inner = inner
        self._rank = rank
        self._faults = tuple(faults)
        self._acts = acts
        self._request = ""
        self._step = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def prepare(self, request: TrialRequest) -> Mapping[str, Any]:
        """Builds the request, after what is planned here."""
        self._request, self._step = request.id, 0
        self._at("build")
        return self._inner.prepare(request)

    def rehearse(self) -> None:
        """Rehearses, after what is planned here."""
        self._at("rehearsal")
        self._inner.rehearse()

    def capture(self) -> Mapping[str, float]:
        """Captures, after what is planned here."""
        self._at("capture")
        return self._inner.capture()

    def run(self, num_steps: int) -> list[StepSample]:
        """Runs the steps; before a step with a planned fault the other ranks go on without."""
        samples: list[StepSample] = []
        begin, end = self._step, self._step + num_steps
        for step in range(begin, end):
            if kinds := self._due("step", step):
                samples += self._ran(step - self._step)
                self._do(kinds)
        return samples + self._ran(end - self._step)

    def _ran(self, num_steps: int) -> list[StepSample]:
        self._step += num_steps
        return self._inner.run(num_steps) if num_steps else []

    def _at(self, phase: str) -> None:
        self._do(self._due(phase, 0))

    def _due(self, phase: str, step: int) -> list[str]:
        fired = (f for f in self._faults if f.fires(self._rank, phase, self._request, step))
        return [fault.kind for fault in fired]

    def _do(self, kinds: Sequence[str]) -> None:
        for kind in kinds:
            self._acts[kind]()


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedFactory:
    """Makes planned sessions around those of another factory; picklable."""

    make_session: Callable[[Any], WorkerSession]
    faults: tuple[Fault, ...]

    def __call__(self, place: Any) -> PlannedSession:
        """Returns the session of the rank at this place."""
        acts: Mapping[str, Act] = {
            "oom": lambda: run_out_of_memory(str(place.device)),
            "sigkill": kill_self,
            "sigstop": stop_self,
            "exception": _fail,
        }
        return PlannedSession(self.make_session(place), place.rank, self.faults, acts)


def _fail() -> None:
    raise RuntimeError("planned exception")


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
