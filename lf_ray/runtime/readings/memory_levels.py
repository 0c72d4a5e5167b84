"""How much memory a worker holds: what a trial must give back, and what is reported of it."""

import gc
from collections.abc import Iterable, Mapping

import torch

from lf_ray.errors import GroupError, four_parts

# On a CPU the level is what Python can see; a loader may keep a few batches more or less.
_HOST_TOLERANCE_BYTES = 8 * 2**20
# Design: reserved memory comes back to within 64 MiB.
_RESERVED_TOLERANCE_BYTES = 64 * 2**20


def memory_bytes(device: torch.device) -> dict[str, float]:
    """Returns allocated, reserved and peak bytes; on a CPU the process's resident memory."""
    if device.type != "cuda":
        return {"allocated": float(_resident_bytes()), "peak": float(_peak_resident_bytes())}
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    allocated = torch.cuda.memory_allocated(device)
    reserved = torch.cuda.memory_reserved(device)
    return {
        "allocated": float(allocated),
        "reserved": float(reserved),
        "reserved_allocated_gap": float(reserved - allocated),
        "peak": float(torch.cuda.max_memory_allocated(device)),
        "peak_reserved": float(torch.cuda.max_memory_reserved(device)),
        "device_used": float(total_bytes - free_bytes),
        "device_total": float(total_bytes),
    }


def settle_level() -> None:
    """Takes everything that is alive now out of later counts on a CPU.

    The collector then looks at what came after only: between trials that is milliseconds instead
    of a quarter of a second.
    """
    gc.collect()
    gc.freeze()


def held_level(device: torch.device, known: Iterable[torch.Tensor]) -> dict[str, float]:
    """Returns what is held now; on a CPU since `settle_level`, and without `known` tensors."""
    if device.type == "cuda":
        return {
            "allocated": float(torch.cuda.memory_allocated(device)),
            "reserved": float(torch.cuda.memory_reserved(device)),
        }
    return {"allocated": float(_visible_tensor_bytes(known))}


def check_level(level: Mapping[str, float], now: Mapping[str, float], device: torch.device) -> None:
    """Raises unless memory has come back to its level.

    Raises:
        GroupError: naming what is held and by how much.
    """
    tolerance = {
        "allocated": 0 if device.type == "cuda" else _HOST_TOLERANCE_BYTES,
        "reserved": _RESERVED_TOLERANCE_BYTES,
    }
    for name, bytes_now in now.items():
        excess = bytes_now - level[name]
        if excess > tolerance[name]:
            raise GroupError(
                four_parts(
                    "resetting a worker between trials",
                    f"{name} memory comes back to {level[name]:.0f} bytes",
                    f"{bytes_now:.0f} bytes, {excess / 2**20:.1f} MiB more",
                    "The group is replaced; look for tensors that outlive a trial.",
                )
            )


def _visible_tensor_bytes(known: Iterable[torch.Tensor]) -> int:
    kept_on_purpose = {tensor.untyped_storage().data_ptr() for tensor in known}
    storages = {}
    for item in gc.get_objects():
        # type() and not isinstance(): proxies answer the latter with deprecation warnings.
        if issubclass(type(item), torch.Tensor) and item.device.type == "cpu":
            storage = item.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(size for place, size in storages.items() if place not in kept_on_purpose)


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def _peak_resident_bytes() -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return 0
