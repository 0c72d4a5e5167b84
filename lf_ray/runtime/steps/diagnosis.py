"""The article's four capture errors: raw error, likely cause, line, what to change."""

import traceback
from dataclasses import dataclass
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from lf_ray.errors import CaptureError, four_parts


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One way in which a capture fails.

    Attributes:
        texts: parts of the raw message, lower case, any of which tells it.
    """

    title: str
    texts: tuple[str, ...]
    cause: str
    cure: str


HOST_WAITS = Diagnosis(
    title="operation not permitted during capture",
    texts=(
        "not permitted when stream is capturing",
        "operation not permitted",
        "streamcaptureunsupported",
        "streamcaptureinvalidated",
        "streamcaptureimplicit",
        "would make the legacy stream depend",
        "previous error during capture",
    ),
    cause="the host waits for the device: .item(), .cpu(), print of a tensor, or a shape that "
    "depends on values; or work on the default stream",
    cure="Take it out of the captured part; CUDA_LAUNCH_BLOCKING=1 shows the line if none is "
    "named here.",
)
DEAD_ADDRESS = Diagnosis(
    title="invalid argument",
    texts=("invalid argument", "illegal memory access", "invalid resource handle"),
    cause="an address that the graph uses died after capture, most often optimizer state or "
    "gradients that were made inside it",
    cure="Allocate everything before: preallocate_optimizer_state=True, and keep inputs alive.",
)
OUT_OF_MEMORY = Diagnosis(
    title="out of memory during capture",
    texts=("out of memory",),
    cause="too little memory for the capture's own pool beside what warm-up has left",
    cure="Use a smaller batch, share one pool over all graphs, or the memory pool.",
)
MISMATCH = Diagnosis(
    title="graph replay mismatch",
    texts=("graph replay mismatch",),
    cause="the input differs from the captured one",
    cure="Fix the shapes, pad variable lengths, or capture this shape as well.",
)
_NOT_THE_USERS = ("/torch/", "lf_ray/runtime/article", "lf_ray/runtime/steps")
_OTHER = Diagnosis(
    title="capture failed",
    texts=(),
    cause="none of the four known ones",
    cure="Set graph.scope=off and see whether the step runs eagerly.",
)


def diagnose(error: BaseException) -> CaptureError:
    """Returns the error of a failed capture, with cause, line and cure."""
    error = first_of(error)
    raw = " ".join(str(error).split())
    text = f"{type(error).__name__} {raw}".lower()
    known = (OUT_OF_MEMORY, HOST_WAITS, DEAD_ADDRESS, MISMATCH)
    found = next((item for item in known if any(part in text for part in item.texts)), _OTHER)
    return capture_error(found, f"{type(error).__name__}: {raw[:300]}", line_of(error))


def first_of(error: BaseException) -> BaseException:
    """Returns the error that came first: ending a broken capture raises another one over it."""
    while isinstance(error.__context__, Exception):
        error = error.__context__
    return error


def capture_error(diagnosis: Diagnosis, raw: str, line: str) -> CaptureError:
    """Returns the error of a known diagnosis."""
    where = f" at {line}" if line else ""
    return CaptureError(
        four_parts(
            f"capturing a step ({diagnosis.title})",
            f"likely cause: {diagnosis.cause}",
            f"{raw}{where}",
            diagnosis.cure,
        )
    )


def line_of(error: BaseException) -> str:
    """Returns the innermost line outside of torch that raised: file, number and source."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [
        frame for frame in frames if not any(part in frame.filename for part in _NOT_THE_USERS)
    ]
    if not outside:
        return ""
    frame = outside[-1]
    return f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} `{frame.line}`"


class HostWaits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises where a GPU's capture would: the host reads a value, or a shape depends on one."""

    _WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "is_nonzero")

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Runs an operation that a capture allows."""
        name = function.overloadpacket.__name__
        if name in self._WAITS:
            raise RuntimeError(
                f"operation not permitted when stream is capturing (aten::{name}, emulated)"
            )
        return function(*args, **(kwargs or {}))
