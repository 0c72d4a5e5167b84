"""A worker's session whose steps are taken by LoongForge, in a child process of each worker.

The worker touches no GPU. Every rank reads the file of rank 0; the ranks' own line carries nothing
but the port. A child that fails leaves the worker as it was, so its errors are `TrainerError`s,
after which the group goes on with the next request.
"""

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lf_ray.errors import TrainerError, TrainerHungError
from lf_ray.loongforge.child import (
    Child,
    free_port,
    last_lines,
    ran_out_of_memory,
    start_child,
)
from lf_ray.loongforge.knob_map import Translation, translated
from lf_ray.loongforge.metrics_file import MetricsFile, Step, compared_with_wall
from lf_ray.loongforge.start_check import ENTRY_POINT, Checkout
from lf_ray.protocol import GateResult, GradientTensor, KnobValue, StepSample, TrialRequest
from lf_ray.settings import SweepConfig, with_knobs, with_length

_POLL_S = 0.01
_PEER_S = 2.0
"""How long a rank whose peer has failed waits for the end, and the words, of its own child."""
_SHARE_OF_DEADLINE = 0.9
"""A hang is told before the owner's own deadline would give the group up."""


class Line(Protocol):
    """What is needed of the ranks' own line."""

    def broadcast(self, value: Any) -> Any:
        """Returns rank 0's plain JSON value on every rank."""
        ...


@dataclass(kw_only=True, slots=True)
class _Running:
    """One trial: its request, translation, folder and child."""

    request: TrialRequest
    translation: Translation
    folder: Path
    port: int
    metrics: MetricsFile
    child: Child | None = None
    num_taken: int = 0


