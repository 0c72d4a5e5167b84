"""Sessions without a model: known step times, and faults where a plan says so.

One fake serves tests in threads and in Ray's workers. What a fault does to its own process
(kill, stop) and how ranks meet (a collective) is handed in, so that the same plan means the same
thing in both places.
"""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lf_ray.errors import CaptureError, ConfigError, DataError, MachineError
from lf_ray.protocol import (
    GateResult,
    GradientTensor,
    KnobValue,
    StepSample,
    TrialRequest,
)


class OutOfMemoryError(RuntimeError):
    """Has the name by which torch's own is told apart."""


_ERRORS: Mapping[str, type[Exception]] = {
    "oom": OutOfMemoryError,
    "exception": RuntimeError,
    "capture": CaptureError,
    "settings": ConfigError,
    "machine": MachineError,
    "data": DataError,
}


TWO_TENSORS = (
    GradientTensor(name="b", num_elements=2, layer="l1"),
    GradientTensor(name="a", num_elements=1, layer="l0"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Something that goes wrong, once or each time.

    Attributes:
        kind: oom | exception | capture | settings | machine | data (raised), sigkill | sigstop
            (the process itself), nan (a loss), sleep (late by `seconds`), disagree (other effective
            settings than rank 0), mismatch (others than asked), short (one step less), news (it
            got over something).
        phase: start | build | rehearsal | capture | step | collective | gate | memory | reset.
        ranks: where it happens.
        request: id of the request; None for any.
        step: in which step of the visit (phases step and collective).
        once: a file that marks that it has happened; None lets it happen each time.
    """

    kind: str
    phase: str
    ranks: tuple[int, ...] = (0, 1)
    request: str | None = None
    step: int = 0
    seconds: float = 0.0
    once: str | None = None

    def fires(self, rank: int, phase: str, request: str, step: int) -> bool:
        """Returns whether it happens here and now, and marks it."""
        here = rank in self.ranks and phase == self.phase and step == self.step
        if not here or self.request not in (None, request):
            return False
        if self.once is None:
            return True
        try:
            with Path(f"{self.once}.rank{rank}").open("x"):
                return True
        except FileExistsError:
            return False


def kill_self() -> None:
    """Ends this process as a lost machine would."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop_self() -> None:
    """Stops this process as a hang would."""
    os.kill(os.getpid(), signal.SIGSTOP)


@dataclass(kw_only=True, slots=True)
class Body:
    """What a fake may do to the world: meet other ranks, sleep, die."""

    meet: Callable[[float], None]
    sleep: Callable[[float], None] = time.sleep
    kill: Callable[[], None] = kill_self
    stop: Callable[[], None] = stop_self


@dataclass(kw_only=True, slots=True)
class FakeSession:
    """A session whose step takes a known time: `base_s` x (1 + distance from the knee)."""

    rank: int
    world_size: int
    body: Body
    faults: Sequence[Fault] = ()
    base_s: float = 0.01
    sleeps: bool = True
    samples_per_step: int = 8
    told_gradients: tuple[GradientTensor, ...] = TWO_TENSORS
    lr: list[float] = field(default_factory=list)
    costs_s: dict[str, float] = field(default_factory=dict)
    request: TrialRequest | None = None
    step: int = 0
    weights: float = 1.0
    closed: bool = False
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._fault("start")

    @property
    def gradients(self) -> tuple[GradientTensor, ...]:
        """Returns what it was told to say, once a step has run."""
        return self.told_gradients if self.step else ()

    def prepare(self, request: TrialRequest) -> Mapping[str, KnobValue]:
        """Takes the request; returns its knobs and the rank's opinion of them."""
        self.calls.append("prepare")
        self.request = request
        kind = self._fault("build")
        return {
            "num_buckets": int(64 / float(request.knobs["overlap.bucket_size_mb"])),
            "graph": "emulated",
            "odd": kind == "disagree",
            "settings_mismatch": "nccl_algo is tree, asked ring" if kind == "mismatch" else "",
        }

    def rehearse(self) -> None:
        """Only fails."""
        self._fault("rehearsal")

    def capture(self) -> Mapping[str, float]:
        """Only fails."""
        self._fault("capture")
        return {}

    def run(self, num_steps: int) -> list[StepSample]:
        """Runs steps that meet the other ranks once each."""
        self.calls.append(f"run {num_steps}")
        samples = [self._step() for _ in range(num_steps)]
        return samples[1:] if any(s.phases_s.get("short") for s in samples) else samples

    def _step(self) -> StepSample:
        kind = self._fault("step", self.step)
        wall_s = self._wall_s()
        if self.sleeps:
            self.body.sleep(wall_s)
        self._fault("collective", self.step)
        self.body.meet(self.weights)
        self.weights *= 0.99
        loss = math.nan if kind == "nan" else self.weights
        sample = StepSample(
            step=self.step,
            rank=self.rank,
            wall_s=wall_s,
            device_s=wall_s,
            loss=loss,
            grad_norm=1.0,
            wait_s=0.0,
            phases_s={"forward": wall_s, **({"short": 1.0} if kind == "short" else {})},
        )
        self.step += 1
        self.lr.append(1e-4)
        return sample

    def _wall_s(self) -> float:
        assert self.request is not None
        knobs = self.request.knobs
        distance = abs(math.log2(float(knobs["overlap.bucket_size_mb"]) / 8.0)) * 0.1
        distance += 0.3 * (1.0 - float(knobs["overlap.ratio"]))
        ripple = 1.0 + 0.002 * math.sin(2.4 * self.step)
        return self.base_s * (1.0 + distance) * ripple * (3.0 if self.step == 0 else 1.0)

    def gate(self) -> GateResult:
        """Passes unless a fault says otherwise."""
        failed = self._fault("gate") == "gate"
        return GateResult(
            passed=not failed,
            bit_equal=not failed,
            worst_frac=2.0 if failed else 0.0,
            reason="loss differs in step 1" if failed else "",
            num_steps=3,
        )

    def measure_overlap(self) -> Mapping[str, float]:
        """Returns one metric."""
        return {"overlap_hidden": 0.5}

    def measure_noise(self, num_steps: int) -> tuple[Sequence[float], Sequence[float], int, int]:
        """Returns what a noise scale of 16 samples gives, one rank's share a little apart."""
        self.calls.append(f"noise {num_steps}")
        small, big = self.samples_per_step // self.world_size, self.samples_per_step
        ripple = [1 + 0.01 * math.sin(2.1 * step + self.rank) for step in range(num_steps)]
        of_small = [(1 + 16 / small) * item for item in ripple]
        return of_small, [(1 + 16 / big) * ripple[i] for i in range(num_steps)], small, big

    def memory(self) -> Mapping[str, float]:
        """Returns a level that grows with the rank."""
        return {"allocated": 100.0 + self.rank}

    def news(self) -> list[str]:
        """Returns what a fault of kind `news` in phase memory says."""
        return ["a fake process was replaced"] if self._fault("memory") == "news" else []

    def reset(self) -> Mapping[str, float]:
        """Restores weights and draws."""
        self.calls.append("reset")
        self._fault("reset")
        self.step, self.weights = 0, 1.0
        self.lr.clear()
        return {"allocated": 1.0}

    def close(self) -> None:
        """Notes that it was called."""
        self.closed = True

    def _fault(self, phase: str, step: int = 0) -> str:
        request = self.request.id if self.request else ""
        for fault in self.faults:
            if fault.fires(self.rank, phase, request, step):
                self._act(fault)
                return fault.kind
        return ""

    def _act(self, fault: Fault) -> None:
        if fault.kind in _ERRORS:
            raise _ERRORS[fault.kind](f"planned {fault.kind} in {fault.phase}")
        if fault.kind == "sigkill":
            self.body.kill()
        elif fault.kind == "sigstop":
            self.body.stop()
        elif fault.kind == "sleep":
            self.body.sleep(fault.seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class FakeFactory:
    """Makes fake sessions in a worker process; ranks meet in a gloo all-reduce."""

    faults: tuple[Fault, ...] = ()
    base_s: float = 0.01
    sleeps: bool = True
    gradients: tuple[GradientTensor, ...] = TWO_TENSORS

    def __call__(self, place: Any) -> FakeSession:
        """Returns the session of the rank at this place."""
        import torch
        import torch.distributed as dist

        def meet(value: float) -> None:
            dist.all_reduce(torch.tensor([value]), group=place.work_group)

        return FakeSession(
            rank=place.rank,
            world_size=place.world_size,
            body=Body(meet=meet),
            faults=self.faults,
            base_s=self.base_s,
            sleeps=self.sleeps,
            told_gradients=self.gradients,
        )


class KilledError(BaseException):
    """Ends a rank that is a thread, past every `except Exception`."""


@dataclass(slots=True)
class ThreadWorld:
    """Ranks of one incarnation that are threads: their meeting point and their fates."""

    size: int
    killed: threading.Event = field(default_factory=threading.Event)
    fates: dict[int, str] = field(default_factory=dict)
    _turn: threading.Condition = field(default_factory=threading.Condition)
    _rounds: dict[tuple[str, int], dict[int, Any]] = field(default_factory=dict)

    def exchange(self, line: str, count: int, rank: int, value: Any) -> list[Any]:
        """Returns what all ranks put into this round, like a collective does."""
        with self._turn:
            values = self._rounds.setdefault((line, count), {})
            values[rank] = value
            self._turn.notify_all()
            while len(values) < self.size:
                if self.killed.is_set():
                    raise KilledError
                if "gone" in self.fates.values():
                    raise RuntimeError("Connection closed by peer")
                self._turn.wait(0.02)
            return [values[other] for other in range(self.size)]

    def sleep(self, seconds: float) -> None:
        """Sleeps until killed."""
        if self.killed.wait(seconds):
            raise KilledError

    def die(self, rank: int) -> None:
        """Ends the calling rank as SIGKILL would."""
        self.fates[rank] = "gone"
        raise KilledError

    def stop(self, rank: int) -> None:
        """Holds the calling rank as SIGSTOP would."""
        self.fates[rank] = "stopped"
        self.killed.wait()
        raise KilledError


@dataclass(slots=True)
class ThreadControl:
    """The control line between ranks that are threads."""

    world: ThreadWorld
    rank: int
    count: int = 0

    @property
    def size(self) -> int:
        """Returns the number of ranks."""
        return self.world.size

    def gather(self, value: Any) -> list[Any]:
        """Returns every rank's value."""
        self.count += 1
        return self.world.exchange("control", self.count, self.rank, value)

    def broadcast(self, value: Any) -> Any:
        """Returns rank 0's value."""
        return self.gather(value)[0]


def thread_session(
    world: ThreadWorld, rank: int, faults: Sequence[Fault], base_s: float, sleeps: bool
) -> FakeSession:
    """Returns a fake session for a rank that is a thread."""
    rounds = iter(range(10**9))

    def meet(value: float) -> None:
        world.exchange("work", next(rounds), rank, value)

    return FakeSession(
        rank=rank,
        world_size=world.size,
        body=Body(
            meet=meet,
            sleep=world.sleep,
            kill=lambda: world.die(rank),
            stop=lambda: world.stop(rank),
        ),
        faults=faults,
        base_s=base_s,
        sleeps=sleeps,
    )
