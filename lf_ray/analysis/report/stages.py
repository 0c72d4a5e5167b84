"""What a sweep in stages adds to the report: its stages, do gains multiply, goodput, learning."""

import math

from lf_ray.analysis.answer import Answer
from lf_ray.analysis.gain import gain_over
from lf_ray.analysis.report.tables import Table
from lf_ray.analysis.slices import in_words
from lf_ray.analysis.staged.convergence import Convergence
from lf_ray.analysis.staged.multiply import Multiplied
from lf_ray.analysis.staged.named import BatchAnswer, Named
from lf_ray.analysis.staged.stages import ALL, BASELINE
from lf_ray.protocol import Interval, Knobs

_SIDES = {BASELINE: "the baseline", ALL: "all winners together"}


def stage_tables(answer: Answer) -> tuple[Table, ...]:
    """Returns the tables of a sweep in stages, in reading order; none for any other sweep."""
    tables: list[Table] = []
    if len(answer.stages) > 1:
        tables += [_stage_table(answer), _together_table(answer)]
    if answer.batch is not None:
        tables += [
            _named_table(answer.batch),
            _learning_table(answer.batch),
            _worth_table(answer, answer.batch),
        ]
    return tuple(table for table in tables if table.rows or table.note)


def stage_headline(answer: Answer) -> str:
    """Returns the answer of a search over batches in one sentence; "" for any other sweep."""
    if answer.batch is None or answer.baseline is None:
        return ""
    named = answer.batch.named["goodput"]
    kept = named.point is None or named.point.id == answer.baseline.id or named.worth is None
    if kept and named.note:
        return f"Keep the baseline's batch: {named.note}."
    if kept or named.worth is None:
        return "Keep the baseline's batch: no other is certainly worth more a second."
    gain = named.worth.gain.value - 1
    return f"{gain:.1%} more learning a second than the baseline, with {_batch_words(named.knobs)}."


def stage_words(answer: Answer) -> list[str]:
    """Returns what the stages say, as sentences; nothing for a sweep without stages."""
    said = []
    if len(answer.stages) > 1:
        for stage in answer.stages:
            name = f"Stage {stage.chapter.name}"
            if stage.answer is None:
                dead = f"dead here, {stage.chapter.reason}"
                late = "nothing was measured before the sweep ended"
                said.append(f"{name}: {dead if stage.chapter.status == 'dead' else late}.")
            elif not stage.changed or stage.gain is None:
                said.append(f"{name}: changes nothing ({stage.chapter.reason}).")
            else:
                said.append(
                    f"{name}: {_gain(stage.gain)} over where it began, with "
                    f"{_changes(stage.changed)}; {stage.check}."
                )
        said.append(_multiply_words(answer.together.found if answer.together else None))
    if answer.batch is not None:
        said += _batch_sentences(answer.batch)
    if answer.convergence is not None and answer.convergence.verdict != "not needed":
        found = answer.convergence
        said.append(f"Convergence: {found.verdict}; {found.reason}.")
    return said


def _multiply_words(found: Multiplied | None) -> str:
    if found is None:
        return "Do the gains multiply? Not measured: the sweep ended before."
    if found.product is None or found.joint is None or found.ratio is None:
        return f"Do the gains multiply? {found.reason[0].upper()}{found.reason[1:]}."
    parts = " x ".join(f"{name} {gain.value:.3f}" for name, gain in found.singles.items() if gain)
    return (
        f"Do the gains multiply? {str(found.verdict).capitalize()}: {parts} = "
        f"{found.product.value:.3f}; measured together {_gain(found.joint)}; {found.reason}."
    )


def _batch_sentences(batch: BatchAnswer) -> list[str]:
    said = []
    if batch.scale is not None:
        late = f"; {_scale(batch.late_scale)} after the training runs" if batch.late_scale else ""
        said.append(
            f"Gradient noise scale: {_scale(batch.scale)} at the start of training{late}. It grows "
            "while a model learns, and with it the batch that is worth its samples."
        )
    for name, named in batch.named.items():
        worth = (
            f"{_rate(named.worth.goodput)} goodput, {_gain(named.worth.gain)} the baseline's, "
            f"at {_share(named.worth.efficiency)} efficiency"
            if named.worth
            else "goodput not measured"
        )
        rate = named.point.throughput if named.point else None
        speed = f"{_rate(rate)} samples/s" if rate else "not measured"
        note = f" ({named.note})" if named.note else ""
        said.append(f"{name.capitalize()}: {_batch_words(named.knobs)}; {speed}, {worth}{note}.")
    if batch.rules:
        told = ", ".join(
            f"{item.rule} {item.convergence.ratio:.4f}x{_ends(item.convergence)}"
            for item in batch.rules
            if item.convergence.ratio is not None and item.batch == batch.rules[0].batch
        )
        said.append(
            f"Learning-rate rule: {batch.lr_rule}; loss against the baseline's at equal samples, "
            f"batch {batch.rules[0].batch}: {told or 'none came to its end'}."
        )
    if batch.note:
        said.append(f"Training runs: {batch.note}.")
    return said


