"""One rank of a training: prepare, go on from the last checkpoint, blocks of steps, save, finish.

The steps are the session's own, as in a sweep's visit; every rank runs this function, rank 0 keeps
the books. Started again after a loss, it finds the last checkpoint by itself.
"""

import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, cast

from torch import Tensor

from lf_ray.errors import LfRayError
from lf_ray.protocol import OutcomeKind, StepSample, TrialOutcome, TrialRecord, TrialRequest
from lf_ray.settings import plain
from lf_ray.training.books import BOOKS_NAME, Books
from lf_ray.training.checkpoint.folder import (
    CheckpointState,
    complete_checkpoints,
    remove_partial,
)
from lf_ray.training.checkpoint.manifest import Manifest, check_identity, read_manifest
from lf_ray.training.checkpoint.saver import Saver
from lf_ray.training.plan import TrainingPlan
from lf_ray.trial.faults.outcomes import divergence
from lf_ray.trial.ranks.contracts import WorkerSession
from lf_ray.trial.visit import Bench, VisitSettings, agree

DONE, STOPPED = "done", "stopped"
T = TypeVar("T")
_log = logging.getLogger(__name__)


class TrainableSession(WorkerSession, Protocol):
    """A worker session that can be saved and gone on with."""

    @property
    def model(self) -> Any:
        """Returns the module that is trained."""
        ...

    def collect(self) -> None:
        """Brings together what ranks have updated apart; every rank must call it before `state`."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Returns what a checkpoint holds, copied to the host."""
        ...

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Goes on where `state` was taken."""
        ...


Finisher = Callable[[TrainableSession, TrainingPlan], Mapping[str, Any]]
"""What rank 0 does with the trained model; returns what the books say of it.

What it raises is the training's failure, with every checkpoint as it was.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingVisit:
    """Answers a group's request with a whole training; picklable.

    Attributes:
        finishers: what follows the last step, by the name of its event.
    """

    plan: TrainingPlan
    finishers: Mapping[str, Finisher] = field(default_factory=dict)

    def __call__(
        self,
        session: WorkerSession,
        bench: Bench,
        request: TrialRequest,
        settings: VisitSettings,
    ) -> TrialRecord:
        """Trains on this rank from where the last checkpoint stands, and returns how it ended."""
        with ExitStack() as stack:
            books = saver = None
            if bench.control.rank == 0:
                self.plan.checkpoints.mkdir(parents=True, exist_ok=True)
                books = stack.enter_context(closing(Books(self._books_path, bench.clock)))
                keep = self.plan.config.train.keep
                saver = stack.enter_context(
                    closing(Saver(self.plan.checkpoints, keep, bench.clock))
                )
            trainable = cast(TrainableSession, session)
            training = _Training(self, trainable, bench, request, books, saver)
            return training.run()

    @property
    def _books_path(self) -> Any:
        return self.plan.folder / BOOKS_NAME


