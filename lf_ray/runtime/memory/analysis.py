"""What sizes a step allocates, and which ladder of blocks would serve it: analyse, then configure.

On a GPU the caching allocator's own history is read. Elsewhere every operator's results are
followed and the allocator is modelled: the source says which.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from lf_ray.errors import ConfigError, four_parts
from lf_ray.runtime.memory.ladder import HEADROOM_BYTES, ladder_name
from lf_ray.runtime.memory.policy import LadderForecast, SegmentEvent, forecast, propose_ladder
from lf_ray.runtime.memory.pool import default_device
from lf_ray.runtime.memory.segments import TensorEvent, segment_events

# A planning figure where there is no card to ask.
_DEFAULT_BUDGET_BYTES = 80 * 2**30 - HEADROOM_BYTES
_HISTORY_ENTRIES = 400_000


@dataclass(frozen=True, slots=True)
class ShapeAnalysis:
    """What `analyze_tensor_shapes` found.

    Attributes:
        num_steps: steps that were followed.
        histogram: tensors allocated, all steps together, by the power of two that holds their
            bytes ("4 KiB": 2 KiB < size <= 4 KiB), small to large.
        bytes_histogram: the same in bytes.
        segments: sizes of the segments that the allocator takes from the device, and how many.
        ladder: proposed block sizes in GiB; `ladder_name` is how memory.block_sizes writes them.
        predicted: what the proposed ladder does with these segments.
        source: "cuda history" or "modelled allocator".
    """

    num_steps: int
    histogram: Mapping[str, int]
    bytes_histogram: Mapping[str, int]
    segments: Mapping[int, int]
    ladder: tuple[float, ...]
    predicted: LadderForecast
    source: str
    events: tuple[SegmentEvent, ...]
    budget_bytes: int

    @property
    def ladder_name(self) -> str:
        """The proposed ladder as a knob's value, such as "1-2-4"."""
        return ladder_name(self.ladder)

    @property
    def predicted_fallback_frac(self) -> float:
        """The share of segments that would not find room in the proposed ladder."""
        return self.predicted.fallback_frac

    def predict(self, block_sizes: Sequence[float]) -> LadderForecast:
        """Returns what another ladder would do with the same segments."""
        return forecast(self.events, block_sizes, self.budget_bytes)


def analyze_tensor_shapes(
    step: Callable[[], Any],
    num_steps: int = 100,
    *,
    device: torch.device | None = None,
    with_held: bool = True,
) -> ShapeAnalysis:
    """Runs a step and returns the sizes that it allocates and the ladder that would serve them.

    Args:
        step: one training step; what it returns is dropped.
        num_steps: how many are followed.
        device: where the step allocates; None takes CUDA where there is any.
        with_held: the ladder also serves the segments that are held before the first step (on a
            GPU), as it has to where the pool is in force before the model is made.

    Raises:
        ConfigError: num_steps is below 1.
    """
    if num_steps < 1:
        raise ConfigError(
            four_parts("analysing tensor shapes", "num_steps >= 1", str(num_steps), "Raise it.")
        )
    device = device or default_device()
    if device.type == "cuda":
        sizes, events = _cuda_history(step, num_steps, device, with_held=with_held)
        total_bytes = torch.cuda.get_device_properties(device).total_memory
        room_bytes = total_bytes if with_held else torch.cuda.mem_get_info(device)[0]
        budget_bytes = room_bytes - HEADROOM_BYTES
        return _analysis(num_steps, sizes, events, budget_bytes, "cuda history")
    with followed_tensors() as followed:
        for _ in range(num_steps):
            step()
        # what is still alive now would otherwise add its end at some later, random moment
        tensors = list(followed.events)
    sizes = Counter(event.num_bytes for event in tensors if event.takes)
    events = segment_events(tensors)
    return _analysis(num_steps, sizes, events, _DEFAULT_BUDGET_BYTES, "modelled allocator")


