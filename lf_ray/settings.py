"""The typed settings of a sweep or a training run: every key that a user may set.

Plain data. `lf_ray.compose` fills it from `conf/` and the command line; below that only these
dataclasses are passed around. A knob's default is what plain DDP does; a setting's default is the
recommended value. Names and meanings: README, "Settings".
"""

import dataclasses
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from lf_ray.errors import ConfigError, four_parts
from lf_ray.protocol import KNOB_NAMES, KnobValue


class CommDtype(Enum):
    """What gradients are sent as."""

    fp32 = "fp32"
    bf16 = "bf16"


class GraphScope(Enum):
    """How much of the step is one CUDA graph."""

    off = "off"
    step = "step"
    step_optimizer = "step+optimizer"


class Switch(Enum):
    """Off or on, as a word, so that YAML and the command line agree."""

    off = "off"
    on = "on"


class MemoryBackend(Enum):
    """Who hands out device memory."""

    caching = "caching"
    expandable = "expandable"
    arena = "arena"


class LrRule(Enum):
    """How learning rate and warm-up follow the global batch."""

    linear = "linear"
    sqrt = "sqrt"
    none = "none"


class MeasureLevel(Enum):
    """How tight an interval a visit aims for."""

    smoke = "smoke"
    standard = "standard"
    publish = "publish"


class SamplerKind(Enum):
    """Who proposes the points after baseline and article setting."""

    tpe = "tpe"
    random = "random"
    grid = "grid"


class Trainer(Enum):
    """Whose training step runs."""

    native = "native"
    loongforge = "loongforge"


@dataclass(kw_only=True, slots=True)
class ModelSettings:
    """Which model, where its weights are, which parts learn.

    Attributes:
        size: "nano" (CPU) or "3b" (the public architecture).
        weights: folder of a checkpoint in the public layout; None trains from random weights.
        tokenizer: folder of the tokenizer; None takes the built-in one of nano.
        image_px: side of the square view that the vision tower sees.
        state_dropout_prob: chance that a sample's state is replaced by the mask token.
        fused_kernels: on a GPU, run the prefix and the blocks that learn on fewer kernels.
        compile_blocks: compile those blocks, once a batch size (tens of seconds the first time).
    """

    size: str = "nano"
    weights: str | None = None
    tokenizer: str | None = None
    image_px: int = 56
    tune_llm: bool = False
    tune_visual: bool = False
    tune_top_llm_layers: int = 4
    tune_projector: bool = True
    tune_diffusion_model: bool = True
    tune_vlln: bool = True
    state_dropout_prob: float = 0.0
    fused_kernels: bool = True
    compile_blocks: bool = True


@dataclass(kw_only=True, slots=True)
class ClusterSettings:
    """Where the workers run.

    Attributes:
        kind: auto | cpu | one_gpu | one_node_8gpu | ray | sim_8xa100 | sim_2xh200 | ...
        workers: ranks in a group; None takes one a GPU, or two on a CPU.
        address: of a running Ray cluster (kind ray); None starts a local one.
        device: "cpu" or "cuda"; filled in by compose from kind and machine.
    """

    kind: str = "auto"
    workers: int | None = None
    address: str | None = None
    device: str = "cpu"


@dataclass(kw_only=True, slots=True)
class DataSettings:
    """What is trained on and how it is fed.

    Attributes:
        source: "sample" (rendered by lf-ray), "lerobot" (data.path) or "synthetic" (no video).
        path: LeRobot folder, or a list of them.
        weights: sampling weight of each path; None weighs by frames.
        embodiment: embodiment tag; None takes the data set's own, else new_embodiment.
        modality: modality.json to use instead of the data set's own.
        cache_dir: where rendered samples, statistics and frames are kept.
        workers: decoding processes of each rank; 0 decodes in the training process.
        prefetch: batches that each rank keeps ready.
        cache: keep decoded frames on disk (memory-mapped, shared by ranks and trials).
        cache_gib: upper bound of the frame cache; the least recently used set goes first.
        decode_threads: threads of each video decoder.
        order: of samples: "shuffle", "block" (short stretches of episodes, for sets whose frames
            don't fit the cache), or "auto", which asks whether they fit.
        skip_corrupt: name, count and skip an undecodable frame instead of ending the trial.
        holdout_episodes: last episodes of each data set that are not trained on, but on which the
            action error is measured at the end; None leaves none out of a sweep, and a twentieth
            (at least one of five or more) out of a training.
        step_s: length of the step that sweeps/data.py feeds; nothing else reads it.
    """

    source: str = "sample"
    path: Any = None
    weights: list[float] | None = None
    embodiment: str | None = None
    modality: str | None = None
    cache_dir: str = "~/.cache/lf_ray"
    workers: int = 0
    prefetch: int = 2
    cache: bool = True
    cache_gib: float = 64.0
    decode_threads: int = 1
    order: str = "auto"
    skip_corrupt: bool = False
    holdout_episodes: int | None = None
    step_s: float = 0.1

    @property
    def paths(self) -> list[str]:
        """Returns the data set folders, none where the source makes its own."""
        if self.path is None:
            return []
        return [self.path] if isinstance(self.path, str) else [str(item) for item in self.path]


