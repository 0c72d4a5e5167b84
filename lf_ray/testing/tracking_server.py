"""A real MLflow tracking server on this machine, for tests that take it away and bring it back."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

START_S = 180.0


def free_port() -> int:
    """Returns a port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class TrackingServer:
    """A server on a SQLite file in a folder, in its own process group.

    Attributes:
        uri: of the server, the same each time it is started.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.uri = f"http://127.0.0.1:{port}"
        self._folder, self._port = folder, port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the server and waits until it answers.

        Raises:
            TimeoutError: it does not within `START_S`.
        """
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
                    *("--host", "127.0.0.1", "--port", str(self._port)),
                    *("--backend-store-uri", f"sqlite:///{self._folder}/server.db"),
                    *("--artifacts-destination", str(self._folder / "artifacts")),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
            )
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.uri}/health", timeout=2).close()
                return
            time.sleep(0.2)
        said = (self._folder / "server.log").read_text()
        raise TimeoutError(f"no server within {START_S} s: {said}")

    def kill(self) -> None:
        """Ends the server and its workers at once; may be called again."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
            self._process = None
