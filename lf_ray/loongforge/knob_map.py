"""From this project's knobs to LoongForge's flags, with what is then really in force.

Pure. A point that LoongForge can't run is refused in words; a knob that it would silently ignore is
refused likewise, or left out of the space before the search begins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lf_ray.errors import ConfigError, four_parts
from lf_ray.protocol import Knobs, KnobValue
from lf_ray.runtime.update.schedule import lr_schedule
from lf_ray.settings import CommDtype, GraphScope, MemoryBackend, SweepConfig, Switch

TRAINABLE_ELEMENTS = 1_619_968_000
"""What LoongForge's GR00T N1.6 recipe sends: every gradient in fp32, all embodiments among them."""
PAD_LENGTH = 220
_FLAG_BYTES = 4
_WIRE_BYTES = {CommDtype.fp32: 4, CommDtype.bf16: 2}
_RATIOS = (0.0, 1.0)
_SPARE_STEPS = 1000


class Ladder(Protocol):
    """A rule that gives a knob's values once what they hang on is known."""

    def values(self, known: int, /) -> Sequence[float]:
        """Returns bucket sizes in MiB for the bytes sent, or batches for the baseline's."""
        ...


Literal = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Translation:
    """One point as LoongForge runs it.

    Attributes:
        flags: of its command line; paths and length of the run are the session's.
        environment: variables that the flags have no word for.
        effective: what is in force, for the record.
        ready_steps: steps after which warm-up and capture are over.
        advice: what to change where it does not start, "" where nothing is known.
    """

    flags: tuple[str, ...]
    environment: Mapping[str, str]
    effective: Mapping[str, KnobValue]
    samples_per_step: int
    ready_steps: int
    advice: str = ""


