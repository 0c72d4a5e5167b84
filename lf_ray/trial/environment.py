"""The environment that workers start with: read once per process, so it belongs to the group.

Pure. What the driver had set by hand comes first, what the knobs ask for wins.
"""

from collections.abc import Mapping

from lf_ray.errors import MachineError, four_parts
from lf_ray.settings import MemoryBackend, SweepConfig

_FORWARDED = ("NCCL_", "TORCH_NCCL_", "GLOO_", "HF_")
_ALLOCATOR = "PYTORCH_ALLOC_CONF"
_OLD_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
_EXPANDABLE = "expandable_segments"


def forwarded(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns what a user may have set for workers in the driver's environment.

    Workers of a cluster that was there before the driver would never see it.
    """
    names = [name for name in environ if name.startswith(_FORWARDED)]
    names += [name for name in (_ALLOCATOR, _OLD_ALLOCATOR) if name in environ]
    # A token is nobody's business but the driver's.
    return {name: environ[name] for name in names if "TOKEN" not in name}


def worker_environment(config: SweepConfig, given: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a group with these settings.

    Args:
        config: with the knobs of the group laid over it.
        given: set by hand, see `forwarded`.
    """
    environment = {"OMP_NUM_THREADS": "1", **given}
    if config.cluster.device != "cuda":
        return environment
    expandable = config.memory.backend is MemoryBackend.expandable
    # torch reads the old name only where the new one is missing.
    old = environment.pop(_OLD_ALLOCATOR, "")
    settings = _without_expandable(environment.pop(_ALLOCATOR, old))
    environment[_ALLOCATOR] = ",".join([*settings, f"{_EXPANDABLE}:{expandable}"])
    if config.nccl.algo != "default":
        environment["NCCL_ALGO"] = config.nccl.algo.capitalize()
    if config.nccl.max_ctas:
        environment["NCCL_MAX_CTAS"] = str(config.nccl.max_ctas)
    return environment


def _without_expandable(settings: str) -> list[str]:
    parts = [part.strip() for part in settings.split(",") if part.strip()]
    return [part for part in parts if not part.startswith(_EXPANDABLE)]


def check_environment(asked: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Refuses to measure with another environment than the one that was asked for.

    Raises:
        MachineError: a variable of the worker differs.
    """
    differ = sorted(name for name, value in asked.items() if found.get(name) != value)
    if differ:
        shown = ", ".join(f"{name}={found.get(name)!r}, not {asked[name]!r}" for name in differ)
        raise MachineError(
            four_parts(
                "starting a worker",
                "its environment is the one that the group was asked to have",
                shown,
                "Look for what sets it on that machine (a shell profile, an image).",
            )
        )
