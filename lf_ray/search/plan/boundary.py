"""What is known not to fit, and what is known to be the same: points that need no trial.

A point dominated by one that ran out of memory is never proposed again; a point whose messages
equal another's is dead.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lf_ray.protocol import GradientTensor, Knobs, KnobValue, TrialOutcome, TrialRecord
from lf_ray.runtime.bucket_plan import BucketPlan, bucket_plan
from lf_ray.search.space import point_key

_WORD_ORDER: Mapping[str, tuple[str, ...]] = {
    "graph.scope": ("off", "step", "step+optimizer"),
    "pipeline.prefix": ("off", "on"),
}
_DEVICE_MONOTONE = ("batch.per_gpu", "batch.accumulation", *_WORD_ORDER)
_HOST_MONOTONE = (*_DEVICE_MONOTONE, "data.workers", "data.prefetch", "data.decode_threads")
# bf16 on the wire takes a buffer more in some runtimes and a smaller one in others.
_BUFFERS = ("overlap.comm_dtype",)
_ALLOCATOR = ("memory.backend", "memory.block_sizes")
_DECODING = ("data.workers", "data.decode_threads")
_OVERLAP = ("overlap.bucket_size_mb", "overlap.ratio", "overlap.comm_dtype")

# error kind of an infeasible outcome -> knobs of which more can only be worse, knobs that must be
# equal for the verdict to carry over. What is named in neither has no say.
_CARRY_OVER: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "oom": (_DEVICE_MONOTONE, (*_ALLOCATOR, *_BUFFERS)),
    "host_memory": (_HOST_MONOTONE, ()),
    "compiler": ((), ("memory.backend",)),
}


def dominated(knobs: Knobs, infeasible: Knobs, error_kind: str) -> bool:
    """Returns whether a point can't fit because another one did not."""
    if error_kind not in _CARRY_OVER:
        return point_key(knobs) == point_key(infeasible)
    rising, equal = _CARRY_OVER[error_kind]
    return all(knobs[name] == infeasible[name] for name in equal if name in knobs) and all(
        _rank(name, knobs[name]) >= _rank(name, infeasible[name])
        for name in rising
        if name in knobs
    )


def same_allocator(one: Knobs, other: Knobs) -> bool:
    """Returns whether the same allocator hands out memory at both points."""
    return all(one.get(name) == other.get(name) for name in _ALLOCATOR)


def memory_key(knobs: Knobs) -> tuple[KnobValue | None, ...]:
    """Returns the values of all knobs that have a say in what fits."""
    return tuple(knobs.get(name) for name in (*_HOST_MONOTONE, *_ALLOCATOR, *_BUFFERS))


def demand(knobs: Knobs) -> float:
    """Returns the samples whose activations a rank holds at once."""
    return float(knobs["batch.per_gpu"])


@dataclass(frozen=True, slots=True)
class Misfit:
    """A point that was found infeasible."""

    id: str
    knobs: Knobs
    outcome: TrialOutcome


def credible(misfits: Iterable[Misfit], fitting: Sequence[Knobs]) -> list[Misfit]:
    """Returns the misfits that no point contradicts.

    Where something at least as large did fit, the order of knobs does not explain the misfit, and
    it says nothing of other points.
    """
    return [
        misfit
        for misfit in misfits
        if not any(dominated(knobs, misfit.knobs, misfit.outcome.error_kind) for knobs in fitting)
    ]


def dominating(knobs: Knobs, misfits: Iterable[Misfit]) -> tuple[str, str] | None:
    """Returns id and reason of a misfit that rules this point out."""
    for misfit in misfits:
        if dominated(knobs, misfit.knobs, misfit.outcome.error_kind):
            reason = f"at least as large as {misfit.id}, which did not fit: {misfit.outcome.reason}"
            return misfit.id, reason
    return None


def _rank(name: str, value: KnobValue) -> float:
    words = _WORD_ORDER.get(name)
    return float(words.index(str(value))) if words else float(value)


class Effects:
    """Tells which points come to the same thing: same messages at the same time, same decoding.

    Without gradients (before the baseline has run) only equal knobs are known to send the same.

    Args:
        gradients: what is sent, in ready order.
        undecoded: by values of data.cache, the knobs that do nothing there, because no frame is
            left to decode.
    """

    def __init__(
        self,
        gradients: Sequence[GradientTensor] = (),
        undecoded: Mapping[KnobValue, Sequence[str]] | None = None,
    ) -> None:
        self._gradients = gradients
        self._undecoded = undecoded or {}
        self._plans: dict[tuple[KnobValue, KnobValue], BucketPlan] = {}
        self._signatures: dict[tuple[KnobValue, KnobValue, KnobValue], str] = {}

    def key(self, knobs: Knobs) -> str:
        """Returns text that is equal for points with equal effect."""
        idle = self._undecoded.get(knobs.get("data.cache", ""), ())
        knobs = {name: value for name, value in knobs.items() if name not in idle}
        if not self._gradients:
            return point_key(knobs)
        rest = {name: value for name, value in knobs.items() if name not in _OVERLAP}
        size, ratio, dtype = (knobs[name] for name in _OVERLAP)
        if (size, dtype) not in self._plans:
            self._plans[size, dtype] = bucket_plan(self._gradients, float(size), str(dtype))
        if (size, ratio, dtype) not in self._signatures:
            signature = self._plans[size, dtype].signature(float(ratio))
            self._signatures[size, ratio, dtype] = str(signature)
        return point_key({**rest, "plan": self._signatures[size, ratio, dtype]})


def undecoded_knobs(record: TrialRecord) -> dict[KnobValue, tuple[str, ...]]:
    """Returns the data knobs that are known to do nothing since this record, by data.cache.

    Where the frame cache has every frame, nobody decodes; where there are no frames, it has no say
    itself either.
    """
    found = record.outcome.effective.get("data_cache")
    if found == "no_frames":
        return dict.fromkeys((False, True), (*_DECODING, "data.cache"))
    return {True: _DECODING} if found == "whole" else {}


def twin_reason(knobs: Knobs, twin: Knobs, twin_id: str) -> str:
    """Returns why a point comes to the same thing as its twin."""
    differ = {name for name in knobs if knobs[name] != twin.get(name)}
    if differ and differ <= {*_DECODING, "data.cache"}:
        return f"no frame is left to decode, so it is the same as {twin_id}"
    return f"the same messages at the same time as {twin_id}"


def gradient_bytes(gradients: Sequence[GradientTensor], comm_dtype: KnobValue) -> int:
    """Returns the bytes that a step sends."""
    return bucket_plan(gradients, 1e6, str(comm_dtype)).num_bytes
