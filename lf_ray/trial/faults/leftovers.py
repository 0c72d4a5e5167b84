"""Processes of this machine, found by a mark in their environment: who they are, and their end.

Ray renames its workers, so their command lines say nothing; the environment that a process was
started with stays readable, and its children inherit it. Linux only.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
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


def describe(pid: int) -> str:
    """Returns pid and command of a process, for a message; of the program, its last name only."""
    try:
        line = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        line = "gone"
    program, *arguments = line.split() or ["gone"]
    return f"{pid} {' '.join([Path(program).name, *arguments])[:80]}"


def end_marked(name: str, value: str) -> list[int]:
    """Ends the marked processes but this one at once; returns them.

    SIGKILL also ends a stopped process. Children born meanwhile carry the mark: look again until
    none is left.
    """
    ended: list[int] = []
    for _ in range(5):
        pids = [pid for pid in marked_processes(name, value) if pid != os.getpid()]
        fresh = [pid for pid in pids if pid not in ended]
        if not fresh:
            break
        for pid in fresh:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended += fresh
    return ended


def _pids() -> Iterator[int]:
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and process_state(int(entry.name)) != "gone":
            yield int(entry.name)


def _environment(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