def translated(config: SweepConfig, base_global_batch: int, max_steps: int) -> Translation:
    """Returns the flags for a configuration whose knobs are set.

    Args:
        config: workers filled in, the point's knobs laid over it.
        base_global_batch: samples a step that train.lr belongs to, unless the settings say.
        max_steps: that the visit may run.

    Raises:
        ConfigError: LoongForge can't run the point.
    """
    _refuse_unknown(config)
    sync, bucket_mb = _gradient_sync(config)
    graphed = config.graph.scope is GraphScope.step
    global_batch = config.batch.per_gpu * config.batch.accumulation * config.num_workers
    base = config.train.base_global_batch or base_global_batch
    schedule = lr_schedule(config.train, config.batch.lr_rule, global_batch, base)
    flags = {
        "per-device-batch-size": config.batch.per_gpu,
        "gradient-accumulation-steps": config.batch.accumulation,
        "lr-base": schedule.peak,
        "lr-warmup-iters": schedule.warmup_steps,
        "train-iters": max(schedule.num_steps, max_steps + _SPARE_STEPS),
        "num-workers": config.data.workers,
        "cuda-graph-pad-length": PAD_LENGTH,
        "weight-decay": config.train.weight_decay,
        "clip-grad": config.train.clip_norm,
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", f"{value}")]
    return Translation(
        flags=(*_FIXED, *words, *sync),
        environment={"LOONGFORGE_BATCH_PREFETCH_COUNT": str(config.data.prefetch)},
        effective={
            "trainer": "loongforge",
            "global_batch": global_batch,
            "lr_peak": schedule.peak,
            "warmup_steps": schedule.warmup_steps,
            "bucket_size_mb": bucket_mb,
            "ratio": config.overlap.ratio,
            "comm_dtype": config.overlap.comm_dtype.value,
            "graph": config.graph.scope.value,
            "gradient_bytes": TRAINABLE_ELEMENTS * _WIRE_BYTES[config.overlap.comm_dtype],
            "prefetch": config.data.prefetch if graphed else "fixed at 2 without a graph",
        },
        samples_per_step=global_batch,
        ready_steps=config.graph.warmup_steps + 1 if graphed else 1,
        advice=_IN_GRAPH if graphed and config.overlap.ratio == 1 else "",
    )


# Not every torch and NCCL can capture an all-reduce.
_IN_GRAPH = "if the all-reduce can't be captured, overlap.ratio=0 sends after the graph"
_FIXED = (
    *("--model-name", "groot_n1_6", "--trainer-type", "GrootN1d6Trainer"),
    *("--distributed-strategy", "ddp", "--dtype", "bfloat16", "--no-ddp-find-unused-parameters"),
    *("--optimizer", "TorchFusedAdamW", "--no-check-for-nan-in-loss-and-grad"),
    *("--lr-decay-style", "cosine_with_min_lr", "--min-lr", "0.0"),
    # Its workers are spawned unless told otherwise; told so without workers it does not start.
    *("--dataset-format", "lerobot_datasets"),
    *("--log-interval", "1", "--detail-log-interval", "0", "--save-interval", "0"),
)


def _refuse_unknown(config: SweepConfig) -> None:
    rules = [
        (
            "graph.scope",
            config.graph.scope is not GraphScope.step_optimizer,
            "its full_iteration scope is not implemented for GR00T N1.6",
            "Use off or step.",
        ),
        (
            "pipeline.prefix",
            config.pipeline.prefix is Switch.off,
            "it has no pipelining of the frozen prefix",
            "Leave pipeline.prefix=off.",
        ),
        (
            "update.sharded",
            config.update.sharded is Switch.off,
            "its sharded optimizer is another strategy, which this recipe does not use",
            "Leave update.sharded=off.",
        ),
        (
            "memory.backend",
            config.memory.backend is not MemoryBackend.arena,
            "it knows PyTorch's own allocators only",
            "Use caching or expandable.",
        ),
        (
            "overlap.ratio",
            config.overlap.ratio in _RATIOS,
            "its gradients are sent either during backward (1) or after the graph (0)",
            "Use 0 or 1.",
        ),
        (
            "overlap.ratio",
            config.overlap.ratio == 1 or config.graph.scope is not GraphScope.off,
            "without a graph its gradients are always sent during backward (DDP)",
            "Use overlap.ratio=1, or graph.scope=step.",
        ),
    ]
    for name, holds, rule, change in rules:
        if not holds:
            group, key = name.split(".")
            value = getattr(getattr(config, group), key)
            got = f"{name}={getattr(value, 'value', value)}"
            raise ConfigError(four_parts("setting up LoongForge", rule, got, change))


def _gradient_sync(config: SweepConfig) -> tuple[tuple[str, ...], float]:
    """Returns the flags of the gradient exchange, and the bucket size in MiB as then sent.

    Both of LoongForge's sizes count gradients at 4 bytes an element, whatever is sent.
    """
    dtype = config.overlap.comm_dtype
    shrink = _WIRE_BYTES[dtype] / _FLAG_BYTES
    counted_mb = config.overlap.bucket_size_mb / shrink
    graph: tuple[str, ...] = ("--cuda-graph-impl", "none")
    if config.graph.scope is GraphScope.step:
        warm = str(config.graph.warmup_steps)
        graph = ("--cuda-graph-impl", "local", "--cuda-graph-scope", "per_microbatch")
        graph = (*graph, "--cuda-graph-warmup-steps", warm)
    if config.overlap.ratio == 0:
        return (
            *graph,
            "--no-cuda-graph-ddp-sync-in-graph",
            *("--cuda-graph-grad-sync-bucket-mb", f"{counted_mb:g}"),
            *("--cuda-graph-grad-sync-impl", "coalesced"),
            *("--cuda-graph-grad-sync-dtype", dtype.value),
        ), config.overlap.bucket_size_mb
    cap_mb = max(1, round(counted_mb))
    hook = ("--ddp-comm-hook", "bf16_compress_hook") if dtype is CommDtype.bf16 else ()
    in_graph = config.graph.scope is GraphScope.step
    inside = ("--cuda-graph-ddp-sync-in-graph",) if in_graph else ()
    return (*graph, *inside, "--ddp-bucket-cap-mb", str(cap_mb), *hook), cap_mb * shrink


def offered(literal: Literal, baseline: Knobs) -> Literal:
    """Returns the part of a search space that LoongForge has.

    The literal has been checked as a space of this project. Ladders become values, values that
    LoongForge can't run go, and so do knobs that would do nothing.

    Raises:
        ConfigError: nothing is left to vary.
    """
    if not literal:
        return literal
    scopes = literal.get("graph.scope", [baseline["graph.scope"]])
    graphed = any(scope == GraphScope.step.value for scope in scopes)
    kept: dict[str, Any] = {}
    for name, values in literal.items():
        left = _kept_values(name, values, baseline, graphed)
        if left:
            kept[name] = left
    if not kept or not any(len(values) > 1 for values in kept.values()):
        raise ConfigError(
            four_parts(
                "reading the search space for LoongForge",
                "it must have a knob with two values or more that LoongForge knows",
                f"{', '.join(literal)} around graph.scope={baseline['graph.scope']}",
                "Run another sweep, or another baseline (graph.scope=step).",
            )
        )
    return kept


_NOT_ITS_OWN = ("memory.block_sizes", "data.cache", "data.decode_threads")
"""Knobs of parts that LoongForge has not got."""


def _kept_values(
    name: str, values: Sequence[KnobValue] | Ladder, baseline: Knobs, graphed: bool
) -> list[KnobValue]:
    if name == "overlap.bucket_size_mb":
        return _bucket_sizes(values, baseline)
    if not isinstance(values, Sequence):
        values = values.values(int(baseline[name]))
    if name == "overlap.ratio":
        lowest = 0.0 if graphed else 1.0
        return [value for value in _RATIOS if value >= lowest and value in values]
    refused = {
        "graph.scope": (GraphScope.step_optimizer.value,),
        "pipeline.prefix": (Switch.on.value,),
        "update.sharded": (Switch.on.value,),
        "memory.backend": (MemoryBackend.arena.value,),
    }.get(name, ())
    inert = name in _NOT_ITS_OWN or (name == "data.prefetch" and not graphed)
    return [] if inert else [value for value in values if value not in refused]


def _bucket_sizes(values: Sequence[KnobValue] | Ladder, baseline: Knobs) -> list[KnobValue]:
    if isinstance(values, Sequence):
        return list(values)
    dtype = CommDtype(baseline["overlap.comm_dtype"])
    sizes = {*values.values(TRAINABLE_ELEMENTS * _WIRE_BYTES[dtype])}
    return [*sorted({*sizes, float(baseline["overlap.bucket_size_mb"])})]
