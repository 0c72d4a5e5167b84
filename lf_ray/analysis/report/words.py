"""The answer in words: what is printed at the end of a sweep and stands first in its report."""

from lf_ray.analysis.advice import advice_in_words, share_in_words
from lf_ray.analysis.answer import Answer, Verdict, device, num_ranks
from lf_ray.analysis.gain import economics, gain_over
from lf_ray.analysis.knee import Knee, KneeStatus
from lf_ray.analysis.report.core import core_words
from lf_ray.analysis.report.feeding import feeding_words, skipped_words
from lf_ray.analysis.report.stages import stage_headline, stage_words
from lf_ray.analysis.slices import in_words
from lf_ray.protocol import Interval, Knobs, OutcomeKind


def headline(answer: Answer) -> str:
    """Returns the answer in one sentence."""
    if answer.verdict is Verdict.NO_BASELINE:
        return f"No answer: {_why_no_baseline(answer)}."
    if answer.verdict is Verdict.DATA_BOUND:
        assert answer.roofline is not None
        return (
            f"Data-bound: the step waits for its data {share_in_words(answer.roofline.wait)} "
            "of the time. Keep the baseline and speed up the input path first."
        )
    if not answer.history.header.space and answer.baseline and answer.baseline.step_s:
        return f"The baseline's step takes {answer.baseline.step_s.value * 1e3:.1f} ms."
    if stage_headline(answer):
        return stage_headline(answer)
    if answer.verdict is Verdict.KEEP_BASELINE or answer.gain is None or not answer.winner:
        return "Keep the baseline: nothing tried is certainly faster."
    percent = f"{answer.gain.value - 1:.1%}"
    limit = answer.roofline
    waits = (
        f" Data-bound: it waits for its data {share_in_words(limit.wait)} of the time."
        if (limit and limit.data_bound)
        else ""
    )
    if answer.gain.value < 1.02:
        return f"A small gain: {percent} over the baseline, with {changed_in_words(answer)}.{waits}"
    return f"{percent} faster than the baseline, with {changed_in_words(answer)}.{waits}"


def sentences(answer: Answer) -> list[str]:
    """Returns the whole answer, the headline first, most important next."""
    said = [headline(answer)]
    if answer.baseline and answer.baseline.throughput:
        said.append(
            f"Baseline: {rate_in_words(answer.baseline.throughput)} "
            f"({knobs_in_words(answer, answer.baseline.knobs) or 'the present settings'}), "
            f"{answer.baseline.samples_per_step} samples a step on {_where(answer)}."
        )
    said += stage_words(answer)
    said += core_words(answer)
    said += feeding_words(answer)
    said += skipped_words(answer.history.records)
    said += _winner_words(answer)
    rival, base = answer.fastest, answer.baseline
    if answer.verdict is Verdict.KEEP_BASELINE and rival and base and rival.id != base.id:
        said.append(f"Read around {rival.id}, the fastest, not certainly the better one:")
    said += [knee_in_words(knee) for knee in answer.knees]
    said += _joint_words(answer)
    said += economy_words(answer)
    said += _cost_words(answer)
    said += advice_in_words(answer.baseline_roofline, answer.roofline)
    return said + list(labels(answer))


def labels(answer: Answer) -> tuple[str, ...]:
    """Returns what limits the answer: simulated, made-up data, random weights."""
    config = answer.history.header.config
    said = []
    if device(answer.history) == "simulated":
        said.append("Simulated cluster: every number here is a prediction, none was measured.")
    workers = config.get("cluster", {}).get("workers") or 0
    num_cores = int(answer.history.header.machine.get("num_cores") or workers)
    if device(answer.history) == "cpu" and workers > num_cores:
        said.append(
            f"{workers} workers shared {num_cores} cores: this shows that it works; its times say "
            f"nothing about speed."
        )
    source = config.get("data", {}).get("source", "sample")
    random_weights = not config.get("model", {}).get("weights")
    if source == "synthetic":
        said.append("Synthetic data: made in memory, no video was decoded.")
    elif source == "sample" and random_weights:
        said.append("Random weights, sample data: this tunes speed only.")
    elif random_weights:
        said.append("Random weights: this tunes speed only.")
    return tuple(said)