class TensorFollower(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes when the memory of every operator's results comes into use and falls out of it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[TensorEvent] = []
        self._known: set[int] = set()
        self._next = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {
            item.untyped_storage()._cdata
            for item in tree_iter((args, kwargs))
            if isinstance(item, torch.Tensor)
        }
        result = func(*args, **(kwargs or {}))
        for item in tree_iter(result):
            if isinstance(item, torch.Tensor):
                self._see(item.untyped_storage(), inputs)
        return result

    def _see(self, storage: torch.UntypedStorage, inputs: set[int]) -> None:
        key = storage._cdata
        if key in inputs or key in self._known or storage.nbytes() == 0:
            return
        self._known.add(key)
        self._next += 1
        self.events.append(TensorEvent(self._next, storage.nbytes()))
        end = weakref.finalize(storage, self._end, key, self._next, storage.nbytes())
        end.atexit = False

    def _end(self, key: int, tensor: int, num_bytes: int) -> None:
        self._known.discard(key)
        self.events.append(TensorEvent(tensor, num_bytes, takes=False))


@contextmanager
def followed_tensors() -> Iterator[TensorFollower]:
    """Follows the tensors that are made inside."""
    follower = TensorFollower()
    with follower:
        yield follower


def size_class(num_bytes: int) -> str:
    """Returns the power of two that holds so many bytes, as "512 B", "4 KiB", "2 MiB", "1 GiB"."""
    power = max(9, (num_bytes - 1).bit_length())
    for exponent, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if power >= exponent:
            return f"{2 ** (power - exponent)} {unit}"
    return f"{2**power} B"


def _analysis(
    num_steps: int,
    sizes: Mapping[int, int],
    events: Sequence[SegmentEvent],
    budget_bytes: int,
    source: str,
) -> ShapeAnalysis:
    histogram: Counter[str] = Counter()
    bytes_histogram: Counter[str] = Counter()
    for num_bytes in sorted(sizes):
        histogram[size_class(num_bytes)] += sizes[num_bytes]
        bytes_histogram[size_class(num_bytes)] += sizes[num_bytes] * num_bytes
    ladder = propose_ladder(events, budget_bytes)
    return ShapeAnalysis(
        num_steps=num_steps,
        histogram=dict(histogram),
        bytes_histogram=dict(bytes_histogram),
        segments=dict(sorted(Counter(event.num_bytes for event in events if event.takes).items())),
        ladder=ladder,
        predicted=forecast(events, ladder, budget_bytes),
        source=source,
        events=tuple(events),
        budget_bytes=budget_bytes,
    )


def _cuda_history(
    step: Callable[[], Any], num_steps: int, device: torch.device, *, with_held: bool
) -> tuple[Counter[int], list[SegmentEvent]]:
    """Returns tensor sizes over all steps, and the segments as they stand or were taken."""
    index = device.index if device.index is not None else torch.cuda.current_device()
    torch.cuda.empty_cache()
    sizes: Counter[int] = Counter()
    taken: list[tuple[int, int, bool]] = []
    held = _segments(index) if with_held else []
    before = [(item["address"], item["total_size"], True) for item in held]
    try:
        for _ in range(num_steps):
            torch.cuda.memory._record_memory_history(
                "all", context=None, max_entries=_HISTORY_ENTRIES, clear_history=True
            )
            step()
            for entry in torch.cuda.memory._snapshot()["device_traces"][index]:
                if entry["action"] == "alloc":
                    sizes[entry["size"]] += 1
                elif entry["action"] in ("segment_alloc", "segment_free"):
                    taken.append((entry["addr"], entry["size"], entry["action"] == "segment_alloc"))
    finally:
        # a step that does not fit must not leave the recorder on
        torch.cuda.memory._record_memory_history(None)
    return sizes, _numbered(before + taken)


def _segments(index: int) -> list[Any]:
    # the largest first: that is the order in which weights would be laid down anew
    snapshot = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return sorted(
        (item for item in snapshot if item["device"] == index),
        key=lambda item: -item["total_size"],
    )


def _numbered(history: Sequence[tuple[int, int, bool]]) -> list[SegmentEvent]:
    """Returns events whose segments are numbered, from a history by address."""
    number_of: dict[int, int] = {}
    events: list[SegmentEvent] = []
    for address, num_bytes, takes in history:
        if takes:
            number_of[address] = len(events)
            events.append(SegmentEvent(number_of[address], num_bytes))
        elif address in number_of:
            events.append(SegmentEvent(number_of.pop(address), num_bytes, takes=False))
    return events
