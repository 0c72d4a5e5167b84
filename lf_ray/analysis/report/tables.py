"""The tables of a report, as rows of text: the page and the markdown show the same ones."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from lf_ray.analysis.answer import Answer, Verdict, is_trial
from lf_ray.analysis.frontier import frontier
from lf_ray.analysis.gain import GIB
from lf_ray.analysis.knee import KneeStatus
from lf_ray.analysis.points import Point
from lf_ray.analysis.report.feeding import feeding_settings, is_feeding
from lf_ray.analysis.slices import in_words
from lf_ray.settings import SweepConfig, plain


@dataclass(frozen=True, slots=True)
class Table:
    """A heading, column names, rows of text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def knee_table(answer: Answer) -> Table:
    """Returns what each varied knob comes to."""
    rows = []
    for knee in answer.knees:
        words = [
            in_words(knee.knob, value)
            for value in (
                answer.history.header.baseline_knobs[knee.knob],
                knee.best_value,
                knee.value,
            )
        ]
        span = f"{in_words(knee.knob, knee.lo)} to {in_words(knee.knob, knee.hi)}"
        rows.append((knee.knob, *words, span, str(knee.status), knee.reason))
    if not rows:
        return Table("Knobs", (), ())
    return Table(
        "Knobs",
        ("knob", "baseline", "best", "knee", "95 % of resamples", "status", "why"),
        tuple(rows),
        "Knee: the cheapest value such that it, and every value between it and the best, is within "
        f"{_delta(answer):.0%} of the best.",
    )


def trial_table(answer: Answer) -> Table:
    """Returns every trial with its interval and reason, in the order of starting."""
    points = [point for point in answer.gathered.points if is_trial(point)]
    return Table("Trials", _POINT_COLUMNS, tuple(_point_row(answer, point) for point in points))


def slice_table(answer: Answer) -> Table:
    """Returns the points that were no trials but were measured for the slices."""
    points = [point for point in answer.gathered.points if not is_trial(point)]
    return Table(
        "Slice points", _POINT_COLUMNS, tuple(_point_row(answer, point) for point in points)
    )


def frontier_table(answer: Answer) -> Table:
    """Returns the settings that nothing beats in throughput, memory and loss together."""
    rows = []
    for item in frontier(answer.gathered.points):
        if item.beaten_by:
            continue
        rate = item.throughput
        rows.append(
            (
                item.point.id,
                _settings(answer, item.point),
                f"{rate.value:.4g} ({rate.lo:.4g} to {rate.hi:.4g})",
                f"{item.peak_bytes / GIB:.2f}" if item.peak_bytes else "not measured",
                f"{item.loss:.4f} +- {item.loss_error:.4f}" if item.loss is not None else "none",
            )
        )
    if not rows:
        return Table("Pareto frontier", (), ())
    return Table(
        "Pareto frontier",
        ("trial", "settings", "samples/s", "peak GiB", "loss at equal samples"),
        tuple(rows),
        "What is left out is beaten, beyond noise, in something and in nothing better. Loss: mean "
        "+- standard error.",
    )


def ledger_table(answer: Answer) -> Table:
    """Returns what the sweep's seconds went to."""
    seconds = answer.seconds
    meanings = {
        "measured": "steady steps that count",
        "warmup": "first steps of each visit",
        "startup": "Ray, workers, model, data",
        "between": "preparing, capture, reset between visits",
        "searcher": "choosing what to run next",
    }
    rows = [
        (name, f"{value:.1f}", f"{value / seconds.total:.1%}" if seconds.total else "", meaning)
        for name, meaning in meanings.items()
        for value in [float(getattr(seconds, name))]
    ]
    rows.append(("total", f"{seconds.total:.1f}", "100 %", "wall time"))
    return Table("Ledger", ("class", "seconds", "share", "what it is"), tuple(rows))