@dataclass(kw_only=True, slots=True)
class MeasureSettings:
    """How long a visit measures.

    Attributes:
        target_frac: half-width of the 95 % interval, as a share, at which a visit stops.
        min_steps: steady steps that every visit measures.
        max_steps: cap on the steps of a visit.
        max_s: cap on the measured wall time of a visit; up to four times that where its steps are
            so long that it would hold fewer than a reading takes.
        gate_steps: first steps of every trial that the numerics gate compares.
        winner_steps: steps that a winner runs before it may be called best.
        converge_steps: steps that every training run of a convergence check has at least.
        converge_seeds: of the baseline in such a check.
        converge_s: what all runs of a check may take; shorter ones are no check, and say so.
    """

    level: MeasureLevel = MeasureLevel.smoke
    target_frac: float = 0.05
    min_steps: int = 20
    max_steps: int = 40
    max_s: float = 20.0
    gate_steps: int = 3
    winner_steps: int = 60
    converge_steps: int = 500
    converge_seeds: int = 3
    converge_s: float = 600.0


@dataclass(kw_only=True, slots=True)
class TrainSettings:
    """The optimisation recipe (GR00T N1.6 fine-tuning), and the length of a training run.

    Attributes:
        lr: AdamW's peak rate at `base_global_batch` samples a step.
        base_global_batch: the global batch that lr and warm-up belong to; None takes the
            baseline's own.
        warmup_ratio: share of the steps with a rising rate.
        max_samples: length in samples; steps follow from the batch. Exclusive with max_steps.
        save_every: steps between checkpoints; 0 saves at the end only, None takes a tenth of the
            training, 1000 at most.
        keep: checkpoints that stay on disk.
        max_restarts: how often a dead or hung rank is answered by going on from the last
            checkpoint.
        accept_stale: train with a configuration found on another model, device or world size.
    """

    lr: float = 1e-4
    base_global_batch: int | None = None
    weight_decay: float = 1e-5
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    clip_norm: float = 1.0
    warmup_ratio: float = 0.05
    max_steps: int | None = None
    max_samples: int | None = None
    save_every: int | None = None
    keep: int = 2
    max_restarts: int = 3
    accept_stale: bool = False


@dataclass(kw_only=True, slots=True)
class BatchSettings:
    """Knobs: samples a rank and micro-batch, micro-batches a step, the learning-rate rule."""

    per_gpu: int = 4
    accumulation: int = 1
    lr_rule: LrRule = LrRule.none


@dataclass(kw_only=True, slots=True)
class OverlapSettings:
    """Knobs: bucket size in MiB as sent, share of bytes sent during backward, dtype on the wire."""

    bucket_size_mb: float = 25.0
    ratio: float = 1.0
    comm_dtype: CommDtype = CommDtype.fp32


@dataclass(kw_only=True, slots=True)
class PipelineSettings:
    """Knob: run the frozen prefix of the next batch beside this step's update."""

    prefix: Switch = Switch.off


SHARING_RANKS = (1, 2, 4, 8, 16, 32)
"""Numbers of ranks that share every bucket evenly: a bucket is a multiple of 32 elements long."""


@dataclass(kw_only=True, slots=True)
class UpdateSettings:
    """Knob: each rank updates its own part of every bucket, and sends the others the weights.

    Acts where the step is captured with its update, between ranks whose number divides 32.
    """

    sharded: Switch = Switch.off


@dataclass(kw_only=True, slots=True)
class GraphSettings:
    """Knob: how much of the step is captured."""

    scope: GraphScope = GraphScope.off
    warmup_steps: int = 3


@dataclass(kw_only=True, slots=True)
class MemorySettings:
    """Knobs: allocator backend and the arena's ladder of block sizes in GiB ("1-2-4-8").

    An arena without a ladder, or with "analysed", takes the one that its first step asks for.

    Attributes:
        total_size_gb: most that an arena's blocks may take, in GiB.
        limit_gb: most that the allocator of each rank may reserve on its GPU, in GiB, whatever the
            backend: to share a GPU, or to tune for one with less memory. What is beyond it does
            not fit.
    """

    backend: MemoryBackend = MemoryBackend.caching
    block_sizes: str = "none"
    total_size_gb: float | None = None
    limit_gb: float | None = None


@dataclass(kw_only=True, slots=True)
class NcclSettings:
    """NCCL choices that a user may vary; in no space by default (measured as monotone)."""

    algo: str = "default"
    max_ctas: int = 0


