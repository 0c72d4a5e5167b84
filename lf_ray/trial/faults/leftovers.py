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
    """The processes of a mark: those that carry it, and those in sessions that such ones lead.

    A number is given again once its process is gone, so whoever was seen is known by its number
    and the time it was started, and a session by its leader while that runs.

    Args:
        members: those seen so far, with when each was started.
    """

    name: str
    value: str
    members: dict[int, str] = field(default_factory=dict)

    def pids(self) -> list[int]:
        """Returns the live ones, and remembers them.

        Who does not carry the mark can be told by its session's leader only: look while it runs.
        """
        marked = set(marked_processes(self.name, self.value))
        there = {pid: _session(pid) for pid in _pids()}
        self.members = {
            pid: started
            for pid, (session, started) in there.items()
            if pid in marked
            or self.members.get(pid) == started
            or (session in marked and leads_session(session))
        }
        return list(self.members)

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
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            ended += fresh
        return ended


def leads_session(pid: int) -> bool:
    """Returns whether a live process leads a session."""
    return _session(pid)[0] == pid


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
