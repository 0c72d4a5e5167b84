"""What can be known to be wrong before a worker starts: the machine, the folders, the counts.

Pure but for `check_folder`: the machine is an argument. Data sets have their own check
(`lf_ray.data.check`), tracking URIs theirs (`lf_ray.record`).
"""

import os
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lf_ray.errors import ConfigError, MachineError, four_parts
from lf_ray.machine import Machine
from lf_ray.settings import SweepConfig

# A nano rank with torch, its data and gloo buffers stays below this (seen: 0.6 GB resident).
RANK_BYTES = 1_200_000_000
# Ray's object store, kept small since nothing large travels through it, and gloo's files.
SHM_BYTES = 150_000_000
# Eight ranks can be tried out on a laptop; the report then says that its times mean little.
WORKERS_A_CORE = 4
NEEDS_PEERS = ("overlap", "joint")
WITHOUT_PEERS = "baseline.py, data.py, memory.py, graph.py and batch_lr.py"


def check_machine(
    config: SweepConfig, machine: Machine, gpus_usable: Callable[[], str] = lambda: ""
) -> None:
    """Refuses what this machine can't hold.

    Args:
        config: the sweep's settings, workers and device filled in.
        machine: what there is.
        gpus_usable: asks torch; returns "" or what it said. Called only where there are GPUs.

    Raises:
        MachineError: Python, /dev/shm, memory, cores or GPUs do not suffice.
        ConfigError: one worker has nobody to overlap with.
    """
    if config.cluster.kind.startswith("sim_"):
        return
    _check_python(machine)
    if config.name in NEEDS_PEERS and config.num_workers < 2:
        raise ConfigError(
            four_parts(
                f"starting the {config.name} sweep",
                "overlap needs at least two workers that exchange gradients",
                f"cluster.workers={config.num_workers}",
                f"Run {WITHOUT_PEERS} instead, or give cluster.workers=2 or more.",
            )
        )
    if config.cluster.address is not None:
        return
    if machine.gpus and config.cluster.device == "cuda":
        _check_gpus(config, machine, gpus_usable)
    else:
        _check_cpu(config, machine)
    if machine.shm_bytes < SHM_BYTES:
        raise MachineError(
            four_parts(
                "starting workers",
                f"/dev/shm must have {SHM_BYTES / 1e6:.0f} MB free",
                f"{machine.shm_bytes / 1e6:.0f} MB",
                "In a container, start it with --shm-size=2g (or more).",
            )
        )


def _check_python(machine: Machine) -> None:
    if machine.python < (3, 11):
        raise MachineError(
            four_parts(
                "starting lf-ray",
                "it needs Python 3.11 or newer",
                ".".join(str(part) for part in machine.python),
                "Build the environment with a newer one: make sweep PYTHON=python3.12.",
            )
        )


def _check_gpus(config: SweepConfig, machine: Machine, gpus_usable: Callable[[], str]) -> None:
    if config.num_workers > len(machine.gpus):
        raise MachineError(
            four_parts(
                "placing workers",
                "each worker takes one GPU",
                f"cluster.workers={config.num_workers} on {machine.label}",
                f"Give cluster.workers={len(machine.gpus)} or less.",
            )
        )
    said = gpus_usable()
    if said:
        raise MachineError(
            four_parts(
                "looking for GPUs",
                "torch must be able to use the GPUs that the driver shows",
                f"{machine.label}; {said}",
                "Install a torch build for this driver (make sweep TORCH_INDEX=URL of a CUDA "
                "build), or update the driver; cluster=cpu runs without the GPUs.",
            )
        )


def _check_cpu(config: SweepConfig, machine: Machine) -> None:
    most = WORKERS_A_CORE * machine.num_cores
    if config.num_workers > most:
        raise MachineError(
            four_parts(
                "placing workers",
                f"at most {WORKERS_A_CORE} workers share a core",
                f"cluster.workers={config.num_workers} on {machine.num_cores} cores",
                f"Give cluster.workers={most} or less.",
            )
        )
    needed = config.num_workers * RANK_BYTES
    if needed > machine.memory_bytes:
        raise MachineError(
            four_parts(
                "placing workers",
                f"{config.num_workers} workers need about {needed / 1e9:.1f} GB of memory",
                f"{machine.memory_bytes / 1e9:.1f} GB",
                "Give fewer cluster.workers.",
            )
        )


def check_folder(path: str | os.PathLike[str], key: str) -> Path:
    """Returns the folder, made if need be and proven writable by writing to it.

    Raises:
        ConfigError: it can't be made or written; `key` is the setting that names it.
    """
    folder = Path(path).expanduser()
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text("lf-ray\n")
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            four_parts(
                "preparing the result folder",
                f"{key} must be a folder that can be written",
                f"{key}={path} ({error.strerror or error})",
                f"Give another {key}, or free space and rights there.",
            )
        ) from None
    return folder


def describe_versions() -> dict[str, str]:
    """Returns the versions that a result depends on, by package, without importing any."""
    found = {"python": ".".join(str(part) for part in sys.version_info[:3])}
    for package in ("lf-ray", "torch", "ray", "optuna", "mlflow", "mlflow-skinny"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
