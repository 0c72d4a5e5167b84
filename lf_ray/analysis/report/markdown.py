"""report.md: the report for terminals, pull requests and mail."""

from collections.abc import Iterable, Sequence

from lf_ray.analysis.answer import Answer
from lf_ray.analysis.report import tables
from lf_ray.analysis.report.core import core_table
from lf_ray.analysis.report.page import CAPTIONS
from lf_ray.analysis.report.stages import stage_tables
from lf_ray.analysis.report.words import headline, labels, sentences


def markdown(answer: Answer, figure_names: Iterable[str]) -> str:
    """Returns the report as markdown; figures are links into figures/."""
    header = answer.history.header
    parts = [f"# {header.name} {header.id}", f"**{_plain(headline(answer))}**"]
    parts += [f"> {_plain(label)}" for label in labels(answer)]
    lines = [line for line in sentences(answer)[1:] if line not in labels(answer)]
    parts.append("\n".join(f"- {_plain(line)}" for line in lines))
    for table in stage_tables(answer):
        parts += _section(table)
    names = list(figure_names)
    parts += _section(tables.knee_table(answer)) + _figures(names, "slices", "throughput")
    parts += _section(tables.not_worth_table(answer)) + _section(core_table(answer))
    inside = _figures(names, "step", "phases", "memory", "loss")
    parts += ["## Inside a step", *inside] if inside else []
    for table in (
        tables.trial_table(answer),
        tables.slice_table(answer),
        tables.frontier_table(answer),
        tables.ledger_table(answer),
    ):
        parts += _section(table)
    parts += _figures(names, "timeline")
    parts.append("## Use it, reproduce it")
    parts += [f"{what}:\n\n```\n{how}\n```" for what, how in tables.commands(answer)]
    parts += _section(tables.setting_table(answer))
    return "\n\n".join(parts) + "\n"


def _figures(names: Sequence[str], *wanted: str) -> list[str]:
    return [
        f"![{name}](figures/{name}.svg)\n\n*{CAPTIONS[name]}*" for name in wanted if name in names
    ]


def _section(table: tables.Table) -> list[str]:
    if not table.rows and not table.note:
        return []
    parts = [f"## {table.title}"]
    if table.rows:
        lines = [table.columns, tuple("---" for _ in table.columns), *table.rows]
        parts.append("\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines))
    return parts + ([_plain(table.note)] if table.note else [])


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """Returns text on one line, with what markdown or HTML would take as its own escaped."""
    flat = " ".join(text.split())
    for letter in "\\`*<":
        flat = flat.replace(letter, f"\\{letter}")
    return flat
