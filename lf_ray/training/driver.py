"""A training on Ray: starts the group, watches the books, passes on the wish to stop, ends all.

The group's owner replaces ranks that die or hang; the new ones go on from the last checkpoint.
"""

import fcntl
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import ray

from lf_ray.clock import Clock
from lf_ray.errors import ConfigError, four_parts
from lf_ray.protocol import Purpose, TrialRecord, TrialRequest
from lf_ray.settings import knobs_of
from lf_ray.training.books import BOOKS_NAME, BooksReader, Line
from lf_ray.training.plan import TrainingPlan
from lf_ray.training.rank import TrainingVisit
from lf_ray.trial.cluster import start_cluster, stop_cluster
from lf_ray.trial.environment import forwarded
from lf_ray.trial.faults.outcomes import lost
from lf_ray.trial.group import Policy
from lf_ray.trial.ranks.contracts import WorkerSession
from lf_ray.trial.ranks.serve import ServeSettings
from lf_ray.trial.workers import GroupPlan, Place, close_owner, start_owner

INTERRUPTED = 130
STOP_S = 1800.0
"""How long a save may take once a stop was asked for; a second signal leaves at once."""

_LOOK_S = 0.5
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def training_session(place: Place) -> WorkerSession:
    """Returns the session of a training's rank."""
    from lf_ray.training.session import TrainingSession

    session: WorkerSession = TrainingSession(
        place.config,
        place.rank,
        place.world_size,
        place.device,
        place.work_group,
        place.control_group,
    )
    return session


@dataclass(slots=True)
class StopWish:
    """What Ctrl-C and SIGTERM do: the first asks for a checkpoint and an end, the second leaves.

    Attributes:
        reason: what came first, empty while nothing has.
        since_s: when it came.
    """

    clock: Clock
    leave_at_once: Callable[[int], Any] = os._exit
    reason: str = ""
    since_s: float = 0.0

    def arm(self) -> None:
        """Takes the signals (back): Ray takes SIGTERM for itself when it starts."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                signal.signal(number, self._handle)

    @contextmanager
    def armed(self) -> Iterator["StopWish"]:
        """Holds the signals for a while, and gives them back to who had them."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.arm()
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.reason:
            self.leave_at_once(INTERRUPTED)
            return
        self.reason = "interrupted by Ctrl-C" if number == signal.SIGINT else "ended by SIGTERM"
        self.since_s = self.clock.monotonic_s()


@dataclass(kw_only=True, slots=True)
class Ending:
    """How a training on Ray ended.

    Attributes:
        record: of the whole training.
        left_over: what had to be ended by force.
        losses: why ranks were replaced, in order.
    """

    record: TrialRecord
    left_over: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)


def run_on_ray(
    plan: TrainingPlan,
    visit: TrainingVisit,
    watch: Callable[[Sequence[Line]], None],
    note: Callable[[str], None],
    wish: StopWish,
    make_session: Callable[[Place], WorkerSession] = training_session,
) -> Ending:
    """Runs a training to its end, and returns how it ended.

    Args:
        plan: what to train; its folder is there.
        visit: what each rank runs.
        watch: is told of new lines of the books, twice a second.
        note: is told of losses and of a stop.
        wish: armed by the caller.
        make_session: what each rank trains with.
    """
    plan.stop_path.unlink(missing_ok=True)
    reader = BooksReader(plan.folder / BOOKS_NAME, from_end=True)
    cluster = start_cluster(plan.config, plan.folder / "ray")
    wish.arm()
    owner = None
    try:
        owner = start_owner(_group_plan(plan, visit, make_session))
        watcher = _Watcher(plan, owner, reader, watch, note, wish)
        record = watcher.until_done(owner.submit.remote(_request(plan).to_json()))
        watch(reader.news())
    finally:
        if owner is not None:
            close_owner(owner)
        left_over = stop_cluster(cluster)
        plan.stop_path.unlink(missing_ok=True)
    return Ending(record=record, left_over=left_over, losses=watcher.losses)


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Keeps a second driver away from a result folder.

    Raises:
        ConfigError: another one holds it, or its lock can't be opened or taken.
    """
    path = folder / ".lock"
    try:
        file = path.open("w")
    except OSError as error:
        raise _not_locked(path, error) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                four_parts(
                    "starting a training",
                    "one process at a time trains in a result folder",
                    f"{folder}, which another one holds",
                    "Wait for it, or end it; a new training needs no resume=.",
                )
            ) from None
        except OSError as error:
            raise _not_locked(path, error) from None
        yield


def _not_locked(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        four_parts(
            "starting a training",
            "one process at a time trains in a result folder, which holds a lock file for it",
            f"{path} ({error.strerror or error})",
            "Free space and rights there, or give another output.dir.",
        )
    )


@dataclass(slots=True)
class _Watcher:
    plan: TrainingPlan
    owner: Any
    reader: BooksReader
    watch: Callable[[Sequence[Line]], None]
    note: Callable[[str], None]
    wish: StopWish
    losses: list[str] = field(default_factory=list)
    has_started: bool = False
    has_asked: bool = False

    def until_done(self, answer: Any) -> TrialRecord:
        while True:
            done, _ = ray.wait([answer], timeout=_LOOK_S)
            lines = self.reader.news()
            self.watch(lines)
            for line in lines:
                if line["event"] == "started":
                    self._tell_losses()
                    self.has_started = True
            if done:
                self._tell_losses()
                return self._record(answer)
            if self.wish.reason and self._stop():
                return TrialRecord(
                    request=_request(self.plan), outcome=lost("stopped", self.wish.reason)
                )

    def _record(self, answer: Any) -> TrialRecord:
        try:
            return TrialRecord.from_json(ray.get(answer))
        except ray.exceptions.RayError as error:
            reason = f"the group's owner is gone: {type(error).__name__}: {error}"
            return TrialRecord(request=_request(self.plan), outcome=lost("owner_lost", reason))

    def _stop(self) -> bool:
        """Asks the ranks to save and end, once; returns whether to leave without waiting."""
        if not self.has_asked:
            self.has_asked = True
            self.plan.stop_path.touch()
            if self.has_started:
                self.note(f"{self.wish.reason}: saving first; once more leaves at once")
        waited_s = self.wish.clock.monotonic_s() - self.wish.since_s
        return not self.has_started or waited_s > STOP_S

    def _tell_losses(self) -> None:
        """Asks the owner why it replaced ranks."""
        try:
            state = ray.get(self.owner.state.remote(), timeout=5.0)
        except (ray.exceptions.RayError, TimeoutError):
            return
        known = [item["reason"] for item in state["history"] if item["event"] == "lost"]
        for reason in known[len(self.losses) :]:
            self.note(f"lost: {reason}")
        self.losses = known


def _group_plan(
    plan: TrainingPlan, visit: TrainingVisit, make_session: Callable[[Place], WorkerSession]
) -> GroupPlan:
    max_attempts = plan.config.train.max_restarts + 1
    return GroupPlan(
        config=plan.config,
        folder=plan.folder / "ray",
        make_session=make_session,
        environment=forwarded(os.environ),
        serve=ServeSettings(start_s=plan.deadlines.start_s, visit=visit),
        policy=Policy(max_attempts=max_attempts, max_same_failures=max_attempts),
    )


def _request(plan: TrainingPlan) -> TrialRequest:
    return TrialRequest(
        id="training",
        knobs=knobs_of(plan.config),
        seed=plan.config.sweep.seed,
        purpose=Purpose.SEARCH,
        deadlines=plan.deadlines,
    )