def knee_in_words(knee: Knee) -> str:
    """Returns one knob's knee as a sentence."""
    value = in_words(knee.knob, knee.value)
    if knee.status is KneeStatus.DEAD:
        return f"{knee.knob}: dead here, {knee.reason}; it stays at {value}."
    if knee.status is KneeStatus.FLAT:
        return f"{knee.knob}: flat, {knee.reason} ({value})."
    span = f"{in_words(knee.knob, knee.lo)} to {in_words(knee.knob, knee.hi)}"
    if knee.status is KneeStatus.UNDETERMINED:
        kept = in_words(knee.knob, knee.advised)
        return f"{knee.knob}: undetermined, {knee.reason}; {kept} is kept."
    certain = "" if knee.lo == knee.hi else f" (95 %: {span})"
    edge = "at the edge of what was swept, " if knee.status is KneeStatus.EDGE else ""
    return f"{knee.knob}: knee {edge}at {value}{certain}; {knee.reason}."


def rate_in_words(rate: Interval) -> str:
    """Returns a throughput with its interval and what it rests on."""
    return (
        f"{rate.value:.4g} samples/s (95 %: {rate.lo:.4g} to {rate.hi:.4g}; "
        f"{counted(rate.num_visits, 'visit')}, {counted(rate.num_steps, 'step')})"
    )


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def knobs_in_words(answer: Answer, knobs: Knobs) -> str:
    """Returns the varied knobs of a point."""
    names = [name for name in answer.history.header.space if name in knobs]
    return ", ".join(f"{name} {in_words(name, knobs[name])}" for name in names)


def changed_in_words(answer: Answer) -> str:
    """Returns what the winner sets otherwise than the baseline."""
    assert answer.winner is not None
    base = answer.history.header.baseline_knobs
    changed = [name for name, value in answer.winner.knobs.items() if base.get(name) != value]
    said = [
        f"{name} {in_words(name, answer.winner.knobs[name])} (was {in_words(name, base[name])})"
        for name in changed
    ]
    return " and ".join(said) if said else "the baseline's own settings"