@dataclass(kw_only=True, slots=True)
class OutputSettings:
    """Where result folders go: <dir>/<sweep>/<id>/."""

    dir: str = "outputs"


@dataclass(kw_only=True, slots=True)
class TrackingSettings:
    """The MLflow tracking URI: sqlite:///file, http(s)://server."""

    uri: str = "sqlite:///mlflow.db"


@dataclass(kw_only=True, slots=True)
class SweepSettings:
    """How long a sweep goes on and how it proposes.

    Attributes:
        trials: started trials, baseline included; exact when given, else stop rules decide.
        minutes: wall-clock cap; the answer is then drawn from what was measured.
        delta: what counts as equally fast, as a share (knee, near-ties, racing).
        round_size: suggestions drawn at once and handed out cheapest change first; what one of
            them teaches is not known to the others.
        suggest: try early what a simulated cluster like this one finds best; None: on GPUs that
            there is a profile for. Never asked where the sweep itself runs on a simulated one.
        new_lineage: resume although space, model, data or code changed, as a new sweep.
    """

    trials: int | None = None
    minutes: float | None = None
    seed: int = 0
    delta: float = 0.02
    sampler: SamplerKind = SamplerKind.tpe
    round_size: int = 4
    suggest: bool | None = None
    new_lineage: bool = False


@dataclass(kw_only=True, slots=True)
class LoongForgeSettings:
    """A LoongForge checkout and the interpreter that runs it."""

    path: str | None = None
    python: str | None = None


@dataclass(kw_only=True, slots=True)
class SweepConfig:
    """Everything a sweep or a training run is made of."""

    name: str = "overlap"
    trainer: Trainer = Trainer.native
    model: ModelSettings = field(default_factory=ModelSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    data: DataSettings = field(default_factory=DataSettings)
    measure: MeasureSettings = field(default_factory=MeasureSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    batch: BatchSettings = field(default_factory=BatchSettings)
    overlap: OverlapSettings = field(default_factory=OverlapSettings)
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    update: UpdateSettings = field(default_factory=UpdateSettings)
    graph: GraphSettings = field(default_factory=GraphSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    nccl: NcclSettings = field(default_factory=NcclSettings)
    output: OutputSettings = field(default_factory=OutputSettings)
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    sweep: SweepSettings = field(default_factory=SweepSettings)
    loongforge: LoongForgeSettings = field(default_factory=LoongForgeSettings)
    resume: str | None = None

    @property
    def num_workers(self) -> int:
        """Returns the ranks of one group; compose has filled it in."""
        assert self.cluster.workers is not None
        return self.cluster.workers


def knobs_of(config: SweepConfig) -> dict[str, KnobValue]:
    """Returns every knob of the configuration by its dotted name, enums as their words."""
    return {name: _plain(_get(config, name)) for name in KNOB_NAMES}


def with_knobs(config: SweepConfig, knobs: dict[str, KnobValue]) -> SweepConfig:
    """Returns a copy of the configuration with the knobs set.

    Raises:
        ConfigError: a name is no knob, or a value is none of its enum's words.
    """
    groups: dict[str, dict[str, Any]] = {}
    for name, value in knobs.items():
        if name not in KNOB_NAMES:
            raise ConfigError(
                four_parts(
                    "setting knobs",
                    f"knobs are {', '.join(KNOB_NAMES)}",
                    repr(name),
                    "Use one of these names.",
                )
            )
        group, key = name.split(".")
        old = _get(config, name)
        groups.setdefault(group, {})[key] = _typed(name, old, value)
    replaced = {
        group: dataclasses.replace(getattr(config, group), **values)
        for group, values in groups.items()
    }
    return dataclasses.replace(config, **replaced)


def with_length(config: SweepConfig, samples: int | None) -> SweepConfig:
    """Returns a copy whose schedule is laid out for so many samples; None leaves it as it is."""
    if samples is None:
        return config
    train = dataclasses.replace(config.train, max_samples=samples, max_steps=None)
    return dataclasses.replace(config, train=train)


def plain(value: Any) -> Any:
    """Returns settings as plain JSON values: dataclasses as dicts, enums as their words."""
    if dataclasses.is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return _plain(value)


def _get(config: SweepConfig, name: str) -> Any:
    group, key = name.split(".")
    return getattr(getattr(config, group), key)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _typed(name: str, old: Any, value: KnobValue) -> Any:
    if not isinstance(old, Enum):
        return type(old)(value)
    try:
        return type(old)(value)
    except ValueError as error:
        words = ", ".join(str(item.value) for item in type(old))
        raise ConfigError(
            four_parts(
                "setting knobs", f"{name} is one of {words}", repr(value), "Use one of them."
            )
        ) from error
