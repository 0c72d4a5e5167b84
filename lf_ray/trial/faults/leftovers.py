"""Processes of this machine, found by a mark in their environment: who they are, and their end.

Ray renames its workers, so their command lines say nothing; the environment that a process was
started with stays readable, and its children inherit it. Ray's agents write their title over a
part of it, though, and which variables are lost differs from one start to the next: they are
known by their session, which a marked process leads. Linux only.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_PROC = Path("/proc")


def process_state(pid: int) -> str:
    """Returns running, stopped or gone."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return "gone"
    letter = stat.rpartition(")")[2].split()[0]
    if letter in "ZX":
        return "gone"
    return "stopped" if letter in "Tt" else "running"


def marked_processes(name: str, value: str) -> list[int]:
    """Returns the live processes that were started with `name=value` in their environment."""
    mark = f"{name}={value}".encode()
    return [pid for pid in _pids() if mark in _environment(pid)]


@dataclass(slots=True)
class Kin:
    """The processes of a mark: those that carry it, and all in the sessions that such ones lead.

    Args:
        sessions: the leaders seen so far, with the time each was started, so that another
            process that gets the number of one that is gone is not taken for it.
    """

    name: str
    value: str
    sessions: dict[int, str] = field(default_factory=dict)

    def pids(self) -> list[int]:
        """Returns the live ones, and remembers the sessions that marked ones lead.

        A session outlives its leader, but can't be told to be of the mark any more once that is
        gone: look while it is there.
        """
        marked = marked_processes(self.name, self.value)
        for pid in marked:
            session, started = _session(pid)
            if session == pid:
                self.sessions[pid] = started
        return [*marked, *(pid for pid in _pids() if pid not in marked and self._holds(pid))]

    def end(self) -> list[int]:
        """Ends all but this process at once; returns them.

        SIGKILL also ends a stopped process. Children born meanwhile are kin too: look again
        until none is left.
        """
        ended: list[int] = []
        for _ in range(5):
            pids = [pid for pid in self.pids() if pid != os.getpid()]
            fresh = [pid for pid in pids if pid not in ended]
            if not fresh:
                break
            for pid in fresh:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            ended += fresh
        return ended

    def _holds(self, pid: int) -> bool:
        session, _ = _session(pid)
        started = self.sessions.get(session)
        return started is not None and _session(session)[1] in ("", started)


def describe(pid: int) -> str:
    """Returns pid and command of a process, for a message; of the program, its last name only."""
    try:
        line = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        line = "gone"
    program, *arguments = line.split() or ["gone"]
    return f"{pid} {' '.join([Path(program).name, *arguments])[:80]}"


def _pids() -> Iterator[int]:
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and process_state(int(entry.name)) != "gone":
            yield int(entry.name)


def _session(pid: int) -> tuple[int, str]:
    """Returns the session of a process, and when it was started in clock ticks; "" if gone."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, ""
    return int(fields[3]), fields[19]


def _environment(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
