"""An eager step settles late: it is timed in blocks until it does, or until a cap.

On a GPU the host launches thousands of kernels a step, and its times fall for hundreds of steps.
"""

from collections.abc import Callable, Sequence

import torch.distributed as dist

from lf_ray.measure import read_visit
from lf_ray.testing.ranks import RankPlace

MAX_BLOCKS = 12
MAX_S = 60.0


def settled_times(
    times_s: Callable[[int], Sequence[float]], num_steps: int, place: RankPlace
) -> list[float]:
    """Returns the times of all steps; blocks of `num_steps` until the last two read as steady.

    Args:
        times_s: runs so many steps and returns their times.
        num_steps: of a block.
        place: rank 0 decides for all, because ranks wait for each other in every step.
    """
    found: list[float] = []
    for number in range(1, MAX_BLOCKS + 1):
        found += times_s(num_steps)
        if number > 1 and _agreed(_is_enough(found, num_steps), place):
            break
    return found


def _is_enough(found: Sequence[float], num_steps: int) -> bool:
    return sum(found) > MAX_S or not read_visit(found[-2 * num_steps :], 1.0).error


def _agreed(mine: bool, place: RankPlace) -> bool:
    if place.world_size == 1:
        return mine
    said = [mine]
    dist.broadcast_object_list(said, src=0, group=place.control_group)
    return said[0]