def duration(seconds: float) -> str:
    """Returns a duration as people say it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def worth_it(answer: Answer) -> str:
    """Returns whether tuning was worth it, in words; empty where nothing was varied."""
    if not answer.history.header.space:
        return ""
    if answer.verdict is Verdict.DATA_BOUND:
        return "Worth it? No time is won back; it says where to begin: at the input path."
    if answer.verdict is not Verdict.IMPROVED or answer.break_even_steps is None:
        return (
            "Worth it? No time is won back; what it bought is to know that nothing tried is "
            "certainly faster than the present settings."
        )
    assert answer.winner is not None
    steps, step_s = answer.break_even_steps, answer.winner.step_s
    named = answer.batch.named["goodput"].worth if answer.batch else None
    gain = named.gain if named else answer.gain
    also = []
    if gain is not None and gain.lo > 1:
        # What a step saves goes with 1 - 1 / gain.
        ends = [steps * (1 - 1 / gain.value) / (1 - 1 / end) for end in (gain.hi, gain.lo)]
        also.append(f"95 %: {ends[0]:,.0f} to {ends[1]:,.0f}")
    also += [f"{duration(steps * step_s.value)} of training"] if step_s else []
    said = f" ({'; '.join(also)})" if also else ""
    return f"Worth it? The sweep's time is won back after {steps:,.0f} training steps{said}."


def economy_words(answer: Answer) -> list[str]:
    """Returns what the ladder steps around each knee buy and lose."""
    if answer.verdict is not Verdict.IMPROVED:
        return []
    points = answer.gathered.points
    waits = answer.roofline is not None and answer.roofline.data_bound
    found = [
        text
        for along, knee in zip(answer.slices, answer.knees)
        if not waits or knee.knob.startswith("data.")
        for text in economics(along, knee, points)
    ]
    return [f"{text}." for text in found]


def _winner_words(answer: Answer) -> list[str]:
    point = answer.fastest
    named = answer.batch is not None
    if point is None or point.throughput is None or answer.baseline is None or named:
        return []
    if point.id == answer.baseline.id:
        return ["Best: the baseline itself."]
    name = "Best" if answer.verdict is Verdict.IMPROVED else "Fastest seen"
    again = "" if len(point.visits) > 1 else ", not measured again"
    said = (
        f"{name}: {rate_in_words(point.throughput)} with "
        f"{knobs_in_words(answer, point.knobs)} (trial {point.id}{again})"
    )
    if answer.verdict is Verdict.IMPROVED and answer.gain:
        gain = answer.gain
        said += f": {gain.value:.3f}x the baseline (95 %: {gain.lo:.3f} to {gain.hi:.3f})"
    return [f"{said}."]


def _joint_words(answer: Answer) -> list[str]:
    if answer.verdict is not Verdict.IMPROVED or answer.winner is None or answer.batch:
        return []
    last = "the last stage's knees"
    where = last if len(answer.stages) > 1 else "all knees together"
    if answer.knee_knobs == answer.winner.knobs:
        return [f"The point at {where} is the best point itself."]
    point = answer.knee_point
    if point is None or point.throughput is None:
        return [f"The point at {where} was not measured."]
    share = gain_over(answer.winner, point)
    return [
        f"At {where} ({knobs_in_words(answer, point.knobs)}): "
        f"{rate_in_words(point.throughput)}, {_signed(share.value)} against the best "
        f"(95 %: {_signed(share.lo)} to {_signed(share.hi)})."
    ]


def _signed(ratio: float) -> str:
    """Returns by how much a ratio differs from one, without a minus before zero."""
    return f"{round(ratio - 1, 3) + 0.0:+.1%}"


def _cost_words(answer: Answer) -> list[str]:
    seconds, counts = answer.seconds, answer.outcomes
    total = sum(counts.values())
    parts = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    gpu = f" ({answer.gpu_seconds:,.0f} GPU-seconds)" if answer.gpu_seconds else ""
    share = seconds.measured / seconds.total if seconds.total else 0.0
    visits = len(answer.history.records)
    said = [
        f"Cost: {duration(seconds.total)}{gpu} for {counted(total, 'trial')} "
        f"({parts or 'none ended'}) and {counted(visits, 'visit')}; {share:.0%} of it was "
        "measured steps."
    ]
    if answer.verdict is not Verdict.NO_BASELINE and worth_it(answer):
        said.append(worth_it(answer))
    drift = answer.gathered.drift
    if drift is not None and drift.starts_frac:
        said.append(f"{drift.reason}; that is taken out where the baseline was seen in them.")
    elif drift is not None and drift.found:
        said.append(f"The machine drifted: {drift.reason}; that is taken out of all numbers.")
    elif drift is not None and drift.alone:
        said.append(f"Not taken out of any number: {drift.reason}.")
    return said


def _why_no_baseline(answer: Answer) -> str:
    point = answer.gathered.baseline
    if point is None:
        return "the baseline never came back"
    if point.gate_failed:
        return "the baseline's numbers differ from the reference's"
    if point.throughput is not None and point.gate is None:
        return "the baseline's numbers were not compared with the reference's, as others were"
    if point.outcome.kind is OutcomeKind.COMPLETED:
        return "the baseline did not settle"
    is_word = "" if point.outcome.kind is OutcomeKind.FAILED else "is "
    reason = point.outcome.reason or "no reason given"
    return f"the baseline {is_word}{point.outcome.kind}: {reason}"


def _where(answer: Answer) -> str:
    label = answer.history.header.machine.get("label")
    ranks = num_ranks(answer.history)
    words = counted(ranks, "rank")
    return f"{words}, {label}" if label else words
