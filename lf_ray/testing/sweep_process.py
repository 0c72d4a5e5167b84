"""A sweep of `ray_sweep` as a process: watched through its journal, and ended at will."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lf_ray.testing.ray_sweep import NAME
from lf_ray.trial.faults.leftovers import Kin, describe

MARK = "LF_RAY_TEST"


class SweepProcess:
    """One life of a sweep, in its own process group.

    Args:
        folder: working directory: outputs/, mlflow.db and the output of all lives go there.
        words: overrides.
        sessions: fields of `FakeFactory`.
        program: what is run; None runs `ray_sweep` with `sessions`.
    """

    def __init__(
        self,
        folder: Path,
        *words: str,
        sessions: Mapping[str, Any] | None = None,
        program: list[str] | None = None,
    ) -> None:
        self.folder, self.kin = folder, Kin(MARK, uuid.uuid4().hex)
        self.said = folder / "said.txt"
        folder.mkdir(parents=True, exist_ok=True)
        fake = ["-m", "lf_ray.testing.ray_sweep", json.dumps(dict(sessions or {}))]
        with self.said.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, *(program or fake), "cluster=cpu", *words],
                cwd=folder,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", MARK: self.kin.value},
            )

    @property
    def journal(self) -> Path | None:
        """Returns the journal of the only sweep in the folder, None before it is there."""
        found = sorted(self.folder.glob("outputs/*/*/journal.jsonl"))
        assert len(found) < 2, found
        return found[0] if found else None

    def lines(self) -> list[bytes]:
        """Returns the journal's whole lines."""
        return self.journal.read_bytes().split(b"\n")[:-1] if self.journal else []

    def until(self, holds: Callable[[], bool], within_s: float = 400.0) -> bool:
        """Waits until something holds, and returns whether it did before the process ended.

        Raises:
            TimeoutError: neither came within the time.
        """
        ends_s = time.monotonic() + within_s
        while not holds():
            if self.process.poll() is not None:
                return holds()
            if time.monotonic() > ends_s:
                raise TimeoutError(f"nothing within {within_s:.0f} s; it said: {self.tail()}")
            time.sleep(0.02)
        return True

    def until_lines(self, count: int, within_s: float = 400.0) -> bool:
        """Waits until the journal has so many lines; returns whether it ever had."""
        return self.until(lambda: len(self.lines()) >= count, within_s)

    def wait(self, within_s: float = 400.0) -> int:
        """Returns the exit code."""
        self.kin.pids()
        return self.process.wait(within_s)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the process alone."""
        self.kin.pids()  # while the leaders of its sessions run
        self.process.send_signal(number)

    def send_to_all(self, number: signal.Signals) -> None:
        """Sends a signal to every process of the sweep, as a container's end does."""
        for pid in self.kin.pids():
            os.kill(pid, number)

    def kill_program(self, name: str) -> None:
        """Kills the sweep's processes that run a program."""
        for pid in self.kin.pids():
            if describe(pid).split()[1] == name:
                os.kill(pid, signal.SIGKILL)

    def left(self, within_s: float = 30.0) -> list[str]:
        """Returns the sweep's processes that are there after so many seconds."""
        ends_s = time.monotonic() + within_s
        while (pids := self.kin.pids()) and time.monotonic() < ends_s:
            time.sleep(0.1)
        return [describe(pid) for pid in pids]

    def end(self) -> None:
        """Ends whatever is still there, as a test's last resort."""
        self.kin.end()
        self.process.wait(30)

    def tail(self) -> str:
        """Returns the end of what it said."""
        return self.said.read_text(errors="replace")[-2000:]


def result_folder(folder: Path) -> Path:
    """Returns the only result folder of fake sweeps that ran in a folder."""
    (found,) = (folder / "outputs" / NAME).iterdir()
    return found
