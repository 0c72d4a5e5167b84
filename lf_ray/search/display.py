"""Live progress of a sweep: a table on a terminal, one line a visit elsewhere.

An observer like any other: it reads what it is told and keeps nothing that matters.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TextIO

from rich.console import Group
from rich.table import Table
from rich.text import Text

from lf_ray.clock import Clock
from lf_ray.live import LiveFrame, clock_words
from lf_ray.protocol import Interval, Knobs, OutcomeKind, TrialRecord, TrialRequest
from lf_ray.record.events import JournalEvent
from lf_ray.search.conductor import Standing

_ROWS = 12
# Visits before their mean says something about those to come.
_TELLING = 4
_STYLES = {
    OutcomeKind.COMPLETED: "",
    OutcomeKind.PRUNED: "dim",
    OutcomeKind.INFEASIBLE: "yellow",
    OutcomeKind.INVALID: "magenta",
    OutcomeKind.FAILED: "red",
}


@dataclass(slots=True)
class _Row:
    request: TrialRequest
    reason: str
    record: TrialRecord | None = None


class Display:
    """Shows a sweep on a stream; a context manager, so that the terminal is given back.

    Args:
        stream: where to; a terminal gets a live table, anything else plain lines.
        clock: moves elapsed and remaining time on between events.
        width: of a line; None takes the terminal's.
        terminal: whether the stream is one; None asks it.
    """

    def __init__(
        self,
        stream: TextIO,
        clock: Clock,
        *,
        width: int | None = None,
        terminal: bool | None = None,
    ) -> None:
        self._clock = clock
        self._frame = LiveFrame(stream, self.table, width=width, terminal=terminal)
        self._knobs: tuple[str, ...] = ()
        self._title = ""
        self._rows: deque[_Row] = deque(maxlen=_ROWS)
        self._standing: Standing | None = None
        self._told_s = clock.monotonic_s()
        self._note = ""

    def __enter__(self) -> Self:
        self._frame.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._frame.__exit__()

    def on_sweep(self, header: Mapping[str, Any], events: Sequence[JournalEvent]) -> None:
        """Takes the sweep's name and its knobs."""
        self._title = f"{header.get('name', 'sweep')} {header.get('id', '')}".strip()
        self._knobs = tuple(header.get("space", ()))
        done = sum(event.kind == "finished" for event in events)
        resumed = f", resumed after {done} visits" if events else ""
        self._frame.say(f"{self._title}: {', '.join(map(short_name, self._knobs))}{resumed}")

    def on_started(self, request: TrialRequest, reason: str, standing: Standing) -> None:
        """Opens a row."""
        self._take(standing)
        self._rows.append(_Row(request, reason))
        self._frame.refresh()

    def on_finished(self, record: TrialRecord, standing: Standing) -> None:
        """Fills the row, or prints the line."""
        self._take(standing)
        for row in self._rows:
            if row.request.id == record.request.id:
                row.record = record
        self._frame.refresh()
        self._frame.say(self._visit_line(record, standing))

    def on_note(self, text: str) -> None:
        """Shows a line of the sweep's own."""
        self._note = text
        self._frame.refresh()
        self._frame.say(f"    {text}")

    def on_ended(self, reason: str, exit_code: int, standing: Standing) -> None:
        """Shows why it ended."""
        self._take(standing)
        self._note = f"ended: {reason}"
        self._frame.refresh()
        self._frame.say(f"ended after {clock_words(standing.outlook.elapsed_s)}: {reason}")

    def _take(self, standing: Standing) -> None:
        self._standing = standing
        self._told_s = self._clock.monotonic_s()

    def _visit_line(self, record: TrialRecord, standing: Standing) -> str:
        parts = [
            f"[{standing.outlook.phase} {_progress_words(standing)}] {record.request.id:<7}",
            knob_words(record.request.knobs, self._knobs),
            self._result_words(record),
            best_words(standing),
            self._time_words(standing),
        ]
        return "  ".join(part for part in parts if part)

    def _result_words(self, record: TrialRecord) -> str:
        reading = record.throughput_samples_per_s
        if reading is None:
            return f"{record.outcome.kind}: {record.outcome.reason}"
        own = self._standing.baseline_samples_per_s if self._standing else None
        against = f" (x{reading.value / own.value:.3f})" if own else ""
        raced = ", raced" if record.outcome.stop_rule == "raced" else ""
        return f"{interval_words(reading)}{against}{raced}"

    def _time_words(self, standing: Standing) -> str:
        since_s = self._clock.monotonic_s() - self._told_s
        outlook = standing.outlook
        words = clock_words(outlook.elapsed_s + since_s)
        if outlook.left_s is None or outlook.phase == "done" or outlook.num_visits < _TELLING:
            return words
        return f"{words}, about {clock_words(max(0.0, outlook.left_s - since_s))} left"

    def table(self) -> Group:
        """Returns what a terminal shows now."""
        table = Table(title=self._title, title_justify="left", expand=False)
        for name in ("visit", *map(short_name, self._knobs)):
            table.add_column(name, no_wrap=True)
        table.add_column("samples/s", justify="right", no_wrap=True)
        table.add_column("what for", overflow="ellipsis", no_wrap=True)
        for row in self._rows:
            table.add_row(*self._cells(row), style=_row_style(row))
        lines = [Text(line) for line in self._foot()]
        return Group(table, *lines)

    def _cells(self, row: _Row) -> list[str]:
        values = [_value_words(row.request.knobs[name]) for name in self._knobs]
        running = "running" if row.record is None else self._result_words(row.record)
        return [row.request.id, *values, running, row.reason]

    def _foot(self) -> list[str]:
        standing = self._standing
        if standing is None:
            return ["starting the workers"]
        counts = ", ".join(f"{number} {kind}" for kind, number in standing.counts.items() if number)
        lines = [
            f"{standing.outlook.phase}: {_progress_words(standing)} trials"
            f" ({counts or 'none ended yet'}), {self._time_words(standing)}"
        ]
        if standing.best_knobs is not None:
            lines.append(f"{best_words(standing)}: {knob_words(standing.best_knobs, self._knobs)}")
        return [*lines, self._note] if self._note else lines


def short_name(knob: str) -> str:
    """Returns a knob's name without its group."""
    return knob.split(".")[-1]


def knob_words(knobs: Knobs, names: Sequence[str]) -> str:
    """Returns the knobs of a point that vary, as name=value."""
    return " ".join(f"{short_name(name)}={_value_words(knobs[name])}" for name in names)


def interval_words(reading: Interval) -> str:
    """Returns a throughput with half its interval, as people read it."""
    return f"{reading.value:.4g} +-{reading.half_width_frac:.1%}"


def best_words(standing: Standing) -> str:
    """Returns the best point so far and how fast it is."""
    if standing.best_samples_per_s is None:
        return ""
    return f"best {interval_words(standing.best_samples_per_s)} ({standing.best_id})"


def _progress_words(standing: Standing) -> str:
    outlook = standing.outlook
    if outlook.phase == "search":
        return f"{outlook.num_trials} of {outlook.planned_trials}"
    return str(outlook.num_trials)


def _value_words(value: bool | int | float | str) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _row_style(row: _Row) -> str:
    return "bold" if row.record is None else _STYLES[row.record.outcome.kind]
