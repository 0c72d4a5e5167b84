"""A flat buffer's copy on the host, page-locked where it travels to and from a GPU.

Pages are found for it in a thread, then locked in one call. torch's own page-locked memory finds
and locks them at once: twice as long, and meanwhile the driver takes 86 launches a second instead
of 120,000 (docs/log.md, 2026-12-01), those that the compiler times among them.

Shape suffix: N elements of the flat buffers.
"""

import mmap
import weakref
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch
from torch import Tensor

from lf_ray.errors import MachineError, four_parts

_ITEM_BYTES = 4
_PAGE_ELEMENTS = mmap.PAGESIZE // _ITEM_BYTES


class HostCopy:
    """Room for `num_elements` fp32 values; it is being made when the constructor returns.

    Args:
        device: that the values come from and go to.
    """

    def __init__(self, num_elements: int, device: torch.device) -> None:
        maker = ThreadPoolExecutor(1, thread_name_prefix="host-copy")
        self._made: Future[Tensor] = maker.submit(_room, num_elements, device)
        maker.shutdown(wait=False)

    @property
    def kept_N(self) -> Tensor:  # noqa: N802
        """Returns the tensor on the host, once it is there.

        Raises:
            MachineError: there is no memory for it, or it can't be page-locked.
        """
        return self._made.result()

    def wait(self) -> None:
        """Returns once the room is there, or is known not to come."""
        wait([self._made])

    @torch.no_grad()
    def take(self, values_N: Tensor) -> None:
        """Copies values here; they may be changed once it returns. Fewer than there is room for."""
        self.kept_N[: values_N.numel()].copy_(values_N, non_blocking=True)
        if values_N.device.type == "cuda":
            torch.cuda.current_stream(values_N.device).synchronize()

    @torch.no_grad()
    def give(self, target_N: Tensor, first: int = 0) -> None:
        """Copies elements from `first` on to a tensor on the device, in the order of its stream."""
        part_N = self.kept_N[first : first + target_N.numel()]
        assert part_N.shape == target_N.shape
        target_N.copy_(part_N, non_blocking=True)


def _room(num_elements: int, device: torch.device) -> Tensor:
    num_bytes = max(1, num_elements) * _ITEM_BYTES
    try:
        memory = mmap.mmap(-1, num_bytes)
    except OSError as error:
        raise _refused(num_bytes, str(error)) from error
    room_N = torch.frombuffer(memory, dtype=torch.float32)
    room_N[::_PAGE_ELEMENTS].zero_()
    if device.type == "cuda":
        _lock(room_N, num_bytes, device)
    return room_N


def _lock(room_N: Tensor, num_bytes: int, device: torch.device) -> None:
    place = room_N.data_ptr()
    # A thread begins on the first GPU, and its first call would make a context there.
    with torch.cuda.device(device):
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        code = runtime.cudaHostRegister(place, num_bytes, 0)
    if int(code) != 0:
        raise _refused(num_bytes, f"{code} from cudaHostRegister")
    weakref.finalize(room_N, _unlock, place, device).atexit = False


def _unlock(place: int, device: torch.device) -> None:
    with torch.cuda.device(device):
        torch.cuda.cudart().cudaHostUnregister(place)  # type: ignore[no-untyped-call]


def _refused(num_bytes: int, got: str) -> MachineError:
    return MachineError(
        four_parts(
            "making room on the host for a copy of weights or gradients",
            f"{num_bytes / 2**30:.2f} GiB a rank can be had and page-locked",
            got,
            "Look at the memory that is free, or let fewer parts of the model learn.",
        )
    )
