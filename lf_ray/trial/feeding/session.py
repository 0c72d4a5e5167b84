"""A worker session that takes batches and trains nothing: what the input path can feed.

The step is a pause of a given length, as on a GPU, whose host has little to do meanwhile. The gate
compares what is in the first batches: workers and prefetch must not change it.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence

from lf_ray.data.loader import Batch, BatchLoader
from lf_ray.machine import process_rss_bytes
from lf_ray.protocol import GateResult, GradientTensor, KnobValue, StepSample, TrialRequest
from lf_ray.runtime.steps.feed import cache_lag
from lf_ray.settings import SweepConfig, with_knobs


class FeedingSession:
    """One rank's loader, timed.

    Args:
        config: `data`, `model` and `batch.per_gpu` are read; `data.step_s` is the pause.

    Attributes:
        lr: none; nothing is trained.
    """

    def __init__(self, config: SweepConfig, rank: int, world_size: int) -> None:
        self._config, self._rank, self._world_size = config, rank, world_size
        self._step_s = config.data.step_s
        self._loader: BatchLoader | None = None
        self._batch_size = config.batch.per_gpu
        self._references: dict[int, list[str]] = {}
        self._seen: list[str] = []
        self._step = 0
        self.lr: Sequence[float] = ()
        self.gradients: tuple[GradientTensor, ...] = ()
        self.costs_s: Mapping[str, float] = {}

    @property
    def samples_per_step(self) -> int:
        """Returns the samples over all ranks that one step takes."""
        return self._batch_size * self._world_size

    def prepare(self, request: TrialRequest) -> Mapping[str, KnobValue]:
        """Sets the data knobs and begins anew at the first sample."""
        asked = with_knobs(self._config, dict(request.knobs))
        self._batch_size = asked.batch.per_gpu
        if self._loader is None:
            self._loader = BatchLoader(
                self._config, self._rank, self._world_size, request.seed, self._batch_size
            )
        self._loader.set(
            workers=asked.data.workers,
            prefetch=asked.data.prefetch,
            batch_size=self._batch_size,
            cache=asked.data.cache,
            decode_threads=asked.data.decode_threads,
        )
        lag = cache_lag(self._loader, request.deadlines.first_batch_s)
        self._loader.seek(0)
        self._loader.take_skipped()
        self._step, self._seen = 0, []
        in_force = self._loader.in_force()
        return {**in_force, "fed_step_s": self._step_s, "settings_mismatch": lag}

    def rehearse(self) -> None:
        """Does nothing: there is no model that might not fit."""

    def capture(self) -> Mapping[str, float]:
        """Returns nothing: there is no step to capture."""
        return {}

    def run(self, num_steps: int) -> list[StepSample]:
        """Takes batches, pausing for a step after each."""
        return [self._one_step() for _ in range(num_steps)]

    def _one_step(self) -> StepSample:
        assert self._loader is not None, "prepare comes first"
        began_s = time.perf_counter()
        batch, wait_s = self._loader.next()
        skipped = self._loader.take_skipped()
        if self._step < self._config.measure.gate_steps:
            self._seen.append(_digest(batch))
        # What the digest took belongs to the pause, so that it is in no step.
        time.sleep(max(0.0, began_s + wait_s + self._step_s - time.perf_counter()))
        wall_s = time.perf_counter() - began_s
        phases_s = {"data_wait": wait_s, "step": wall_s - wait_s}
        self._step += 1
        return StepSample(
            step=self._step - 1,
            rank=self._rank,
            wall_s=wall_s,
            device_s=wall_s,
            loss=0.0,
            grad_norm=0.0,
            wait_s=wait_s,
            phases_s=phases_s,
            num_skipped=skipped.num_samples,
            bad_frames=tuple(sorted(skipped.frames)),
        )

    def gate(self) -> GateResult:
        """Compares the first batches with those of the first visit, bit by bit."""
        same = self._seen == self._references.setdefault(self._batch_size, self._seen)
        return GateResult(
            passed=same,
            bit_equal=same,
            worst_frac=0.0 if same else 2.0,
            reason="" if same else "other samples than in the first visit",
            num_steps=len(self._seen),
        )

    def measure_overlap(self) -> Mapping[str, float]:
        """Returns nothing: nothing is communicated."""
        return {}

    def measure_noise(self, num_steps: int) -> tuple[Sequence[float], Sequence[float], int, int]:
        """Returns nothing: there is no gradient."""
        return (), (), 0, 0

    def memory(self) -> Mapping[str, float]:
        """Returns the resident bytes of this process."""
        return {"peak": float(process_rss_bytes())}

    def news(self) -> list[str]:
        """Returns in words what the loader went through since it was asked last."""
        return self._loader.news() if self._loader is not None else []

    def reset(self) -> Mapping[str, float]:
        """Does nothing: `prepare` begins anew."""
        return {}

    def close(self) -> None:
        """Ends the loader and its workers."""
        if self._loader is not None:
            self._loader.close()
        self._loader = None


def _digest(batch: Batch) -> str:
    digest = hashlib.sha256()
    for name in sorted(batch):
        digest.update(batch[name].numpy().tobytes())
    return digest.hexdigest()
