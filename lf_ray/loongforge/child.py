"""One LoongForge rank as a child process: in a session of its own, ended as a group.

Data workers that it spawns belong to its process group, so nothing outlives it.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_GRACE_S = 2.0
_GONE_S = 10.0
_TAIL_BYTES = 16_384
_TAIL_CHARS = 280


@dataclass(slots=True)
class Child:
    """A started process and its log."""

    process: subprocess.Popen[bytes]
    log: Path
    _file: IO[bytes]

    @property
    def pid(self) -> int:
        """Returns the process id, which is the group's too."""
        return self.process.pid

    def exit_code(self) -> int | None:
        """Returns how it ended, None while it runs."""
        return self.process.poll()

    def end(self, grace_s: float = _GRACE_S) -> None:
        """Ends the process and all of its group; returns when all of them are gone."""
        if self.process.poll() is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_s)
        # The group may hold workers that outlived their parent.
        self._signal(signal.SIGKILL)
        self.process.wait()
        self._file.close()
        # What they held (GPU memory above all) is free only when they are gone.
        until_s = time.monotonic() + _GONE_S
        while _alive_in(self.pid) and time.monotonic() < until_s:
            time.sleep(0.01)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def start_child(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path
) -> Child:
    """Starts a command in a folder, its output in a log file.

    Raises:
        OSError: the program can't be started.
    """
    file = log.open("ab")
    try:
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError:
        file.close()
        raise
    return Child(process, log, file)


def _alive_in(group: int) -> bool:
    """Returns whether a process of the group still runs; zombies don't."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False


def last_lines(log: Path) -> str:
    """Returns the end of a log as one short line, the newest words kept."""
    lines = [line.strip() for line in _tail(log).splitlines() if line.strip()]
    text = " | ".join(lines)
    return text if len(text) <= _TAIL_CHARS else f"...{text[-_TAIL_CHARS:]}"


def ran_out_of_memory(log: Path) -> bool:
    """Returns whether the end of the log tells of memory that was not there."""
    return "out of memory" in _tail(log).lower()


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def free_port() -> int:
    """Returns a port that was free a moment ago, 0 where there is none."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])
    except OSError:
        return 0
