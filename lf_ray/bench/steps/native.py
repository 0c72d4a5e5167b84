"""Our own step and plain DDP by batch and mode: what each rank runs, and the rows of all of them.

Batches are made in memory. A mode's knobs, a ratio and a bucket size make one row; rounds visit all
rows of a model again, in turn, so that a drift of the machine meets them alike.
"""

import gc
import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

import torch

from lf_ray.bench.steps.kernel_classes import Kernels, profiled
from lf_ray.bench.steps.plain_ddp import PlainDdp
from lf_ray.bench.steps.rows import RankRow, summary
from lf_ray.bench.steps.settling import settled_times
from lf_ray.protocol import KnobValue, Purpose, StepSample, TrialRequest
from lf_ray.runtime.groot import sized
from lf_ray.runtime.kernels import fuse_head, fuse_prefix
from lf_ray.runtime.session import Session
from lf_ray.settings import SHARING_RANKS, SweepConfig, knobs_of
from lf_ray.testing.ranks import RankPlace, RankPool
from lf_ray.testing.synthetic import SyntheticParts
from models.groot_n1_6.flops import PromptShape, flops_per_sample, total

WHOLE: dict[str, KnobValue] = {"graph.scope": "step+optimizer"}
PIPELINED: dict[str, KnobValue] = {**WHOLE, "pipeline.prefix": "on"}
KNOBS: dict[str, dict[str, KnobValue]] = {
    "eager": {},
    "graph": WHOLE,
    "fused": WHOLE,
    "compiled": WHOLE,
    "pipelined": PIPELINED,
}
MODES = ("ddp", *KNOBS)
SHARDED = "sharded"
# Dense bf16 rate that an 8192^3 product reached here, and bytes a second that a copy moved
# (docs/log.md); other devices have no floor.
MATRIX_FLOPS_PER_S = {"NVIDIA H200": 790e12}
MEMORY_BYTES_PER_S = {"NVIDIA H200": 4.25e12}
# Moments and masters in fp32 are read and written, bf16 weights written; gradients are read twice.
_STATE_BYTES, _GRADIENT_READS = 26, 2
CASE_DEADLINE_S = 1200.0
_BLOCK_STEPS = 4


@dataclass(frozen=True)
class Case:
    """What one row runs: batch a rank, mode, and how gradients and updates travel."""

    batch_size: int
    mode: str
    comm: str
    ratio: float
    bucket_size_mb: float
    update: str


@dataclass(frozen=True)
class StepBench:
    """What is measured; travels to the ranks.

    Attributes:
        ratios: one or more shares sent during backward; each makes a row.
        bucket_sizes_mb: MiB as sent; each makes a row.
        updates: whole (by every rank) or sharded; each makes a row.
        rounds: how often all rows of a model are visited, in turn.
        profile: count launches and split the time by kernel class after the timed steps.
        algo: of NCCL: default, ring or tree; the ranks are started with it.
    """

    size: str
    image_px: int
    batches: tuple[int, ...]
    modes: tuple[str, ...]
    num_steps: int
    num_ranks: int
    comm_dtypes: tuple[str, ...]
    bucket_sizes_mb: tuple[float, ...] = (256.0,)
    ratios: tuple[float, ...] = (1.0,)
    updates: tuple[str, ...] = ("whole",)
    rounds: int = 1
    profile: bool = False
    algo: str = "default"

    def config(self) -> SweepConfig:
        """Returns the settings of a session that neither gates nor searches."""
        config = SweepConfig()
        config.model.size, config.model.image_px = self.size, self.image_px
        config.cluster.workers = self.num_ranks
        config.measure.gate_steps = 0
        return config

    def request(self, case: Case) -> TrialRequest:
        """Returns the request of one row."""
        knobs = {
            **knobs_of(self.config()),
            "batch.per_gpu": case.batch_size,
            "overlap.comm_dtype": case.comm,
            "overlap.bucket_size_mb": case.bucket_size_mb,
            "overlap.ratio": case.ratio,
            "update.sharded": "on" if case.update == SHARDED else "off",
            **KNOBS[case.mode],
        }
        name = "-".join(str(value) for value in astuple(case))
        return TrialRequest(id=name, knobs=knobs, seed=0, purpose=Purpose.SEARCH)

    def label(self, case: Case) -> str:
        """Returns how a row names its mode: with what else tells it from other rows."""
        parts = [case.mode]
        parts += [f"r{case.ratio:g}"] if len(self.ratios) > 1 else []
        parts += [f"b{case.bucket_size_mb:g}"] if len(self.bucket_sizes_mb) > 1 else []
        parts += [case.update] if self.updates != ("whole",) else []
        parts += [self.algo] if self.algo != "default" else []
        return " ".join(parts)

    def cases(self, modes: Sequence[str]) -> Iterator[Case]:
        """Yields what each row of these modes runs, rounds in turn.

        A sharded update where it can't act would be another visit of the whole one.
        """
        sends = self.comm_dtypes, self.ratios, self.bucket_sizes_mb, self.updates
        for _ in range(self.rounds):
            for case in itertools.starmap(Case, itertools.product(self.batches, modes, *sends)):
                if case.update != SHARDED or self.can_share(case.mode):
                    yield case

    def can_share(self, mode: str) -> bool:
        """Returns whether ranks can share a mode's update."""
        captured = KNOBS[mode].get("graph.scope") == "step+optimizer"
        return captured and self.num_ranks > 1 and self.num_ranks in SHARING_RANKS

    def floors_s(self, batch_size: int) -> dict[str, float]:
        """Returns the least time of each kernel class that has a floor; none where unknown."""
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        if name not in MATRIX_FLOPS_PER_S or self.size != "3b":
            return {}
        groot = sized(self.config().model)
        prompt = PromptShape(view_tokens=groot.square_view_tokens, length=220, causal_frac=0.5)
        flops = total(flops_per_sample(groot, prompt))
        return {"matrix": (flops.forward + flops.backward) * batch_size / MATRIX_FLOPS_PER_S[name]}