class _Ended(Exception):  # noqa: N818 - no error: the way out of a training that ends early
    def __init__(self, outcome: TrialOutcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


@dataclass(slots=True)
class _Training:
    visit: TrainingVisit
    session: TrainableSession
    bench: Bench
    request: TrialRequest
    books: Books | None
    saver: Saver | None
    step: int = 0
    saved_step: int = -1
    effective: dict[str, Any] = field(default_factory=dict)
    recent_s: list[float] = field(default_factory=list)

    @property
    def plan(self) -> TrainingPlan:
        return self.visit.plan

    def run(self) -> TrialRecord:
        try:
            self._prepare()
            self._go_on()
            rule = self._train()
            self._finish(rule)
            outcome = TrialOutcome(kind=OutcomeKind.COMPLETED, stop_rule=rule)
        except _Ended as ended:
            outcome = ended.outcome
        self._note("ended", kind=outcome.kind.value, reason=outcome.reason or outcome.stop_rule)
        # A training that ended early may still be writing: whoever goes on should know from where.
        self._end_write()
        return TrialRecord(
            request=self.request,
            outcome=replace(outcome, effective=self.effective),
            samples_per_step=self.plan.samples_per_step,
            memory_bytes=dict(self.session.memory()),
            metrics={"step": float(self.step)},
            clock_s={"finished": self.bench.clock.wall_s()},
        )

    def _prepare(self) -> None:
        limits = self.plan.deadlines
        build_s = limits.first_batch_s
        self.effective = dict(
            self._gate("build", build_s, lambda: self.session.prepare(self.request), talks=False)
        )
        self._gate("rehearsal", build_s, self.session.rehearse, talks=False)
        # Before the state is loaded: a captured step reads masters and moments where they lie.
        self._gate("capture", limits.capture_s, self.session.capture)

    def _go_on(self) -> None:
        name = ""
        if self.bench.control.rank == 0:
            remove_partial(self.plan.checkpoints)
            complete = complete_checkpoints(self.plan.checkpoints)
            name = complete[-1].name if complete else ""
        name = str(self.bench.control.broadcast(name))
        if name:
            self._gate("load", self.plan.save_s, lambda: self._load(name), talks=False)
        self._write(
            "started",
            num_steps=self.plan.num_steps,
            samples_per_step=self.plan.samples_per_step,
            checkpoint=name,
            effective=self.effective,
        )

    def _load(self, name: str) -> None:
        folder = self.plan.checkpoints / name
        manifest = read_manifest(folder)
        check_identity(folder, manifest, self.plan.identity)
        self.session.resume(CheckpointState(folder, manifest))
        self.step = self.saved_step = manifest.step

    def _train(self) -> str:
        while self.step < self.plan.num_steps:
            asked = self.bench.control.rank == 0 and self.plan.stop_path.exists()
            if self.bench.control.broadcast(asked):
                return STOPPED
            self._block()
            if self.plan.steps_to_save(self.step - 1) == 1 and self.step < self.plan.num_steps:
                self._save()
        return DONE

    def _block(self) -> None:
        num_steps, limit_s = self._next_block()
        samples = self._gate("steps", limit_s, lambda: self.session.run(num_steps))
        lr = list(self.session.lr[-num_steps:])
        rows = [replace(item, phases_s={}).to_json() for item in samples]
        block = {
            rank: [StepSample.from_json(item) for item in items]
            for rank, items in enumerate(self.bench.control.gather(rows))
        }
        steps = list(zip(*block.values(), strict=True))
        self.recent_s = [max(item.wall_s for item in ranks) for ranks in steps]
        self._keep_books(steps, lr)
        outcome = divergence(block)
        if outcome is not None:
            raise _Ended(outcome)
        self.step += num_steps

    def _next_block(self) -> tuple[int, float]:
        """Returns how many steps come before ranks talk again, and how long they may take."""
        if not self.recent_s:
            return 1, self.plan.deadlines.first_batch_s
        fitting = int(self.plan.block_s / max(statistics.median(self.recent_s), 1e-6))
        num_steps = max(1, min(fitting, self.plan.steps_to_save(self.step)))
        return num_steps, self.plan.deadlines.step_s + num_steps * max(self.recent_s)

    def _keep_books(self, steps: Sequence[Sequence[StepSample]], lr: Sequence[float]) -> None:
        if self.books is None:
            return
        lines = [
            (
                "step",
                ranks[0].step,
                {
                    "loss": sum(item.loss for item in ranks) / len(ranks),
                    "grad_norm": ranks[0].grad_norm,
                    "lr": rate,
                    "step_s": max(item.wall_s for item in ranks),
                    "wait_s": max(item.wait_s for item in ranks),
                    **skipped_line(ranks),
                },
            )
            for ranks, rate in zip(steps, lr, strict=True)
        ]
        self.books.write_all(lines)
        self._tell_saved()

    def _save(self) -> None:
        """Has rank 0 copy its state, while the others wait; nobody waits for the disk."""
        self._gate("collect", self.plan.save_s, self.session.collect)
        self._gate("save", self.plan.save_s, self._begin_write, talks=False)
        self.saved_step = self.step

    def _begin_write(self) -> None:
        if self.saver is None:
            return
        plan = self.plan
        rates = self.session.lr
        manifest = Manifest(
            step=self.step,
            samples=self.step * plan.samples_per_step,
            lr=float(rates[-1]) if rates else 0.0,
            identity=plan.identity,
            config=plain(plan.config),
            versions=plan.versions,
        )
        self.saver.save(manifest, self.session.state())

    def _tell_saved(self) -> str:
        """Writes down the writes that have ended; returns the error of the last one."""
        error = ""
        for item in self.saver.news() if self.saver is not None else ():
            error = item.error
            event = "save_failed" if error else "saved"
            values = {"path": item.path, "seconds": round(item.seconds, 3), "error": error}
            if self.books is not None:
                self.books.write(event, item.step, **values)
        return error

    def _finish(self, rule: str) -> None:
        if self.saved_step != self.step:
            self._save()
        unsaved = str(self._gate("save", self.plan.save_s, self._end_write, talks=False))
        unfinished = []
        for event, finisher in self.visit.finishers.items() if rule == DONE else ():
            act = self._on_rank_0(event, finisher)
            unfinished.append(self._gate(event, self.plan.export_s, act, talks=False))
        reasons = [f"the last checkpoint was not written: {unsaved}"] if unsaved else []
        reasons += filter(None, unfinished)
        reason = str(self.bench.control.broadcast("; ".join(reasons)))
        if reason:
            # Neither kind is retried: the steps are done, and a full disk stays full.
            kind = str(self.bench.control.broadcast("save" if unsaved else "export"))
            raise _Ended(
                TrialOutcome(
                    kind=OutcomeKind.FAILED, reason=reason, error_kind=kind, stop_rule="error"
                )
            )

    def _end_write(self) -> str:
        if self.saver is None:
            return ""
        self.saver.wait()
        return self._tell_saved()

    def _on_rank_0(self, event: str, finisher: Finisher) -> Callable[[], str]:
        """Returns what runs a finisher on rank 0 and returns its error, "" where it has none."""

        def act() -> str:
            if self.bench.control.rank != 0:
                return ""
            try:
                self._write(event, **finisher(self.session, self.plan))
            except Exception as error:
                # What was trained is saved: whoever started it is told, and nothing runs again.
                _log.exception("after the last step: %s", event)
                own = isinstance(error, LfRayError)
                said = str(error) if own else f"{event}: {type(error).__name__}: {error}"
                self._note("finish_failed", what=event, error=said)
                return said
            return ""

        return act

    def _note(self, event: str, **values: Any) -> None:
        """Writes down how it ended, where the disk still has room for it."""
        try:
            self._write(event, **values)
        except OSError:
            _log.exception("%s, step %d: %s", event, self.step, values)

    def _write(self, event: str, **values: Any) -> None:
        if self.books is not None:
            self.books.write(event, self.step, **values)

    def _gate(
        self, phase: str, limit_s: float, action: Callable[[], T], *, talks: bool = True
    ) -> T:
        result = agree(self.bench, phase, limit_s, action, communicated=talks)
        if isinstance(result, TrialOutcome):
            raise _Ended(result)
        return result


def skipped_line(ranks: Sequence[StepSample]) -> dict[str, Any]:
    """Returns what a step lacked over all ranks, nothing where it lacked nothing."""
    num_skipped = sum(item.num_skipped for item in ranks)
    frames = sorted({frame for item in ranks for frame in item.bad_frames})
    return {"skipped": num_skipped, "bad_frames": frames} if num_skipped else {}
