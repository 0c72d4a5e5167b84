"""Whether a training is as fast as the sweep promised, told early. Pure.

A configuration ages: another driver, a neighbour on the node, slower storage. Days are saved when
the first minute says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lf_ray.measure import read_visit
from lf_ray.protocol import Interval
from lf_ray.training.books import Line

MIN_STEPS = 20
UNSTEADY_STEPS = 40
MAX_STEPS = 300
"""When it is judged: settled, unsettled but never as fast, at the latest."""
WAIT_FRAC = 0.05
"""A larger share of the time spent waiting for data is named as the likely cause."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Canary:
    """The verdict.

    Attributes:
        word: as promised | faster | stale | undetermined.
        measured: samples a second here; None where it did not settle.
        text: a line for whoever watches.
    """

    word: str
    measured: Interval | None
    text: str


def canary(
    step_s: Sequence[float],
    wait_s: Sequence[float],
    samples_per_step: int,
    promise: Interval,
    delta_frac: float,
) -> Canary | None:
    """Returns the verdict on the first steps, None while it is too early.

    Args:
        step_s: wall time of each step on its slowest rank, since the start.
        wait_s: of it, waited for data.
        samples_per_step: over all ranks.
        promise: throughput that the sweep measured.
        delta_frac: what counts as equally fast.
    """
    if len(step_s) < MIN_STEPS:
        return None
    reading = read_visit(step_s, samples_per_step, delta_frac)
    rate = reading.throughput_samples_per_s
    if rate is None:
        fastest = samples_per_step / max(min(step_s), 1e-9)
        if len(step_s) >= UNSTEADY_STEPS and fastest < promise.lo * (1 - delta_frac):
            # However unsteady: not one step was as fast as the promised mean.
            said = f"even the fastest of {len(step_s)} steps gives {fastest:.4g} samples/s"
            return _stale(None, said, promise, _cause(step_s, wait_s))
        if len(step_s) < MAX_STEPS:
            return None
        text = f"Speed undetermined after {len(step_s)} steps ({reading.error})."
        return Canary(word="undetermined", measured=None, text=text)
    said = f"{rate.value:.4g} samples/s, x{rate.value / promise.value:.3f} of the promise"
    if rate.hi < promise.lo * (1 - delta_frac):
        return _stale(rate, said, promise, _cause(step_s, wait_s))
    if rate.lo > promise.hi * (1 + delta_frac):
        return Canary(word="faster", measured=rate, text=f"Faster than promised: {said}.")
    return Canary(word="as promised", measured=rate, text=f"As fast as promised: {said}.")


def _stale(rate: Interval | None, said: str, promise: Interval, cause: str) -> Canary:
    text = f"The configuration is stale: {said}; the sweep measured {promise.value:.4g}. {cause} "
    text += "Training goes on; a new sweep would find what is best now."
    return Canary(word="stale", measured=rate, text=text)


def _cause(step_s: Sequence[float], wait_s: Sequence[float]) -> str:
    wait_frac = sum(wait_s) / max(sum(step_s), 1e-9)
    if wait_frac > WAIT_FRAC:
        return f"{wait_frac:.0%} of the time is spent waiting for data (data.workers, data.cache)."
    return "Look for other work on these machines, and for new drivers or packages."


class CanaryWatch:
    """Judges the first steps, once; a start before the verdict begins them anew.

    Args:
        promise: None where no sweep promised anything.
        note: is told the verdict.

    Attributes:
        verdict: None while it is too early.
    """

    def __init__(
        self,
        promise: Interval | None,
        samples_per_step: int,
        delta_frac: float,
        note: Callable[[str], None],
    ) -> None:
        self.verdict: Canary | None = None
        self._promise, self._note = promise, note
        self._samples_per_step, self._delta_frac = samples_per_step, delta_frac
        self._step_s: list[float] = []
        self._wait_s: list[float] = []

    def take(self, lines: Sequence[Line]) -> None:
        """Takes new lines of the books."""
        if self._promise is None or self.verdict is not None:
            return
        for line in lines:
            if line["event"] == "started":
                self._step_s.clear()
                self._wait_s.clear()
            elif line["event"] == "step":
                self._step_s.append(line["step_s"])
                self._wait_s.append(line["wait_s"])
        self.verdict = canary(
            self._step_s, self._wait_s, self._samples_per_step, self._promise, self._delta_frac
        )
        if self.verdict is not None:
            self._note(self.verdict.text)
