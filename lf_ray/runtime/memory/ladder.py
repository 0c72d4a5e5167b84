"""The arena's ladder of block sizes: its name, its checks, what of it a card can hold.

Pure; knows nothing of torch. GiB are 2^30 bytes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lf_ray.errors import ConfigError, four_parts

GIB = 2**30
# Left to the CUDA context, NCCL and cuBLAS: 78 GB of an 80 GB card would leave them nothing.
HEADROOM_BYTES = 3 * GIB


class Budget(NamedTuple):
    """What an arena may reserve, and the words to say where that is less than was asked for."""

    num_bytes: int
    word: str | None


def check_ladder(block_sizes: Sequence[float]) -> tuple[float, ...]:
    """Returns the block sizes in GiB, rising.

    Raises:
        ConfigError: there is none, or one is not positive or named twice.
    """
    sizes = tuple(sorted(float(size) for size in block_sizes))
    if not sizes or sizes[0] <= 0 or len(set(sizes)) < len(sizes):
        raise ConfigError(
            four_parts(
                "reading memory.block_sizes",
                "a ladder is one or more different block sizes above 0, in GiB",
                str(list(block_sizes)),
                'Give for example [1, 2, 4, 8] or "1-2-4-8".',
            )
        )
    return sizes


def parse_ladder(name: str) -> tuple[float, ...]:
    """Returns the block sizes in GiB of a ladder's name such as "1-2-4-8".

    Raises:
        ConfigError: the name is no such list of numbers.
    """
    try:
        return check_ladder([float(part) for part in name.split("-")])
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            four_parts(
                "reading memory.block_sizes",
                'a ladder is block sizes in GiB joined by "-"',
                repr(name),
                'Give for example "1-2-4-8"; an analysed ladder is one that '
                "analyze_tensor_shapes has proposed, by its numbers.",
            )
        ) from error


def ladder_name(block_sizes: Sequence[float]) -> str:
    """Returns the name of a ladder: its sizes in GiB joined by "-"."""
    return "-".join(f"{size:g}" for size in block_sizes)


def arena_budget(total_size_gb: float | None, free_bytes: int, smallest_gb: float) -> Budget:
    """Returns what an arena may reserve: `total_size_gb`, clipped to free memory less 3 GiB.

    Args:
        total_size_gb: None asks for all that there is.
        free_bytes: of the device, now.
        smallest_gb: the smallest block of the ladder.

    Raises:
        ConfigError: not even the smallest block fits.
    """
    room = max(0, free_bytes - HEADROOM_BYTES)
    asked = room if total_size_gb is None else int(total_size_gb * GIB)
    budget = Budget(min(asked, room), None)
    if asked > room:
        word = (
            f"memory.total_size_gb {total_size_gb:g} is clipped to {room / GIB:.1f} GiB: "
            f"{free_bytes / GIB:.1f} GiB are free, and context, NCCL and cuBLAS need 3 of them"
        )
        budget = Budget(room, word)
    if budget.num_bytes < smallest_gb * GIB:
        raise ConfigError(
            four_parts(
                "sizing the memory arena",
                "its total holds at least the ladder's smallest block",
                f"{budget.num_bytes / GIB:.2f} GiB of total and {smallest_gb:g} GiB of block",
                "Give a larger memory.total_size_gb, free memory, or add a smaller block.",
            )
        )
    return budget