def _stage_table(answer: Answer) -> Table:
    rows = []
    for stage in answer.stages:
        chapter, own = stage.chapter, stage.answer
        began = own.baseline.throughput if own and own.baseline else None
        rows.append(
            (
                chapter.name,
                ", ".join(chapter.begin.get("space", {})),
                "not reached" if not own and chapter.status != "dead" else chapter.status,
                _rate(began) if began else "",
                _changes(stage.changed) if stage.changed else "nothing",
                _gain(stage.gain) if stage.gain else "",
                stage.check,
                chapter.reason,
            )
        )
    return Table(
        "Stages",
        ("stage", "varies", "status", "began at samples/s", "changes", "gain", "check", "why"),
        tuple(rows),
        "Each stage begins from the winner of the last one; its gain is over where it began.",
    )


def _together_table(answer: Answer) -> Table:
    if answer.together is None:
        return Table("Do the gains multiply?", (), (), "Not measured: the sweep ended before.")
    found, baseline = answer.together.found, answer.together.points[BASELINE]
    base = baseline.throughput if baseline else None
    rows = []
    for label, point in answer.together.points.items():
        rate = point.throughput if point else None
        gain = found.joint if label == ALL else found.singles.get(label)
        if gain is None and point and rate and baseline and base and label != BASELINE:
            gain = gain_over(baseline, point)
        rows.append(
            (
                _SIDES.get(label, label if label.startswith("all but") else f"{label} alone"),
                _rate(rate) if rate else "not measured",
                _gain(gain) if gain else "",
                str(rate.num_visits) if rate else "0",
            )
        )
    if found.product is not None:
        rows.append(("product of the single gains", "", _gain(found.product), ""))
    if found.ratio is not None:
        rows.append(("all together / product", "", _gain(found.ratio), ""))
    return Table(
        "Do the gains multiply?",
        ("side", "samples/s", "over the baseline", "visits"),
        tuple(rows),
        f"Verdict: {found.verdict}; {found.reason}. Visits of all sides were interleaved.",
    )


def _named_table(batch: BatchAnswer) -> Table:
    rows = [(name, f"{name}.yaml", *_named_cells(named)) for name, named in batch.named.items()]
    return Table(
        "Three points to choose from",
        ("name", "file", "batch", "lr rule", "samples/s", "goodput", "gain", "converges", "why"),
        tuple(rows),
        "Goodput: throughput times what a sample is worth in its batch, in the baseline's samples "
        "a second. best.yaml is the goodput one.",
    )


def _named_cells(named: Named) -> tuple[str, ...]:
    knobs, worth, rate = named.knobs, named.worth, named.point and named.point.throughput
    return (
        f"{knobs['batch.per_gpu']} x {knobs['batch.accumulation']}",
        str(knobs["batch.lr_rule"]),
        _rate(rate) if rate else "not measured",
        _rate(worth.goodput) if worth else "not measured",
        _gain(worth.gain) if worth else "",
        str(named.convergence.verdict),
        "; ".join(part for part in (named.note, named.convergence.reason) if part),
    )


def _learning_table(batch: BatchAnswer) -> Table:
    rows = [
        (
            str(item.batch),
            item.rule,
            f"{item.convergence.ratio:.4f}x" if item.convergence.ratio is not None else "none",
            f"{item.convergence.num_steps}",
            str(item.convergence.verdict),
            item.convergence.reason,
        )
        for item in batch.rules
    ]
    note = f"{batch.note}." if batch.note else ""
    return Table(
        "Learning at equal samples",
        ("samples a step", "lr rule", "loss", "steps", "verdict", "why"),
        tuple(rows),
        note,
    )


def _worth_table(answer: Answer, batch: BatchAnswer) -> Table:
    rows = [
        (
            item.point.id,
            f"{item.point.knobs['batch.per_gpu']} x {item.point.knobs['batch.accumulation']}",
            str(item.point.samples_per_step),
            _rate(item.point.throughput) if item.point.throughput else "",
            _share(item.efficiency),
            _rate(item.goodput),
            _gain(item.gain),
        )
        for item in batch.worths
    ]
    return Table(
        "Goodput",
        ("trial", "batch x acc.", "samples a step", "samples/s", "efficiency", "goodput", "gain"),
        tuple(rows),
        f"Noise scale {_scale(batch.scale)}; efficiency (scale + base) / (scale + batch)."
        if batch.scale
        else "No noise scale was measured here, so no goodput is known.",
    )


def _changes(knobs: Knobs) -> str:
    return " and ".join(f"{name} {in_words(name, value)}" for name, value in knobs.items())


def _batch_words(knobs: Knobs) -> str:
    return (
        f"batch.per_gpu {knobs['batch.per_gpu']}, batch.accumulation {knobs['batch.accumulation']}"
        f", batch.lr_rule {knobs['batch.lr_rule']}"
    )


def _gain(gain: Interval) -> str:
    return f"{gain.value:.3f}x (95 %: {gain.lo:.3f} to {gain.hi:.3f})"


def _rate(rate: Interval) -> str:
    return f"{rate.value:.4g} ({rate.lo:.4g} to {rate.hi:.4g})"


def _share(share: Interval) -> str:
    return f"{share.value:.3f} ({share.lo:.3f} to {share.hi:.3f})"


def _ends(found: Convergence) -> str:
    if found.lo is None or found.hi is None:
        return ""
    return f" (one-sided 95 %: {found.lo:.4f} to {found.hi:.4f})"


def _scale(scale: Interval | None) -> str:
    if scale is None or math.isinf(scale.value):
        return "too large to tell from infinite"
    top = "no upper end" if math.isinf(scale.hi) else f"{scale.hi:.3g}"
    return f"{scale.value:.3g} samples (95 %: {scale.lo:.3g} to {top}; {scale.num_steps} batches)"
