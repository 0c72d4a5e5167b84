"""Who decodes: a thread of this process, or processes of its own, one thread waiting for each."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Protocol

from lf_ray.data.frames.child import receive, send
from lf_ray.data.frames.request import Answerer, DecodeReply, DecodeRequest, unreadable

_STOP_S = 5.0


class Worker(Protocol):
    """Answers requests, for one thread."""

    def answer(self, request: DecodeRequest) -> DecodeReply:
        """Returns the reply to a request."""
        ...

    def close(self) -> None:
        """Lets go of files and processes."""
        ...


class ChildWorker:
    """A decoding process that is started when first needed, and again when it was killed.

    Attributes:
        num_lost: how often it was found dead.
    """

    def __init__(self, threads: int) -> None:
        self.num_lost = 0
        self._threads = threads
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Returns the process's id, None before its first request."""
        return None if self._process is None else self._process.pid

    def answer(self, request: DecodeRequest) -> DecodeReply:
        """Returns the process's reply; a request that kills it twice is unreadable."""
        for _ in range(2):
            try:
                return self._asked(request)
            except (EOFError, OSError):
                self.num_lost += 1
                self.close()
        return unreadable(request, "the decoding process died twice on it")

    def _asked(self, request: DecodeRequest) -> DecodeReply:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lf_ray.data.frames.child", str(self._threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        send(self._process.stdin, request)  # type: ignore[arg-type]
        reply = receive(self._process.stdout)  # type: ignore[arg-type]
        assert isinstance(reply, DecodeReply)
        return reply

    def close(self) -> None:
        """Ends the process: it goes when its input closes, else it is killed."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):  # it is gone already
            process.stdin.close()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


class DecoderPool:
    """Answers requests in the background.

    Args:
        num_workers: decoding processes; 0 decodes in a thread of this process.
        decode_threads: threads of each video decoder.
    """

    def __init__(self, num_workers: int, decode_threads: int) -> None:
        self.num_workers = num_workers
        self._decode_threads = decode_threads
        self._own = threading.local()
        self._workers: list[Worker] = []
        self._closing = threading.Event()
        self._executor = ThreadPoolExecutor(max(num_workers, 1), "lf-ray-decode")

    def submit(self, requests: Iterable[DecodeRequest]) -> list[Future[DecodeReply]]:
        """Starts answering and returns at once."""
        return [self._executor.submit(self._answer, request) for request in requests]

    def _answer(self, request: DecodeRequest) -> DecodeReply:
        if self._closing.is_set():
            raise CancelledError
        worker: Worker | None = getattr(self._own, "worker", None)
        if worker is None:
            threads = self._decode_threads
            worker = ChildWorker(threads) if self.num_workers else Answerer(threads)
            self._own.worker = worker
            self._workers.append(worker)
        return worker.answer(request)

    def pids(self) -> list[int]:
        """Returns the ids of the decoding processes."""
        return [child.pid for child in self._children() if child.pid is not None]

    @property
    def num_lost(self) -> int:
        """Returns how often a decoding process was found dead."""
        return sum(child.num_lost for child in self._children())

    def _children(self) -> list[ChildWorker]:
        return [worker for worker in self._workers if isinstance(worker, ChildWorker)]

    def stop(self) -> None:
        """Cancels what has not been begun, without waiting."""
        self._closing.set()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Ends threads and processes after the request that each works on."""
        self._closing.set()
        self._executor.shutdown(wait=True, cancel_futures=True)
        for worker in self._workers:
            worker.close()
        self._workers.clear()
