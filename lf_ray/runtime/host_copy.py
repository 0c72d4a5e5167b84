"""A flat buffer's copy on the host, page-locked where it travels to and from a GPU.

Page-locking runs at 2 GB/s whoever asks for it, the copy at 50 (docs/log.md, 2026-12-01). So the
room is made in a thread, while the caller has the compiler to wait for.

Shape suffix: N elements of the flat buffers.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

PART_ELEMENTS = 2**22
"""16 MiB of fp32. torch rounds page-locked memory up to a power of two, which for 5 GB in one
piece would be 8.
"""


class HostCopy:
    """Room for `num_elements` fp32 values; it is being made when the constructor returns.

    Args:
        device: that the values come from and go to.
    """

    def __init__(self, num_elements: int, device: torch.device) -> None:
        is_locked = device.type == "cuda"

        def make_room() -> list[Tensor]:
            sizes = [
                min(PART_ELEMENTS, num_elements - first)
                for first in range(0, num_elements, PART_ELEMENTS)
            ]
            return [torch.empty(size, pin_memory=is_locked) for size in sizes]

        maker = ThreadPoolExecutor(1, thread_name_prefix="page-lock")
        self._room = maker.submit(make_room)
        maker.shutdown(wait=False)

    @property
    def parts(self) -> list[Tensor]:
        """Returns the tensors on the host, in order, once all are there."""
        return self._room.result()

    def wait(self) -> None:
        """Returns when all room is there."""
        self._room.result()

    @torch.no_grad()
    def take(self, values_N: Tensor) -> None:
        """Copies values here; they may be changed once it returns. Fewer than there is room for."""
        for part, kept_N in self._split(0, values_N.numel()):
            kept_N.copy_(values_N[part], non_blocking=True)
        if values_N.device.type == "cuda":
            torch.cuda.current_stream(values_N.device).synchronize()

    @torch.no_grad()
    def give(self, target_N: Tensor, first: int = 0) -> None:
        """Copies elements from `first` on to a tensor on the device, in the order of its stream."""
        for part, kept_N in self._split(first, first + target_N.numel()):
            target_N[part].copy_(kept_N, non_blocking=True)

    def _split(self, first: int, last: int) -> Iterator[tuple[slice, Tensor]]:
        """Yields where pieces of first .. last - 1 lie there, counted from `first`, and here."""
        for number in range(first // PART_ELEMENTS, -(-last // PART_ELEMENTS)):
            begin = max(first, number * PART_ELEMENTS)
            end = min(last, (number + 1) * PART_ELEMENTS)
            kept_N = self.parts[number]
            offset = number * PART_ELEMENTS
            yield slice(begin - first, end - first), kept_N[begin - offset : end - offset]
