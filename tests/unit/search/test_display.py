"""What a person sees: plain lines in a pipe, a table on a terminal."""

import io

from rich.console import Console

from lf_ray.protocol import TrialOutcome, TrialRequest
from lf_ray.search.display import Display
from lf_ray.search.plan.decisions import Request, Rules
from lf_ray.testing.fake_sweep import FakeSweep
from lf_ray.testing.objectives import KneeObjective, out_of_memory


class FlushCounter(io.StringIO):
    """A stream that is no terminal and counts its flushes."""

    flushes = 0

    def flush(self) -> None:
        self.flushes += 1
        super().flush()


def fate(request: TrialRequest) -> TrialOutcome | None:
    return out_of_memory() if request.id == "t002" else None


def shown(
    stream: io.StringIO, width: int = 200, terminal: bool | None = None
) -> tuple[FakeSweep, Display]:
    sweep = FakeSweep(KneeObjective(fate=fate), rules=Rules(trials=5))
    display = Display(stream, sweep.clock, width=width, terminal=terminal)
    sweep.observers = [display]
    return sweep, display


def test_a_pipe_gets_one_flushed_line_a_visit() -> None:
    stream = FlushCounter()
    sweep, display = shown(stream)
    with display:
        stop = sweep.run()
    lines = stream.getvalue().splitlines()
    visits = [line for line in lines if line.startswith("[")]
    assert len(visits) == len(sweep.started())
    assert stream.flushes >= len(visits)
    assert visits[0].startswith("[search 1 of 5] t000")
    assert "bucket_size_mb=25 ratio=1" in visits[0]
    assert "+-0.4% (x1.000)" in visits[0]
    assert "best" in visits[0]
    assert not any("left" in line for line in visits[:3]), "a few visits foretell nothing"
    assert "infeasible: CUDA out of memory" in next(line for line in visits if "t002" in line)
    assert any(line.startswith("[slices 5]") and "left" in line for line in visits)
    assert lines[-1].endswith(stop.reason)
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_gets_a_table_that_can_be_read() -> None:
    stream = io.StringIO()
    sweep, display = shown(stream, width=120, terminal=True)
    with display:
        conductor = sweep.conductor()
        for _ in range(3):
            decision = conductor.next()
            assert isinstance(decision, Request)
            conductor.finish(sweep.execute(decision.request))
        running = conductor.next()
        assert isinstance(running, Request)
        console = Console(width=120, file=io.StringIO(), record=True)
        console.print(display.table())
        text = console.export_text()
    assert "bucket_size_mb" in text
    assert "running" in text
    assert "search: 4 of 5 trials (2 completed, 1 infeasible)" in text
    assert "best" in text
    assert max(len(line) for line in text.splitlines()) <= 120


def test_a_resumed_sweep_says_so_and_knows_its_baseline() -> None:
    first, _ = shown(io.StringIO())
    first.run()
    stream = io.StringIO()
    again, display = shown(stream)
    with display:
        again.run(first.log.events[:12])
    lines = stream.getvalue().splitlines()
    assert "resumed after" in lines[0]
    assert any("(x1." in line or "(x0." in line for line in lines)
