"""A process of its own that outlives the driver by seconds and ends what the driver left.

Ray's own agents look for their gone parent only now and then (over 40 s were seen), and a driver
that is killed can end nothing any more.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from lf_ray.trial.faults.leftovers import Kin

_GRACE_S = 2.0
_ENDS_WITHIN_S = 30.0
_LOOK_EVERY_S = 0.2


@dataclass(slots=True)
class Keeper:
    """The driver's hold on its keeper: the keeper acts once this end of the pipe is gone."""

    process: "subprocess.Popen[bytes]"

    def look(self) -> None:
        """Has the keeper learn which sessions are the marked ones', while their leaders run."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(b"look\n")
            self.process.stdin.flush()

    def release(self, within_s: float) -> bool:
        """Lets the keeper look once more and end; returns whether it did within `within_s`."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False
        return True


def start_keeper(name: str, value: str, environment: Mapping[str, str]) -> Keeper:
    """Starts a process that ends all those marked `name=value` when this process is gone.

    It has its own session, so that signals to the driver's process group do not reach it, and
    not the mark, so that it is no leftover itself.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "lf_ray.trial.faults.keeper", name, value],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={key: item for key, item in environment.items() if key != name},
        start_new_session=True,
    )
    return Keeper(process)


def keep(name: str, value: str) -> None:
    """Looks at each line of standard input; once its other end is gone, ends the mark's kin.

    What can end by itself is given a moment for it.
    """
    kin = Kin(name, value)
    for _ in sys.stdin.buffer:
        kin.pids()
    begins_s = time.monotonic()
    while kin.pids() and time.monotonic() < begins_s + _ENDS_WITHIN_S:
        if time.monotonic() > begins_s + _GRACE_S:
            kin.end()
        time.sleep(_LOOK_EVERY_S)


if __name__ == "__main__":
    keep(*sys.argv[1:3])
