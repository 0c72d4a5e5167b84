"""The compiled arena: built once with g++, bound through ctypes, one per device."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from lf_ray.errors import MachineError, four_parts
from lf_ray.runtime.memory.ladder import GIB

_SOURCE = Path(__file__).with_name("arena.cpp")
_CACHE_DIR = Path("~/.cache/lf_ray")
_BUILD_TIMEOUT_S = 120
_FLAGS = ("-O2", "-std=c++17", "-shared", "-fPIC")
ALLOC_NAME, FREE_NAME = "lf_arena_alloc", "lf_arena_free"


def arena_refusal(device: torch.device, compiler: str = "g++") -> str | None:
    """Returns why a device can't have an arena, None where it can."""
    if device.type != "cuda":
        return f"the arena hands out CUDA memory, and this worker runs on {device.type}"
    if not torch.cuda.is_available():
        return "torch finds no CUDA device here"
    if shutil.which(compiler) is None and not _library_path(_CACHE_DIR.expanduser()).exists():
        return f"the arena is compiled on first use, and there is no {compiler} on the PATH"
    return None


@dataclass(frozen=True, slots=True)
class ArenaCounts:
    """What an arena has done since it was opened; the order is that of the C++ struct.

    Attributes:
        fallbacks: segments that no block held; the driver served them.
        refused: of those, the ones that the driver had no memory for.
        live_segments: segments held now, fallbacks included.
        reserved_bytes: of all blocks; fallbacks are not in it.
    """

    requests: int = 0
    request_bytes: int = 0
    fallbacks: int = 0
    fallback_bytes: int = 0
    refused: int = 0
    live_segments: int = 0
    live_bytes: int = 0
    peak_live_bytes: int = 0
    fallback_live_bytes: int = 0
    reserved_bytes: int = 0
    peak_reserved_bytes: int = 0
    blocks_reserved: int = 0

    @property
    def fallback_frac(self) -> float:
        """The share of segments, by number, that no block held."""
        return self.fallbacks / self.requests if self.requests else 0.0


class ArenaLibrary:
    """The shared object and its functions.

    Args:
        path: of the compiled object; `build_library` makes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lib = ctypes.CDLL(str(path))
        self.lib.lf_arena_alloc.restype = ctypes.c_void_p
        self.lib.lf_arena_alloc.argtypes = (ctypes.c_int64, ctypes.c_int, ctypes.c_void_p)
        self.lib.lf_arena_free.restype = None
        self.lib.lf_arena_free.argtypes = (
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int,
            ctypes.c_void_p,
        )
        for name in ("lf_arena_trim", "lf_arena_close"):
            getattr(self.lib, name).restype = ctypes.c_uint64

    def open(self, device_index: int, block_bytes: Sequence[int], budget_bytes: int) -> bool:
        """Opens a device's arena; False where it is open already, or segments live on."""
        sizes = (ctypes.c_uint64 * len(block_bytes))(*block_bytes)
        budget = ctypes.c_uint64(budget_bytes)
        return int(self.lib.lf_arena_open(device_index, sizes, len(block_bytes), budget)) == 0

    def trim(self, device_index: int) -> int:
        """Gives blocks without a segment back to the driver; returns their bytes."""
        return int(self.lib.lf_arena_trim(device_index))

    def close(self, device_index: int) -> int:
        """Closes a device's arena; returns how many segments live on."""
        return int(self.lib.lf_arena_close(device_index))

    def counts(self, device_index: int) -> ArenaCounts:
        """Returns what the arena has done."""
        num_fields = len(fields(ArenaCounts))
        values = (ctypes.c_uint64 * num_fields)()
        known = self.lib.lf_arena_counts(device_index, values, num_fields)
        assert known == num_fields, "arena.cpp and ArenaCounts differ"
        return ArenaCounts(*values)

    def blocks(self, device_index: int) -> list[tuple[int, int]]:
        """Returns size and used bytes of every block, oldest first."""
        room = 4096
        sizes, used = (ctypes.c_uint64 * room)(), (ctypes.c_uint64 * room)()
        num_blocks = self.lib.lf_arena_blocks(device_index, sizes, used, room)
        return list(zip(sizes[:num_blocks], used[:num_blocks]))


def build_library(cache_dir: Path | None = None, compiler: str = "g++") -> Path:
    """Returns the compiled arena, building it where this source was not built before.

    Several ranks may build at once: each writes its own file and moves it into place.

    Raises:
        MachineError: there is no compiler, or it failed.
    """
    folder = (cache_dir or _CACHE_DIR).expanduser()
    path = _library_path(folder)
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(suffix=".so", dir=folder)
    os.close(handle)
    command = [compiler, *_FLAGS, "-o", draft, str(_SOURCE), "-ldl"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, check=False
        )
        failure = done.stderr.strip()[-500:] if done.returncode else None
    except (OSError, subprocess.TimeoutExpired) as error:
        failure = str(error)
    if failure is not None:
        os.unlink(draft)
        raise MachineError(
            four_parts(
                "building the memory arena",
                f"{compiler} compiles {_SOURCE.name}",
                failure,
                "Install g++, or choose memory.backend=caching or expandable.",
            )
        )
    os.replace(draft, path)
    return path


def gib(num_bytes: int) -> float:
    """Returns bytes as GiB, for people."""
    return num_bytes / GIB


def _library_path(folder: Path) -> Path:
    source = _SOURCE.read_bytes() + " ".join(_FLAGS).encode()
    return folder / f"arena-{hashlib.sha256(source).hexdigest()[:16]}.so"
