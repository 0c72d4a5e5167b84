"""A pool of ranks that outlives a test: started once, then a case costs milliseconds.

Cases are module-level functions `case(place, *args)`; they run in every rank and return plain
values. Every wait has a deadline that names the missing ranks. After a failed case the pool is
thrown away, because a rank may still sit in a collective.
"""

import importlib.util
import inspect
import multiprocessing
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

START_DEADLINE_S = 90.0
CASE_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a case finds itself: its rank and the two process groups of a worker group."""

    rank: int
    world_size: int
    work_group: Any
    control_group: Any
    device: str = "cpu"


class RankError(Exception):
    """A case failed in a rank, or a rank did not answer in time."""


class RankPool:
    """Persistent ranks on this machine.

    Args:
        world_size: number of ranks.
        backend: of the work group: "gloo", or "nccl" with one GPU a rank.
        environment: variables that its ranks start with, such as NCCL_ALGO.
        imported: modules that are imported once for all ranks of all pools, beside torch. What
            the first pool of a process says counts.
    """

    def __init__(
        self,
        world_size: int,
        backend: str = "gloo",
        environment: Mapping[str, str] | None = None,
        imported: Sequence[str] = (),
    ) -> None:
        self.world_size = world_size
        self._imported = tuple(imported)
        self._backend = backend
        self._environment = dict(environment or {})
        self._processes: list[ForkServerProcess] = []
        self._pipes: list[Connection] = []

    def run(
        self, case: Callable[..., Any], *args: Any, deadline_s: float = CASE_DEADLINE_S
    ) -> list[Any]:
        """Runs `case(place, *args)` in every rank and returns the results by rank.

        Raises:
            RankError: with the first rank's error, or with the ranks that did not answer.
        """
        if not self._processes:
            self._start()
        source = inspect.getsourcefile(case)
        assert source is not None
        for pipe in self._pipes:
            pipe.send((source, case.__qualname__, args))
        return self._collect(case.__qualname__, deadline_s)

    def close(self) -> None:
        """Ends the ranks."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        # torch is imported once, in the server; a rank is then a fork of it.
        context.set_forkserver_preload(["torch", "torch.distributed", *self._imported])
        port = _free_port()
        for rank in range(self.world_size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(rank, self.world_size, port, self._backend, self._environment, theirs),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        self._collect("start", START_DEADLINE_S)

    def _collect(self, what: str, deadline_s: float) -> list[Any]:
        results: dict[int, Any] = {}
        failures: list[str] = []
        ends_s = time.monotonic() + deadline_s
        waiting: dict[Connection, int] = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        while waiting and not failures:
            ready = wait(list(waiting), timeout=max(0.0, ends_s - time.monotonic()))
            if not ready:
                failures.append(
                    f"{what}: no answer within {deadline_s:.0f} s from ranks "
                    f"{sorted(waiting.values())}; answered: {sorted(results)}"
                )
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = waiting.pop(pipe)
                try:
                    fine, value = pipe.recv()
                except EOFError:
                    fine, value = False, "the process is gone"
                if fine:
                    results[rank] = value
                else:
                    failures.append(f"{what}, rank {rank}: {value}")
        if failures:
            self.close()
            raise RankError("\n".join(failures))
        return [results[rank] for rank in range(self.world_size)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _serve(
    rank: int,
    world_size: int,
    port: int,
    backend: str,
    environment: Mapping[str, str],
    pipe: Connection,
) -> None:
    os.environ.update(environment)
    try:
        place = _join(rank, world_size, port, backend)
        pipe.send((True, os.getpid()))
    except Exception:
        pipe.send((False, traceback.format_exc()))
        return
    while True:
        try:
            source, name, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, _find(source, name)(place, *args)))
        except Exception:
            pipe.send((False, traceback.format_exc()))


def _join(rank: int, world_size: int, port: int, backend: str) -> RankPlace:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if backend == "nccl":
        # NVLink multicast needs rights that a container seldom has.
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend,
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=START_DEADLINE_S),
    )
    control_group = dist.new_group(backend="gloo", timeout=timedelta(seconds=CASE_DEADLINE_S))
    return RankPlace(
        rank=rank,
        world_size=world_size,
        work_group=dist.group.WORLD,
        control_group=control_group,
        device=f"cuda:{rank}" if backend == "nccl" else "cpu",
    )


def _find(source: str, name: str) -> Callable[..., Any]:
    """Returns the case by file and name: test files are no importable modules in a rank."""
    key = f"ranks_case_{Path(source).stem}"
    module = sys.modules.get(key)
    if module is None:
        spec = importlib.util.spec_from_file_location(key, source)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        spec.loader.exec_module(module)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    case: Callable[..., Any] = found
    return case