def not_worth_table(answer: Answer) -> Table:
    """Returns the knobs that need no tuning here, and why."""
    idle = (KneeStatus.FLAT, KneeStatus.DEAD)
    rows = [
        (knee.knob, str(knee.status), knee.reason) for knee in answer.knees if knee.status in idle
    ]
    if answer.verdict is Verdict.DATA_BOUND:
        rows += [
            (knee.knob, "data-bound", knee.reason)
            for knee in answer.knees
            if knee.status not in idle
        ]
    num_dead = len(answer.history.dead)
    same = "1 suggestion" if num_dead == 1 else f"{num_dead} suggestions"
    note = f"{same} came to the same as a measured one and {_was(num_dead)} not run."
    return Table(
        "Not worth tuning here", ("knob", "status", "why"), tuple(rows), note if num_dead else ""
    )


def _was(number: int) -> str:
    return "was" if number == 1 else "were"


def setting_table(answer: Answer) -> Table:
    """Returns what the sweep ran on and with."""
    header = answer.history.header
    rows = [("machine", str(header.machine.get("label", "unknown")))]
    rows += [(name, str(value)) for name, value in header.versions.items()]
    rows += [("data", header.data_id), ("seed", str(header.seed)), ("space", header.space_hash)]
    return Table("Ran on and with", ("what", "value"), tuple(rows))


def commands(answer: Answer) -> tuple[tuple[str, str], ...]:
    """Returns how to use and how to reproduce the answer: what for, and the command."""
    header = answer.history.header
    words = [f"python sweeps/{header.name}.py", *changed_settings(header.config)]
    place = header.config.get("output", {}).get("dir", "outputs")
    folder = f"{place}/{header.name}/{header.id}"
    train = f"python -m lf_ray.train --config {folder}/best.yaml"
    rebuild = f"python -m lf_ray.record rebuild {folder}/journal.jsonl"
    use = ("Train with the best configuration", train)
    if is_feeding(answer):
        fed = feeding_settings(answer)
        use = ("Feed a sweep or a training so", f"python sweeps/overlap.py {fed}")
    return (
        *(() if answer.verdict is Verdict.NO_BASELINE else (use,)),
        ("Run this sweep again", " ".join(words)),
        ("Put it into MLflow again", rebuild),
    )


_SITE_KEYS = ("name", "resume", "cluster.device")


def changed_settings(config: object) -> list[str]:
    """Returns the settings that differ from the defaults as `key=value` words."""
    defaults = _flat(plain(SweepConfig()))
    return [
        f"{key}={_word(value)}"
        for key, value in _flat(config).items()
        if key in defaults and value != defaults[key] and key not in _SITE_KEYS
    ]


def _flat(config: object, prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    assert isinstance(config, dict)
    for key, value in config.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _word(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, list | tuple):
        value = f"[{','.join(str(item) for item in value)}]"
    return shlex.quote(str(value))


_STOP_WORDS = {
    "settled": "narrow enough",
    "raced": "ended early: far from the best",
    "cap": "at its time limit",
}
_POINT_COLUMNS = ("trial", "settings", "samples/s", "95 %", "visits", "gate", "outcome", "reason")


def _point_row(answer: Answer, point: Point) -> tuple[str, ...]:
    rate = point.throughput
    gate = "none" if point.gate is None else "passed" if point.gate.passed else "failed"
    rule = point.outcome.stop_rule
    reason = point.outcome.reason or _STOP_WORDS.get(rule, rule)
    return (
        point.id,
        _settings(answer, point),
        f"{rate.value:.4g}" if rate else "",
        f"{rate.lo:.4g} to {rate.hi:.4g}" if rate else "",
        str(len(point.visits)),
        gate,
        str(point.outcome.kind),
        reason,
    )


def _settings(answer: Answer, point: Point) -> str:
    """Returns what varies, each knob by its short name; `_varied` leaves unknown knobs out."""
    names = [name.split(".")[-1] for name in _names(answer) if name in point.knobs]
    return ", ".join(f"{name} {value}" for name, value in zip(names, _varied(answer, point)))


def _names(answer: Answer) -> Sequence[str]:
    return list(answer.history.header.space)


def _varied(answer: Answer, point: Point) -> list[str]:
    return [in_words(name, point.knobs[name]) for name in _names(answer) if name in point.knobs]


def _delta(answer: Answer) -> float:
    return float(answer.history.header.config.get("sweep", {}).get("delta", 0.02))
