"""The frame of live progress: a block that is drawn anew on a terminal, plain lines elsewhere."""

from collections.abc import Callable
from typing import Self, TextIO

from rich.console import Console, RenderableType
from rich.live import Live

# Drawing takes a core for a moment, and what is timed on a CPU runs on those cores.
_REFRESHES_PER_S = 1.0


class LiveFrame:
    """Shows what `draw` returns while it is open; a context manager, so that the terminal is freed.

    Args:
        stream: where to; a terminal gets the block, anything else only what is said.
        draw: returns the block as it is now; called from another thread.
        width: of a line; None takes the terminal's.
        terminal: whether the stream is one; None asks it.
    """

    def __init__(
        self,
        stream: TextIO,
        draw: Callable[[], RenderableType],
        *,
        width: int | None = None,
        terminal: bool | None = None,
    ) -> None:
        self._console = Console(file=stream, width=width, highlight=False, force_terminal=terminal)
        self._draw = draw
        self._live: Live | None = None

    @property
    def is_open(self) -> bool:
        """Returns whether a block is being drawn; lines are not said then."""
        return self._live is not None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                refresh_per_second=_REFRESHES_PER_S,
                get_renderable=self._draw,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()
            self._console.print(self._draw())

    def refresh(self) -> None:
        """Draws the block at once."""
        if self._live is not None:
            self._live.refresh()

    def say(self, text: str) -> None:
        """Prints a line where no block is drawn."""
        if self._live is None:
            self._console.print(text, soft_wrap=True, markup=False)
            self._console.file.flush()


def clock_words(seconds: float) -> str:
    """Returns a duration as people read it."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
