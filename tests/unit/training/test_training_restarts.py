"""What the group's owner makes of a training whose ranks die, hang or diverge: threads, no Ray."""

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lf_ray.protocol import Deadlines, Purpose, TrialRecord, TrialRequest
from lf_ray.settings import SweepConfig, TrainSettings, knobs_of
from lf_ray.testing.groups import ThreadGroup, ThreadLauncher, ThreadLink
from lf_ray.testing.sessions import (
    FakeSession,
    Fault,
    KilledError,
    ThreadControl,
    ThreadWorld,
    thread_session,
)
from lf_ray.training.books import read_books, steps_of
from lf_ray.training.checkpoint.folder import complete_checkpoints
from lf_ray.training.driver import Ending
from lf_ray.training.plan import TrainingPlan
from lf_ray.training.rank import Finisher, TrainableSession, TrainingVisit
from lf_ray.training.report.summary import exit_code_of
from lf_ray.trial.group import Policy
from lf_ray.trial.ranks.serve import ServeSettings, serve

LIMITS = Deadlines(start_s=10.0, first_batch_s=10.0, capture_s=10.0, step_s=0.4)


@dataclass(kw_only=True, slots=True)
class _Session(FakeSession):
    """A fake whose whole state is one number."""

    model: Any = None

    def collect(self) -> None: ...

    def state(self) -> dict[str, Tensor]:
        return {"master.w": torch.tensor([self.weights], dtype=torch.float64)}

    def resume(self, state: Mapping[str, Tensor]) -> None:
        self.weights = float(state["master.w"])
        self.step = round(torch.log(state["master.w"]).item() / torch.tensor(0.99).log().item())

    def reset(self) -> Mapping[str, float]:
        return {}


@dataclass(slots=True)
class _Launcher(ThreadLauncher):
    def _rank(self, world: ThreadWorld, incarnation: int, rank: int) -> None:
        assert self.owner is not None
        assert self.loop is not None
        link = ThreadLink(self.owner, self.loop, incarnation, rank)
        link.tell("hello", {"rank": rank, "incarnation": incarnation})

        def make_session() -> _Session:
            fake = thread_session(world, rank, self.faults, self.base_s, self.sleeps)
            return _Session(
                rank=rank,
                world_size=world.size,
                body=fake.body,
                faults=self.faults,
                base_s=self.base_s,
            )

        try:
            serve(
                link,
                ThreadControl(world, rank),
                make_session,
                clock=self.clock,
                settings=self.serve_settings,
            )
        except KilledError:
            world.fates.setdefault(rank, "gone")
        except Exception:
            world.fates[rank] = "gone"


def _plan(folder: Path, max_restarts: int) -> TrainingPlan:
    config = SweepConfig()
    config.cluster.workers = 2
    config = replace(config, train=TrainSettings(max_restarts=max_restarts, max_steps=12))
    return TrainingPlan(
        folder=folder,
        config=config,
        data_id="none",
        num_steps=12,
        save_every=4,
        identity={},
        deadlines=LIMITS,
        block_s=0.0,
    )


@contextmanager
def _trained(
    folder: Path,
    *faults: Fault,
    max_restarts: int = 2,
    finishers: Mapping[str, Finisher] | None = None,
) -> Iterator[TrialRecord]:
    plan = _plan(folder, max_restarts)
    settings = ServeSettings(visit=TrainingVisit(plan=plan, finishers=finishers or {}))
    launcher = _Launcher(faults=faults, serve_settings=settings)
    attempts = max_restarts + 1
    policy = Policy(max_attempts=attempts, max_same_failures=attempts)
    group = ThreadGroup(launcher, policy=policy)
    request = TrialRequest(
        id="training",
        knobs=knobs_of(plan.config),
        seed=0,
        purpose=Purpose.SEARCH,
        deadlines=LIMITS,
    )
    try:
        yield TrialRecord.from_json(group.submit(request.to_json()))
    finally:
        group.close()


def _losses(folder: Path) -> list[float]:
    return [line["loss"] for line in steps_of(read_books(folder / "train.jsonl"))]


def _starts(folder: Path) -> list[int]:
    lines = read_books(folder / "train.jsonl")
    return [line["step"] for line in lines if line["event"] == "started"]


def test_a_dead_and_a_hung_rank_are_replaced_and_go_on_from_the_last_checkpoint(
    tmp_path: Path,
) -> None:
    expected = [0.99**step for step in range(1, 13)]
    for kind in ("sigkill", "sigstop"):
        folder = tmp_path / kind
        fault = Fault(kind=kind, phase="step", ranks=(1,), step=6, once=str(tmp_path / f"{kind}1"))
        with _trained(folder, fault) as record:
            assert record.outcome.kind == "completed"
            assert "attempt 1: failed" in record.outcome.reason
            assert record.metrics["attempts"] == 2
        assert _starts(folder) == [0, 4]
        torch.testing.assert_close(_losses(folder), expected)
        assert complete_checkpoints(folder / "checkpoints")[-1].name == "step-00000012"


def test_restarts_are_counted(tmp_path: Path) -> None:
    fault = Fault(kind="exception", phase="step", ranks=(0,), step=6)
    with _trained(tmp_path, fault, max_restarts=2) as record:
        assert record.outcome.kind == "failed"
        assert record.metrics["attempts"] == 3
    assert _starts(tmp_path) == [0, 4, 4]
    assert complete_checkpoints(tmp_path / "checkpoints")[-1].name == "step-00000004"


def test_a_disk_that_is_full_at_the_export_ends_the_training_once_with_its_checkpoint_safe(
    tmp_path: Path,
) -> None:
    tries: list[int] = []

    def full(session: TrainableSession, plan: TrainingPlan) -> Mapping[str, Any]:
        tries.append(1)
        raise OSError(errno.ENOSPC, "No space left on device")

    finishers: dict[str, Finisher] = {"exported": full, "action_error": lambda *_: {"scaled": 0.5}}
    with _trained(tmp_path, finishers=finishers) as record:
        assert (record.outcome.kind, record.outcome.error_kind) == ("failed", "export")
        assert "No space left on device" in record.outcome.reason
        assert record.metrics["attempts"] == 1
        assert exit_code_of(Ending(record=record)) == 1
    assert len(tries) == 1
    assert _starts(tmp_path) == [0]
    assert complete_checkpoints(tmp_path / "checkpoints")[-1].name == "step-00000012"
    lines = read_books(tmp_path / "train.jsonl")
    after = [line["event"] for line in lines if line["event"] not in ("step", "saved", "started")]
    assert after == ["finish_failed", "action_error", "ended"]


def test_a_diverged_training_is_not_repeated_and_never_saved(tmp_path: Path) -> None:
    fault = Fault(kind="nan", phase="step", ranks=(1,), step=8)
    with _trained(tmp_path, fault) as record:
        assert record.outcome.error_kind == "diverged"
        assert "rank 1 in step 8" in record.outcome.reason
        assert record.metrics["attempts"] == 1
    assert complete_checkpoints(tmp_path / "checkpoints")[-1].name == "step-00000008"
    lines = read_books(tmp_path / "train.jsonl")
    assert [line["step"] for line in lines if line["event"] == "saved"] == [4, 8]
