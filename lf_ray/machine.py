"""What this machine has: cores, memory, GPUs. The only file with psutil and NVML.

Never imports torch: whether torch can use the GPUs is asked of a child process, since importing it
takes seconds and a broken driver may end the process.
"""

import contextlib
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pynvml


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A machine as far as a sweep has to know it. Bytes are plain bytes."""

    num_cores: int
    memory_bytes: int
    shm_bytes: int
    gpus: tuple[str, ...] = ()
    driver: str = ""
    processor: str = ""
    python: tuple[int, int] = field(default=(3, 11))

    @property
    def label(self) -> str:
        """Returns one line that names the machine in a report."""
        if self.gpus:
            return f"{len(self.gpus)} x {self.gpus[0]} (driver {self.driver})"
        return f"{self.num_cores} CPU cores, {self.processor or 'unknown processor'}"


def detect() -> Machine:
    """Returns this machine, seen without touching a GPU's memory."""
    gpus, driver = _gpus()
    shm = Path("/dev/shm")
    return Machine(
        num_cores=len(os.sched_getaffinity(0)),
        memory_bytes=_memory_limit_bytes(),
        shm_bytes=shutil.disk_usage(shm).free if shm.is_dir() else 0,
        gpus=gpus,
        driver=driver,
        processor=_processor(),
        python=(sys.version_info.major, sys.version_info.minor),
    )


def gpus_usable() -> str:
    """Returns "" where torch can use the GPUs, else what it said. Asks a child process."""
    program = (
        "import torch\n"
        "print(torch.__version__, 'built for CUDA', torch.version.cuda)\n"
        "torch.zeros(1, device='cuda')\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "torch did not answer within 120 s"
    if done.returncode == 0:
        return ""
    last = done.stderr.strip().splitlines()[-1:] or ["no message"]
    return f"torch {done.stdout.strip() or '(did not import)'}: {last[0]}"


def process_rss_bytes(pid: int | None = None) -> int:
    """Returns the resident memory of a process (this one by default); 0 if it is gone."""
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0


def process_alive(pid: int) -> bool:
    """Returns whether a process runs; one that has ended but was not waited for does not."""
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def child_pids(pid: int | None = None) -> list[int]:
    """Returns the ids of all processes below a process (this one by default)."""
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []


def load_1min() -> float:
    """Returns the load average over the last minute."""
    return float(psutil.getloadavg()[0])


def gpu_utilisation_frac(index: int) -> float | None:
    """Returns the share of time that a GPU was busy lately; None where NVML doesn't say."""
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
    return None


def _gpus() -> tuple[tuple[str, ...], str]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return (), ""
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        names = tuple(_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles)
        return names, _text(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _memory_limit_bytes() -> int:
    total = int(psutil.virtual_memory().total)
    limit = Path("/sys/fs/cgroup/memory.max")
    with contextlib.suppress(OSError, ValueError):
        return min(total, int(limit.read_text()))
    return total


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
