"""The numerics gate's verdict: pure comparison of digests, no communication, no torch.

Bounds. Up to two ranks fp32 sums do not depend on the buckets: equal bits. With more ranks the
order of summation moves with an element's place in its message: first step element by element
within (ranks - 1) * 2^-23 of the summed magnitudes. bf16 on the wire: first step within a relative
L2 of 2^-8 per bucket up to four ranks; every hop rounds again, so the bound grows with the root of
the ranks beyond (measured on sound gloo runs of nano: 0.68, 0.83 and 1.05 of 2^-8 at 2, 4 and 8
ranks). Later steps start from weights that already differ by that much, so where
bits may differ they are held to a share of the size of what is compared. The loss of the first
step is computed before anything is sent: equal bits, always.

Shape suffix: P tensors.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lf_ray.protocol import GateResult
from lf_ray.runtime.bucket_plan import BucketPlan
from lf_ray.runtime.numerics.digest import Floats, StepDigest
from lf_ray.runtime.numerics.reference import FirstStepDifference, Reference

BF16_L2_BOUND = 2.0**-8
_BF16_BOUND_RANKS = 4
# A reference that differs from itself has a spread; a trial may be this many times further away.
_SPREADS = 3.0
# How far later steps may be off where bits may differ, by what travels on the wire.
_LATER_FRAC = {"fp32": 2.0**-10, "bf16": 2.0**-5}


@dataclass(frozen=True, slots=True)
class RankView:
    """What one rank knows of a trial's first steps.

    Attributes:
        plan_words: what the same buckets gave in an earlier trial, a word a step; none yet if
            empty.
    """

    rank: int
    own: tuple[StepDigest, ...]
    reference: tuple[StepDigest, ...]
    spread_frac: float
    first_step: FirstStepDifference | None
    plan_words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Finding:
    frac: float
    reason: str


def needs_bits_only(comm_dtype: str, world_size: int, reference: Reference) -> bool:
    """Returns whether equal bits are the whole test, so that sums need not be computed."""
    return comm_dtype == "fp32" and world_size <= 2 and reference.spread_frac == 0.0


def gate_result(views: Sequence[RankView], plan: BucketPlan, names: Sequence[str]) -> GateResult:
    """Returns the verdict over all ranks; the same on every rank that is given the same views."""
    world_size = len(views)
    num_steps = min(len(view.own) for view in views)
    findings = [_Finding(0.0, "")]
    for step in range(num_steps):
        # In this order the first finding names the cause: a rank's own loss before the gradient
        # that carries it to all ranks.
        findings += [item for view in views for item in _sane_loss(view, step)]
        findings += [item for view in views for item in _sane_norm(view, step)]
        findings += _agreement(views, step)
        for view in views:
            findings += _compare_step(view, step, plan.comm_dtype, world_size, names)
    if any(view.first_step is not None for view in views):
        findings += _first_step(views, plan, names, world_size)
    worst = max(findings, key=lambda finding: finding.frac)
    passed = num_steps > 0 and worst.frac <= 1.0
    reason = "" if passed else worst.reason or "no step was run"
    return GateResult(
        passed=passed,
        bit_equal=all(
            view.own[step].same_bits(view.reference[step])
            for view in views
            for step in range(num_steps)
        ),
        worst_frac=worst.frac,
        reason=reason,
        num_steps=num_steps,
    )


def _agreement(views: Sequence[RankView], step: int) -> list[_Finding]:
    words = [view.own[step].shared_word for view in views]
    odd = [view.rank for view, word in zip(views, words) if word != words[0]]
    if odd:
        return [_Finding(math.inf, f"step {step}: ranks {odd} hold other gradients than rank 0")]
    return []


def _compare_step(
    view: RankView, step: int, comm_dtype: str, world_size: int, names: Sequence[str]
) -> list[_Finding]:
    own, ref = view.own[step], view.reference[step]
    where = f"step {step}, rank {view.rank}"
    findings = []
    if view.plan_words and view.plan_words[step] != own.shared_word and view.spread_frac == 0.0:
        findings.append(
            _Finding(math.inf, f"{where}: the same buckets gave another gradient in another trial")
        )
    if own.same_bits(ref):
        return findings
    if view.spread_frac == 0.0:
        if step == 0 and own.loss != ref.loss:
            findings.append(_Finding(math.inf, f"{where}: loss {own.loss!r} is not {ref.loss!r}"))
        if comm_dtype == "fp32" and world_size <= 2:
            findings.append(_Finding(math.inf, f"{where}: {_first_difference(own, ref, names)}"))
            return findings
    later_frac = _LATER_FRAC[comm_dtype] if comm_dtype == "bf16" or world_size > 2 else 0.0
    allowed = max(_SPREADS * view.spread_frac, later_frac)
    if step > 0 or view.spread_frac > 0.0:
        findings += _near(own, ref, allowed, names, where)
    return findings


def _sane_loss(view: RankView, step: int) -> list[_Finding]:
    loss = view.own[step].loss
    if math.isfinite(loss) and loss != 0.0:
        return []
    return [_Finding(math.inf, f"step {step}, rank {view.rank}: loss is {loss}")]


def _sane_norm(view: RankView, step: int) -> list[_Finding]:
    grad_norm = view.own[step].grad_norm
    if math.isfinite(grad_norm):
        return []
    return [_Finding(math.inf, f"step {step}, rank {view.rank}: grad norm is {grad_norm}")]


def _first_difference(own: StepDigest, ref: StepDigest, names: Sequence[str]) -> str:
    if own.loss != ref.loss:
        return f"loss {own.loss!r} is not {ref.loss!r}"
    (differs,) = np.nonzero(own.checksums_P != ref.checksums_P)
    if len(differs):
        return f"{len(differs)} gradients have other bits, first {names[differs[0]]}"
    return f"grad norm {own.grad_norm!r} is not {ref.grad_norm!r}"


def _near(
    own: StepDigest, ref: StepDigest, allowed: float, names: Sequence[str], where: str
) -> list[_Finding]:
    findings = [
        _scalar(own.loss, ref.loss, allowed, f"{where}: loss"),
        _scalar(own.grad_norm, ref.grad_norm, allowed, f"{where}: grad norm"),
    ]
    if own.abs_sums_P is not None and ref.abs_sums_P is not None:
        # Gradients that are rounding noise (a bias before a softmax) may move freely below the
        # average size of a gradient.
        floor = ref.abs_sums_P.mean()
        frac_P = np.abs(own.abs_sums_P - ref.abs_sums_P) / (allowed * (ref.abs_sums_P + floor))
        worst = int(np.argmax(frac_P))
        findings.append(
            _Finding(float(frac_P[worst]), f"{where}: size of the gradient of {names[worst]}")
        )
    return findings


def _scalar(own: float, ref: float, allowed: float, what: str) -> _Finding:
    frac = abs(own - ref) / (allowed * abs(ref)) if ref else math.inf
    return _Finding(frac, f"{what} {own!r} is too far from {ref!r}")


def _first_step(
    views: Sequence[RankView], plan: BucketPlan, names: Sequence[str], world_size: int
) -> list[_Finding]:
    differences = [view.first_step for view in views if view.first_step is not None]
    if plan.comm_dtype == "fp32":
        if world_size <= 2:
            return []
        worst = max(difference.worst_frac for difference in differences)
        return [_Finding(worst, "step 0: an element differs by more than its summation order")]
    diff_sq_P: Floats = np.sum([difference.diff_sq_P for difference in differences], axis=0)
    ref_sq_P: Floats = np.sum([difference.ref_sq_P for difference in differences], axis=0)
    bound = BF16_L2_BOUND * math.sqrt(max(1.0, world_size / _BF16_BOUND_RANKS))
    return _bucket_errors(plan, dict(zip(names, diff_sq_P)), dict(zip(names, ref_sq_P)), bound)


def _bucket_errors(
    plan: BucketPlan, diff_sq: Mapping[str, float], ref_sq: Mapping[str, float], bound: float
) -> list[_Finding]:
    findings = []
    for number, bucket in enumerate(plan.buckets):
        diff = math.sqrt(sum(diff_sq[name] for name in bucket.names))
        size = math.sqrt(sum(ref_sq[name] for name in bucket.names))
        error = diff / size if size else (math.inf if diff else 0.0)
        findings.append(
            _Finding(
                error / bound,
                f"step 0: bucket {number} has a relative error of {error:.2e} on a bf16 wire, "
                f"bound {bound:.2e}",
            )
        )
    return findings
