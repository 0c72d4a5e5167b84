"""report.html: one file that asks nothing of the network, the answer first.

All text is escaped: reasons come from error messages.
"""

import time
from collections.abc import Mapping, Sequence
from html import escape

from lf_ray.analysis.answer import Answer, Verdict
from lf_ray.analysis.report import tables
from lf_ray.analysis.report.core import core_table
from lf_ray.analysis.report.stages import stage_tables
from lf_ray.analysis.report.words import (
    duration,
    headline,
    knobs_in_words,
    labels,
    sentences,
)

CAPTIONS = {
    "throughput": "Every measured setting with its 95 % interval. Square: baseline, circle: "
    "fastest, diamond: all knobs at their knee.",
    "slices": "From the best point one knob walks its ladder, the others held. Blue band: within "
    "delta of the best. Line and pale band: the knee and its 95 % interval. Dotted: the curve's "
    "elbow (Kneedle), where it has one; it moves with the range swept and decides nothing. Cross: "
    "tried and not usable; question mark: not measured.",
    "step": "One mean step. Lengths are measured; where each bucket lies inside its stretch is "
    "drawn evenly. Network: each block is a bucket, pale blue beside backward, red where nothing "
    "hides it. Grey: waiting. On a CPU what is hidden can't be told.",
    "phases": "Where the step goes, baseline and fastest: the mean of each phase.",
    "loss": "Loss against samples seen. The band spans the baseline's visits: a setting that only "
    "changes speed stays inside it.",
    "memory": "Memory by kind: how much room is left is part of the price.",
    "timeline": "What the sweep's own seconds went to, in sum and visit after visit, in the same "
    "colours.",
}

_MOST_CARDS = 12
_MOST_IN_TILE = 3
_CSS = """
:root { --ink:#1c2733; --muted:#5b6875; --line:#e3e8ed; --soft:#f6f8fa; --accent:#0b6e99; }
* { box-sizing:border-box; }
body { margin:0; background:#fff; color:var(--ink);
  font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif; }
main { max-width:1000px; margin:0 auto; padding:1.2rem 1rem 4rem; }
h1 { font-size:1.05rem; font-weight:600; color:var(--muted); margin:0 0 .3rem; }
.lead { font-size:1.55rem; line-height:1.25; font-weight:650; margin:.2rem 0 1rem; }
h2 { font-size:1.15rem; margin:2.2rem 0 .6rem; padding-top:.6rem;
  border-top:1px solid var(--line); }
.label { background:#fff6e0; border-left:4px solid #c99700; padding:.4rem .7rem; margin:.4rem 0; }
.tiles { display:grid; grid-template-columns:repeat(auto-fit,minmax(9.4rem,1fr)); gap:.7rem;
  margin:1rem 0; }
.tile { background:var(--soft); border:1px solid var(--line); border-radius:8px;
  padding:.7rem .8rem; }
.tile b { display:block; font-size:1.35rem; line-height:1.2; color:var(--accent);
  overflow-wrap:anywhere; }
.tile span { font-size:.85rem; color:var(--muted); }
.lead, .answer, .label { max-width:830px; } .answer { padding-left:1.1rem; margin:0; }
.answer li { margin:.35rem 0; }
figure { margin:1.2rem 0; }
figure svg { width:100%; max-width:640px; height:auto; display:block; margin:0 auto; }
figcaption, .note { font-size:.88rem; color:var(--muted); max-width:640px; margin:.3rem auto 0; }
.note { margin:.3rem 0; max-width:none; }
.scroll { overflow-x:auto; }
table { border-collapse:collapse; font-size:.86rem; width:100%; font-variant-numeric:tabular-nums; }
th { text-align:left; color:var(--muted); font-weight:600; white-space:nowrap; }
th, td { padding:.32rem .8rem .32rem 0; border-bottom:1px solid var(--line); vertical-align:top; }
td { min-width:3.5rem; } td:first-child, th:first-child { min-width:0; white-space:nowrap; }
td.num { white-space:nowrap; } td:last-child { min-width:9rem; overflow-wrap:anywhere; }
td[data-label="settings"] { min-width:13rem; }
tr.best td { background:#eaf4f8; } tr.bad td { color:var(--muted); }
summary { cursor:pointer; color:var(--accent); margin:.6rem 0; }
pre { background:var(--soft); border:1px solid var(--line); border-radius:6px; padding:.6rem .8rem;
  overflow-x:auto; font-size:.85rem; white-space:pre-wrap; overflow-wrap:anywhere; }
@media (max-width:600px) { .cards thead { display:none; }
  .cards tr { display:block; border-bottom:1px solid var(--line); padding:.4rem 0; }
  .cards td { display:flex; gap:.8rem; border:0; padding:.12rem 0; }
  .cards td:first-child { font-weight:600; white-space:normal; } .cards td:empty { display:none; }
  .cards td:not(:first-child)::before { content:attr(data-label); color:var(--muted);
    flex:0 0 8rem; white-space:normal; } }
@media print { @page { margin:14mm; } body { font-size:12.5px; } table { font-size:10.5px; }
  td, td[data-label="settings"] { min-width:0; } td:last-child { min-width:5.5rem; }
  td[data-label="settings"], td[data-label="varies"], td[data-label="changes"] {
    overflow-wrap:anywhere; }
  th, td[data-label="began at samples/s"] { white-space:normal; }
  main { max-width:none; padding:0; } figure, tr, .tile { break-inside:avoid; }
  h2, summary { break-after:avoid; } figure svg { max-width:430px; max-height:225mm; }
  figure { margin:.7rem 0; } figcaption { max-width:430px; }
  figcaption, .note, .tile span { font-size:11px; }
  details::details-content { content-visibility:visible; display:block; height:auto; }
  .scroll { overflow:visible; } }
"""


