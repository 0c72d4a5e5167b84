"""A worker group whose ranks are threads of the test: the owner and all above it, without Ray."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lf_ray.clock import Clock, SystemClock
from lf_ray.protocol import Knobs, TrialOutcome
from lf_ray.testing.sessions import (
    Fault,
    KilledError,
    ThreadControl,
    ThreadWorld,
    thread_session,
)
from lf_ray.trial.faults.losses import Graces
from lf_ray.trial.faults.outcomes import lost
from lf_ray.trial.owner import GroupOwner
from lf_ray.trial.ranks.serve import Order, ServeSettings, serve


@dataclass(slots=True)
class ThreadLink:
    """A thread's line to an owner whose loop runs in another thread."""

    owner: GroupOwner
    loop: asyncio.AbstractEventLoop
    incarnation: int
    rank: int

    def next_order(self, after: int) -> Order:
        """Asks the owner for work."""
        answer = self._ask(self.owner.next_order(self.incarnation, after))
        return Order(**answer)

    def tell(self, what: str, value: Mapping[str, Any]) -> None:
        """Tells the owner of an event."""
        self._ask(self.owner.tell(self.incarnation, self.rank, what, value))

    def _ask(self, call: Coroutine[Any, Any, Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(call, self.loop).result(10.0)
        except RuntimeError:
            call.close()
            return {"leave": True}


@dataclass(slots=True)
class ThreadLauncher:
    """Starts and ends ranks as threads.

    Attributes:
        probe: the look at the link, on each rank; None takes none.
        worlds: by incarnation; `threads` likewise.
        sessions: every session that was made, for tests to look at.
    """

    num_ranks: int = 2
    node: str = ""
    faults: Sequence[Fault] = ()
    base_s: float = 0.002
    sleeps: bool = True
    serve_settings: ServeSettings = field(default_factory=ServeSettings)
    clock: Clock = field(default_factory=SystemClock)
    probe: Callable[[], Mapping[str, float]] | None = None
    owner: GroupOwner | None = None
    loop: asyncio.AbstractEventLoop | None = None
    worlds: dict[int, ThreadWorld] = field(default_factory=dict)
    threads: dict[int, list[threading.Thread]] = field(default_factory=dict)
    started_with: list[dict[str, Any]] = field(default_factory=list)
    sessions: list[Any] = field(default_factory=list)

    def start(self, incarnation: int, knobs: Knobs) -> None:
        """Starts a thread a rank."""
        self.started_with.append(dict(knobs))
        world = self.worlds[incarnation] = ThreadWorld(self.num_ranks)
        self.threads[incarnation] = [
            threading.Thread(target=self._rank, args=(world, incarnation, rank), daemon=True)
            for rank in range(self.num_ranks)
        ]
        for thread in self.threads[incarnation]:
            thread.start()

    def _rank(self, world: ThreadWorld, incarnation: int, rank: int) -> None:
        assert self.owner is not None
        assert self.loop is not None
        link = ThreadLink(self.owner, self.loop, incarnation, rank)
        link.tell("hello", {"rank": rank, "incarnation": incarnation})

        def make_session() -> Any:
            session = thread_session(world, rank, self.faults, self.base_s, self.sleeps)
            self.sessions.append(session)
            return session

        try:
            serve(
                link,
                ThreadControl(world, rank),
                make_session,
                clock=self.clock,
                settings=self.serve_settings,
                probe=self.probe,
            )
        except KilledError:
            world.fates.setdefault(rank, "gone")
        except Exception:
            world.fates[rank] = "gone"

    def ended(self, incarnation: int) -> TrialOutcome | None:
        """Returns an outcome once all threads have ended."""
        if any(thread.is_alive() for thread in self.threads[incarnation]):
            return None
        return lost("worker_lost", "every rank has ended")

    def process(self, member: Mapping[str, Any]) -> str:
        """Returns what became of a rank."""
        return self.worlds[member["incarnation"]].fates.get(member["rank"], "running")

    def kill(self, incarnation: int, members: Mapping[int, Mapping[str, Any]]) -> None:
        """Ends the threads at their next wait."""
        self.worlds[incarnation].killed.set()


class ThreadGroup:
    """An owner on its own event loop, called from the test's thread as a Ray actor would be."""

    step_s = 0.5
    kept_within_s = 15.0
    replaced_within_s = 30.0

    def __init__(self, launcher: ThreadLauncher, **owner_options: Any) -> None:
        self.launcher = launcher
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        quick = Graces(fault_s=0.2, gone_s=0.3, late_s=0.3)
        self.owner = GroupOwner(launcher, launcher.clock, graces=quick, **owner_options)
        launcher.owner, launcher.loop = self.owner, self.loop

    def submit(self, request: Mapping[str, Any], timeout_s: float = 60.0) -> dict[str, Any]:
        """Runs a request and returns its record."""
        record: dict[str, Any] = self._call(self.owner.submit(request), timeout_s)
        return record

    def state(self) -> dict[str, Any]:
        """Returns the owner's state."""
        state: dict[str, Any] = self._call(self.owner.state(), 10.0)
        return state

    def close(self) -> None:
        """Closes the owner, then ends its loop."""
        self._call(self.owner.close(), 30.0)
        for threads in self.launcher.threads.values():
            for thread in threads:  # they may still have something to tell
                thread.join(5.0)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10.0)
        self.loop.close()

    def _call(self, call: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self.loop).result(timeout_s)