def update_floor_s(num_elements: int, comm: str) -> float:
    """Returns the least time of the update over so many parameters, 0 where it is unknown."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    rate = MEMORY_BYTES_PER_S.get(name)
    gradient_bytes = 2 if comm == "bf16" else 4
    num_bytes = num_elements * (_STATE_BYTES + _GRADIENT_READS * gradient_bytes)
    return num_bytes / rate if rate else 0.0


class FusedParts(SyntheticParts):
    """The real model with prefix and head fused where the device can."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self._mode = mode

    def model(self, config: SweepConfig, device: torch.device) -> Any:
        """Returns the model as the mode wants it."""
        model = super().model(config, device)
        if self._mode in ("fused", "compiled", "pipelined"):
            fuse_prefix(model, compile_views=self._mode != "fused")
            fuse_head(model, compile_blocks=self._mode != "fused")
        return model


def ddp_rows(place: RankPlace, bench: StepBench) -> list[dict[str, Any]]:
    """Returns the rows of plain data-parallel training on this rank, until they have settled."""
    rows = []
    for batch_size in bench.batches:
        began_s = time.perf_counter()
        try:
            trainer = PlainDdp(place, bench.config(), batch_size)
            times_s = settled_times(trainer.times_s, bench.num_steps, place)
            loss = float(trainer.step(len(times_s)))
        except torch.OutOfMemoryError:
            rows.append(RankRow(batch_size, "ddp", "fp32", [], error="out of memory"))
            continue
        peak = float(torch.cuda.max_memory_allocated()) if place.device != "cpu" else 0.0
        start_s = time.perf_counter() - began_s - sum(times_s)
        rows.append(RankRow(batch_size, "ddp", "fp32", times_s, loss, peak, {"start": start_s}))
        del trainer
        _give_back()
    return [asdict(row) for row in rows]


def session_rows(
    place: RankPlace, bench: StepBench, modes: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Returns the rows of modes that share a model, on this rank."""
    lone = place.world_size == 1
    group = None if lone else place.work_group
    session = Session(
        bench.config(),
        place.rank,
        place.world_size,
        place.device,
        group,
        None if lone else place.control_group,
        FusedParts(modes[0]),
    )
    rows = []
    for case in bench.cases(modes):
        head = (case.batch_size, bench.label(case), case.comm)
        try:
            rows.append(_measured(session, head, bench.request(case), bench))
        except torch.OutOfMemoryError:
            rows.append(RankRow(*head, [], error="out of memory"))
        session.reset()
    session.close()
    _give_back()
    return [asdict(row) for row in rows]


def _measured(
    session: Session, head: tuple[int, str, str], request: TrialRequest, bench: StepBench
) -> RankRow:
    began_s = time.perf_counter()
    effective = session.prepare(request)
    session.rehearse()
    session.run(2)
    captured = session.capture()
    costs_s = {
        "start": time.perf_counter() - began_s,
        "compile": session.costs_s.get("compile", 0.0),
        "capture": captured.get("capture_s", 0.0),
    }
    samples: list[StepSample] = []
    while len(samples) < bench.num_steps:
        # A captured step knows its phases once a block; so several blocks.
        samples += session.run(min(_BLOCK_STEPS, bench.num_steps - len(samples)))
    memory = session.memory()
    times_s = [sample.wall_s for sample in samples]
    kernels = profiled(session.run) if bench.profile else Kernels()
    num_elements = sum(item.num_elements for item in session.gradients)
    num_sharing = bench.num_ranks if effective["update"] == SHARDED else 1
    return RankRow(
        *head,
        times_s,
        samples[-1].loss,
        memory.get("peak_reserved", memory["peak"]),
        costs_s,
        _mean_phases_s(samples),
        graph_nodes=captured.get("graph_nodes", 0.0),
        launches=kernels.launches,
        classes_s=kernels.classes_s,
        update_floor_s=update_floor_s(num_elements, head[2]) / num_sharing,
    )


def run_bench(bench: StepBench) -> list[dict[str, Any]]:
    """Measures every mode in ranks of its own process group and returns the rows."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    pool = RankPool(bench.num_ranks, backend, nccl_environment(bench.algo))
    rows = []
    try:
        for modes in _sharing(bench.modes):
            case, rest = (ddp_rows, ()) if modes == ("ddp",) else (session_rows, (modes,))
            by_rank = pool.run(case, bench, *rest, deadline_s=CASE_DEADLINE_S)
            for found in zip(*by_rank):
                ranks = [RankRow(**row) for row in found]
                rows.append(summary(ranks, bench.floors_s(ranks[0].batch)))
    finally:
        pool.close()
    return rows


def nccl_environment(algo: str) -> dict[str, str]:
    """Returns the variables that make NCCL take an algorithm; it reads them once a process."""
    return {} if algo == "default" else {"NCCL_ALGO": algo.capitalize()}


def _mean_phases_s(samples: Sequence[StepSample]) -> Mapping[str, float]:
    names = {name for sample in samples for name in sample.phases_s}
    return {
        name: statistics.fmean(sample.phases_s.get(name, 0.0) for sample in samples)
        for name in sorted(names)
    }


def _give_back() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _sharing(modes: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns the modes in groups that can share a model."""
    kinds = (("ddp",), ("eager", "graph"), ("fused",), ("compiled", "pipelined"))
    groups = [tuple(mode for mode in kind if mode in modes) for kind in kinds]
    return [group for group in groups if group]