def page(answer: Answer, figures: Mapping[str, str]) -> str:
    """Returns the whole report as one HTML document.

    Args:
        answer: of the sweep.
        figures: SVG text by name, in reading order.
    """
    header = answer.history.header
    title = f"{header.name} {header.id}"
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(header.wall_s))
    body = [
        f"<h1>Sweep {escape(title)}, {date}</h1>",
        f'<p class="lead">{escape(headline(answer))}</p>',
        *(f'<p class="label">{escape(label)}</p>' for label in labels(answer)),
        _tiles(answer),
        _list([line for line in sentences(answer)[1:] if line not in labels(answer)]),
        *(part for table in stage_tables(answer) for part in _section(table)),
        *_section(tables.knee_table(answer)),
        *_figures(figures, ("slices", "throughput")),
        *_section(tables.not_worth_table(answer)),
        *_section(core_table(answer)),
        *_headed("Inside a step", _figures(figures, ("step", "phases", "memory", "loss"))),
        *_section(tables.trial_table(answer), best=answer.winner.id if answer.winner else ""),
        *_folded(tables.slice_table(answer)),
        *_section(tables.frontier_table(answer)),
        *_section(tables.ledger_table(answer)),
        *_figures(figures, ("timeline",)),
        "<h2>Use it, reproduce it</h2>",
        *(
            f"<p>{escape(what)}:</p><pre>{escape(how)}</pre>"
            for what, how in tables.commands(answer)
        ),
        *_section(tables.setting_table(answer)),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _tiles(answer: Answer) -> str:
    tiles: list[tuple[str, str]] = []
    if answer.gain is not None and answer.verdict is Verdict.IMPROVED:
        gain = answer.gain
        whose = "the baseline's samples/s" if answer.batch else "the baseline"
        tiles.append((f"{gain.value:.2f}x", f"{whose} ({gain.lo:.3f} to {gain.hi:.3f})"))
    if answer.winner is not None and answer.winner.throughput is not None:
        rate = answer.winner.throughput
        whose = "the best" if answer.verdict is Verdict.IMPROVED else "the baseline"
        tiles.append(
            (f"{rate.value:.4g} samples/s", f"{whose} ({rate.lo:.4g} to {rate.hi:.4g}), all ranks")
        )
    if answer.knees and answer.verdict is Verdict.IMPROVED:
        short = _knee_words(answer)
        values = " / ".join(part.split(" ", 1)[1] for part in short)
        names = " / ".join(part.split(" ", 1)[0].split(".")[-1] for part in short)
        tiles.append((values, f"knee: {names}"))
    tiles.append((duration(answer.seconds.total), "the sweep took"))
    if answer.break_even_steps is not None and answer.verdict is Verdict.IMPROVED:
        tiles.append((f"{answer.break_even_steps:,.0f} steps", "of training win that back"))
    inner = "".join(
        f'<div class="tile"><b>{escape(big)}</b><span>{escape(small)}</span></div>'
        for big, small in tiles
    )
    return f'<div class="tiles">{inner}</div>'


def _knee_words(answer: Answer) -> list[str]:
    """Returns the knobs at their knees; of many, those that leave the baseline."""
    words = knobs_in_words(answer, answer.knee_knobs).split(", ")
    before = knobs_in_words(answer, answer.history.header.baseline_knobs).split(", ")
    changed = [word for word in words if word not in before]
    return changed if len(words) > _MOST_IN_TILE and changed else words


def _list(lines: Sequence[str]) -> str:
    items = []
    for line in lines:
        first, colon, rest = line.partition(":")
        lead = f"<b>{escape(first)}:</b>" if colon and len(first) < 40 else escape(first + colon)
        items.append(f"<li>{lead}{escape(rest)}</li>")
    return f'<ul class="answer">{"".join(items)}</ul>'


def _figures(figures: Mapping[str, str], names: Sequence[str]) -> list[str]:
    return [
        f'<figure id="{name}">{figures[name]}<figcaption>{escape(CAPTIONS[name])}</figcaption>'
        "</figure>"
        for name in names
        if name in figures
    ]


def _headed(title: str, parts: Sequence[str]) -> list[str]:
    return [f"<h2>{escape(title)}</h2>", *parts] if parts else []


def _section(table: tables.Table, best: str = "") -> list[str]:
    if not table.rows and not table.note:
        return []
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return [f"<h2>{escape(table.title)}</h2>", _table(table, best) if table.rows else "", note]


def _folded(table: tables.Table) -> list[str]:
    if not table.rows:
        return []
    title = f"{len(table.rows)} more points, measured for the slices"
    return [f"<details><summary>{escape(title)}</summary>{_table(table, '')}</details>"]


def _table(table: tables.Table, best: str) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = []
    for row in table.rows:
        kind = "best" if row[0] == best else ""
        if "outcome" in table.columns and row[table.columns.index("outcome")] != "completed":
            kind = "bad"
        cells = "".join(map(_cell, table.columns, row))
        rows.append(f'<tr class="{kind}">{cells}</tr>' if kind else f"<tr>{cells}</tr>")
    body = "".join(rows)
    # On a phone each row becomes a card, where there are few enough to turn over.
    shape = "cards" if len(rows) <= _MOST_CARDS and len(table.columns) > 2 else "rows"
    return (
        f'<div class="scroll"><table class="{shape}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(column: str, text: str) -> str:
    """Returns a cell; numbers stay on one line."""
    kind = ' class="num"' if len(text) < 24 and any(map(str.isdigit, text)) else ""
    return f'<td{kind} data-label="{escape(column)}">{escape(text)}</td>'
