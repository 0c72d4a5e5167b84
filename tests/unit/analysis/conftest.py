"""Records of seeded objectives: what a sweep would have measured, without running one."""

import runpy
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lf_ray.measure.interval import throughput as rate
from lf_ray.measure.interval import visit_interval
from lf_ray.protocol import (
    GateResult,
    KnobValue,
    OutcomeKind,
    Purpose,
    Trace,
    TrialOutcome,
    TrialRecord,
    TrialRequest,
)
from lf_ray.record.history import SweepHistory, read_journal

KNOBS: dict[str, KnobValue] = {"overlap.bucket_size_mb": 25.0, "overlap.ratio": 1.0}
SAMPLES_PER_STEP = 8

MakeRecord = Callable[..., TrialRecord]


@pytest.fixture
def make_record() -> MakeRecord:
    """Returns a maker of records: step times around a throughput, interval from the steps."""

    def make(
        name: str,
        throughput: float | None = None,
        *,
        knobs: Mapping[str, KnobValue] = KNOBS,
        purpose: Purpose = Purpose.SEARCH,
        replicate_of: str | None = None,
        kind: OutcomeKind = OutcomeKind.COMPLETED,
        reason: str = "",
        gate: bool | None = True,
        noise_frac: float = 0.0005,
        num_steps: int = 20,
        seed: int = 0,
        at_s: float = 0.0,
        effective: Mapping[str, KnobValue] | None = None,
        phases_s: Mapping[str, float] | None = None,
        metrics: Mapping[str, float] | None = None,
        memory_bytes: Mapping[str, float] | None = None,
        costs_s: Mapping[str, float] | None = None,
    ) -> TrialRecord:
        rng = np.random.default_rng(seed)
        steps: Sequence[float] = ()
        interval = None
        if throughput is not None:
            noise = 1 + noise_frac * rng.standard_normal(num_steps)
            steps = [float(s) for s in SAMPLES_PER_STEP / throughput * noise]
            interval = visit_interval(steps)
        count = len(steps)
        return TrialRecord(
            request=TrialRequest(
                id=name, knobs=dict(knobs), seed=0, purpose=purpose, replicate_of=replicate_of
            ),
            outcome=TrialOutcome(
                kind=kind,
                reason=reason,
                effective=dict(effective or {}),
                costs_s=dict(costs_s or {}),
                stop_rule="settled" if interval else "error",
            ),
            samples_per_step=SAMPLES_PER_STEP,
            trace=Trace(
                wall_s=tuple(steps),
                loss=tuple(1.0 / (1 + i) for i in range(count)),
                grad_norm=(1.0,) * count,
                wait_s=(0.0,) * count,
            ),
            throughput_samples_per_s=rate(interval, SAMPLES_PER_STEP) if interval else None,
            step_s=interval,
            gate=None
            if gate is None
            else GateResult(
                passed=gate,
                bit_equal=gate,
                worst_frac=0.0 if gate else 3.0,
                reason="" if gate else "bucket 3 differs",
                num_steps=3,
            ),
            phases_s=dict(phases_s or {}),
            metrics=dict(metrics or {}),
            memory_bytes=dict(memory_bytes or {}),
            clock_s={"first_step": at_s},
        )

    return make


MAKER = Path(__file__).resolve().parents[2] / "data" / "make_journal.py"


@pytest.fixture(scope="session")
def seeded_history(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., SweepHistory]:
    """Returns a maker of whole simulated sweeps by case: peaked, flat, data_bound ..."""
    write_sweep = runpy.run_path(str(MAKER))["write_sweep"]
    folder = tmp_path_factory.mktemp("journals")

    @cache
    def history(case: str = "peaked", seed: int = 0) -> SweepHistory:
        path = folder / f"{case}-{seed}" / "journal.jsonl"
        write_sweep(path, case, seed)
        return read_journal(path)

    return history