@dataclass(kw_only=True, slots=True)
class LoongForgeSession:
    """Implements `WorkerSession` with a LoongForge rank.

    Attributes:
        line: of all ranks.
        folder: where each trial gets a folder; the same for all ranks.
        base_global_batch: samples a step that the learning rate belongs to.
    """

    config: SweepConfig
    checkout: Checkout
    rank: int
    world_size: int
    line: Line
    folder: Path
    base_global_batch: int
    costs_s: dict[str, float] = field(default_factory=dict)
    _running: _Running | None = None

    @property
    def samples_per_step(self) -> int:
        """Returns the samples over all ranks that one step consumes."""
        return self._running.translation.samples_per_step if self._running else 0

    @property
    def lr(self) -> Sequence[float]:
        """Returns the rates as LoongForge logs them: after the schedule has moved on."""
        return [step.lr for step in self._taken]

    @property
    def gradients(self) -> tuple[GradientTensor, ...]:
        """Returns nothing: LoongForge does not tell in which order its gradients are ready."""
        return ()

    @property
    def _taken(self) -> list[Step]:
        return self._running.metrics.steps[: self._running.num_taken] if self._running else []

    def prepare(self, request: TrialRequest) -> Mapping[str, KnobValue]:
        """Agrees on a port and translates the knobs; returns what will be in force."""
        # First of all, so that a rank that refuses leaves no other one waiting for the port.
        port = int(self.line.broadcast(free_port() if self.rank == 0 else 0))
        self.reset()
        asked = with_knobs(self.config, dict(request.knobs))
        config = with_length(asked, request.run_samples)
        translation = translated(config, self.base_global_batch, request.budget.max_steps)
        folder = self.folder / f"{request.id}-{port}"
        folder.mkdir(parents=True, exist_ok=True)
        self._running = _Running(
            request=request,
            translation=translation,
            folder=folder,
            port=port,
            metrics=MetricsFile(folder / "metrics.jsonl"),
        )
        return translation.effective

    def rehearse(self) -> None:
        """Starts this rank's child and waits until warm-up and capture are over."""
        running = self._now()
        command = self._command(running)
        if self.rank == 0:
            (running.folder / "command.txt").write_text(f"{shlex.join(command)}\n")
        try:
            running.child = start_child(
                command,
                self._environment(running),
                running.folder,
                running.folder / f"rank{self.rank}.log",
            )
        except OSError as error:
            self._mark_failed(running)
            raise TrainerError(f"LoongForge can't be started: {error}") from None
        limit_s = running.request.deadlines.first_batch_s
        self._await_steps(running.translation.ready_steps, limit_s, each=False)

    def capture(self) -> Mapping[str, float]:
        """Returns nothing: LoongForge has captured while it warmed up."""
        return {}

    def run(self, num_steps: int) -> list[StepSample]:
        """Returns the next steps, waiting for those that are not done yet."""
        running = self._now()
        first = running.num_taken
        self._await_steps(first + num_steps, running.request.deadlines.step_s, each=True)
        running.num_taken = first + num_steps
        self._check_consumed(running)
        return [
            StepSample(
                step=first + index,
                rank=self.rank,
                wall_s=step.step_s,
                device_s=step.step_s,
                loss=step.loss,
                grad_norm=step.grad_norm,
                wait_s=0.0,
                phases_s={},
            )
            for index, step in enumerate(self._taken[first:])
        ]

    def gate(self) -> GateResult:
        """Asks only that no step was thrown away: LoongForge has no reference to compare with.

        Its graphed and eager paths draw different noise, so their losses can't be compared.
        """
        skipped = max((step.num_skipped for step in self._taken), default=0)
        return GateResult(
            passed=skipped == 0,
            bit_equal=False,
            worst_frac=0.0,
            reason=f"LoongForge skipped {skipped} steps" if skipped else "no reference: LoongForge",
            num_steps=len(self._taken),
        )

    def measure_overlap(self) -> Mapping[str, float]:
        """Returns the trainer's own throughput and the wall clock's; it can't be split further."""
        running = self._now()
        skipped = max(running.translation.ready_steps, len(self._taken) // 4)
        return compared_with_wall(self._taken, self.world_size, skipped)

    def measure_noise(self, num_steps: int) -> tuple[Sequence[float], Sequence[float], int, int]:
        """Returns nothing: LoongForge logs the norm of the mean gradient alone."""
        return (), (), 0, 0

    def memory(self) -> Mapping[str, float]:
        """Returns nothing: LoongForge logs no memory."""
        return {}

    def news(self) -> list[str]:
        """Returns nothing: LoongForge says nothing of its data."""
        return []

    def reset(self) -> Mapping[str, float]:
        """Ends this rank's child with all that it started."""
        if self._running is not None and self._running.child is not None:
            self._running.child.end()
        self._running = None
        return {}

    def close(self) -> None:
        """Ends the child."""
        self.reset()

    def _now(self) -> _Running:
        assert self._running is not None
        return self._running

    def _command(self, running: _Running) -> list[str]:
        return [
            self.checkout.python,
            str(self.checkout.path / ENTRY_POINT),
            *self.checkout.flags,
            *running.translation.flags,
            *("--seed", str(running.request.seed)),
            *("--output-dir", str(running.folder)),
            *self.checkout.dotlist,
        ]

    def _environment(self, running: _Running) -> dict[str, str]:
        allocator = os.environ.get("PYTORCH_ALLOC_CONF")
        return {
            **os.environ,
            # The name that torch 2.8, which LoongForge pins, reads.
            **({"PYTORCH_CUDA_ALLOC_CONF": allocator} if allocator else {}),
            **self.checkout.environment,
            **running.translation.environment,
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(running.port),
            "PYTHONUNBUFFERED": "1",
        }

    def _await_steps(self, count: int, limit_s: float, *, each: bool) -> None:
        """Returns when rank 0's file has `count` steps; `limit_s` is for each, or for all."""
        running = self._now()
        since_s = time.monotonic()
        while True:
            if running.metrics.read() and each:
                since_s = time.monotonic()
            if len(running.metrics.steps) >= count:
                return
            self._check_alive(running)
            waited_s = time.monotonic() - since_s
            if waited_s > limit_s * _SHARE_OF_DEADLINE:
                self._mark_failed(running)
                raise TrainerHungError(
                    f"LoongForge rank {self.rank}: step {len(running.metrics.steps)} did not come"
                    f" within {waited_s:.0f} s; its log ends: {self._words(running)}"
                )
            time.sleep(_POLL_S)

    def _check_alive(self, running: _Running) -> None:
        assert running.child is not None
        code = running.child.exit_code()
        if code is None and self._failed_peer(running) is None:
            return
        if code is None:
            code = self._end_after_peer(running)
        self._mark_failed(running)
        peer = self._failed_peer(running)
        if code is None:
            raise TrainerError(f"connection closed by peer: LoongForge rank {peer} has ended")
        memory = ran_out_of_memory(running.child.log)
        begun = bool(running.metrics.steps[running.translation.ready_steps - 1 :])
        why = "out of memory" if memory else "" if begun else running.translation.advice
        raise TrainerError(
            f"LoongForge rank {self.rank} ended with code {code}; {f'{why}; ' if why else ''}"
            f"its log ends: {self._words(running)}"
        )

    def _end_after_peer(self, running: _Running) -> int | None:
        assert running.child is not None
        until_s = time.monotonic() + _PEER_S
        while time.monotonic() < until_s:
            code = running.child.exit_code()
            if code is not None:
                return code
            time.sleep(_POLL_S)
        return None

    def _words(self, running: _Running) -> str:
        return last_lines(running.folder / f"rank{self.rank}.log") or "nothing"

    def _mark_failed(self, running: _Running) -> None:
        (running.folder / f"failed.rank{self.rank}").touch()

    def _failed_peer(self, running: _Running) -> int | None:
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        return next((r for r in others if (running.folder / f"failed.rank{r}").exists()), None)

    def _check_consumed(self, running: _Running) -> None:
        asked = running.translation.samples_per_step
        last = self._taken[-1]
        if last.consumed_samples != asked * running.num_taken:
            raise TrainerError(
                f"LoongForge consumed {last.consumed_samples} samples in {running.num_taken} steps,"
                f" not {asked} a step"
            )
