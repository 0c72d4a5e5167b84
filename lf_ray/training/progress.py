"""Where a training stands, from its books: a live block on a terminal, plain lines elsewhere.

`Standing` is pure: lines in, numbers out.
"""

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TextIO

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.text import Text

from lf_ray.clock import Clock
from lf_ray.live import LiveFrame, clock_words
from lf_ray.training.books import Line

_WINDOW = 100
_LINE_EVERY_S = 10.0
_NUM_NOTES = 4


@dataclass(slots=True)
class Standing:
    """Where the training stands.

    Attributes:
        step: steps that are done.
        num_starts: starts that were seen; more than one after a loss.
    """

    num_steps: int
    samples_per_step: int
    step: int = 0
    num_starts: int = 0
    saved_step: int | None = None
    loss: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    step_s: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    wait_s: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    lr: float = 0.0

    def take(self, line: Line) -> str:
        """Takes a line of the books; returns what is worth saying of it, mostly nothing."""
        event = line["event"]
        if event == "step":
            self._take_step(line)
            return ""
        if event == "started":
            return self._take_start(line)
        if event == "saved":
            self.saved_step = line["step"]
            return f"checkpoint of step {line['step']} written in {line['seconds']:.1f} s"
        if event == "save_failed":
            return (
                f"CHECKPOINT OF STEP {line['step']} NOT WRITTEN: {line['error']}. "
                "Training goes on; free disk before it ends."
            )
        if event == "exported":
            return f"exported to {line['path']}"
        if event == "finish_failed":
            return str(line["error"])
        return action_error_words(line) if event == "action_error" else ""

    @property
    def throughput(self) -> float | None:
        """Returns samples a second over the last steps."""
        total_s = sum(self.step_s)
        return len(self.step_s) * self.samples_per_step / total_s if total_s > 0 else None

    @property
    def left_s(self) -> float | None:
        """Returns the seconds to the last step."""
        if not self.step_s:
            return None
        return (self.num_steps - self.step) * statistics.fmean(self.step_s)

    def words(self) -> str:
        """Returns the standing as one line."""
        parts = [f"step {self.step}/{self.num_steps}"]
        if self.loss:
            parts += [f"loss {statistics.fmean(self.loss):.4g}", f"lr {self.lr:.2e}"]
        if self.throughput is not None:
            parts.append(f"{self.throughput:.4g} samples/s")
            wait_frac = sum(self.wait_s) / max(sum(self.step_s), 1e-9)
            parts += [f"data wait {wait_frac:.0%}"] if wait_frac >= 0.01 else []
        if self.left_s is not None:
            parts.append(f"{clock_words(self.left_s)} left")
        return "  ".join(parts)

    def _take_step(self, line: Line) -> None:
        self.step = line["step"] + 1
        self.loss.append(float(line["loss"]))
        self.step_s.append(line["step_s"])
        self.wait_s.append(line["wait_s"])
        self.lr = line["lr"]

    def _take_start(self, line: Line) -> str:
        self.num_starts += 1
        self.step = line["step"]
        for window in (self.loss, self.step_s, self.wait_s):
            window.clear()
        if line["checkpoint"]:
            return f"going on from {line['checkpoint']}"
        return "from the first step again" if self.num_starts > 1 else ""


def action_error_words(line: Line) -> str:
    """Returns the action error as a person reads it."""
    if "error" in line:
        return f"action error not measured: {line['error']}"
    which = "held-out" if line["held_out"] else "training (none was held out)"
    all_ends = line.get("by_group_ends", {})
    groups = ", ".join(
        f"{name} {float(value):.3g}{_ends(all_ends.get(name), '.3g')}"
        for name, value in line["by_group"].items()
    )
    ends = _ends((line.get("scaled_lo"), line.get("scaled_hi")), ".4g")
    alone = "; one episode gives no interval" if not ends and line["num_episodes"] == 1 else ""
    return (
        f"action error (MAE, {line['num_samples']} samples of {line['num_episodes']} {which} "
        f"episodes): {float(line['scaled']):.4g} normalised{ends}; in the robot's units: {groups}"
        f"{alone}"
    )


def _ends(ends: Sequence[float | str | None] | None, digits: str) -> str:
    """Returns a 95 % interval over episodes, "" where there is none."""
    if ends is None or ends[0] is None or ends[1] is None:
        return ""
    lo, hi = ends[0], ends[1]
    return f" (95 %: {float(lo):{digits}} to {float(hi):{digits}})"


class Progress:
    """Shows a standing on a stream; a context manager, so that the terminal is given back.

    Args:
        title: names the training.
        stream: a terminal gets a live block, anything else a line now and then.
        terminal: whether it is one; None asks it.
    """

    def __init__(
        self,
        title: str,
        standing: Standing,
        stream: TextIO,
        clock: Clock,
        *,
        terminal: bool | None = None,
    ) -> None:
        self.standing = standing
        self._title = title
        self._clock = clock
        self._frame = LiveFrame(stream, self._block, terminal=terminal)
        self._notes: deque[str] = deque(maxlen=_NUM_NOTES)
        self._told_s = clock.monotonic_s()

    def __enter__(self) -> Self:
        self._frame.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._frame.__exit__()

    def take(self, lines: Sequence[Line]) -> None:
        """Shows what was added to the books."""
        for line in lines:
            self.note(self.standing.take(line))
        now_s = self._clock.monotonic_s()
        began = bool(self.standing.step_s)
        if lines and began and now_s - self._told_s >= _LINE_EVERY_S:
            self._told_s = now_s
            self._frame.say(self.standing.words())

    def note(self, text: str) -> None:
        """Shows a line that stays."""
        if not text:
            return
        self._notes.append(text)
        self._frame.say(text)

    def _block(self) -> Group:
        standing = self.standing
        bar = ProgressBar(total=max(standing.num_steps, 1), completed=standing.step, width=60)
        began = standing.words() if standing.num_starts else "starting the workers"
        lines: list[Any] = [Text(self._title, style="bold"), bar, Text(began)]
        return Group(*lines, *(Text(note, style="dim") for note in self._notes))
