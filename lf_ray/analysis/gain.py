"""What a change is worth: the gain with its interval, what it costs, when it pays back.

Pure. A gain is a ratio of throughputs in samples/s; it names both of its sides.
"""

from collections.abc import Sequence

from lf_ray.analysis.knee import Knee, KneeStatus
from lf_ray.analysis.points import Point
from lf_ray.analysis.slices import Reading, Slice, in_words
from lf_ray.measure.interval import ratio, widened
from lf_ray.protocol import ChangeCost, Interval, change_cost

GIB = 2**30
_WORTH_SAYING_FRAC = 0.01
_EFFECTS = {"num_buckets": "collectives a step", "num_collectives": "collectives a step"}


def gain_over(baseline: Point, best: Point) -> Interval:
    """Returns best's throughput over the baseline's, with its interval."""
    assert baseline.throughput is not None
    assert best.throughput is not None
    if best.id == baseline.id:
        num_visits = baseline.throughput.num_visits
        steps = baseline.throughput.num_steps
        return Interval(value=1.0, lo=1.0, hi=1.0, num_steps=steps, num_visits=num_visits)
    return ratio(*compared(best, baseline))


def compared(point: Point, other: Point) -> tuple[Interval, Interval]:
    """Returns the throughputs of two measured points as they may be compared.

    Where both run in the same workers, these are their own: what the workers do to both cancels,
    and each start of them is held against a baseline visit in it (`lf_ray.measure.drift`). Where
    they need other workers nothing can cancel: no start can hold both, and a reference with the
    other's workers would take out the very effect that is asked for. So each carries what its
    visits share with their starts.
    """
    assert point.throughput is not None
    assert other.throughput is not None
    if change_cost(point.knobs, other.knobs) is not ChangeCost.RESTART:
        return point.throughput, other.throughput
    return (
        widened(point.throughput, point.start_frac),
        widened(other.throughput, other.start_frac),
    )


def break_even_steps(baseline: Point, best: Point, tuning_s: float) -> float | None:
    """Returns the training steps after which the sweep's time is won back; None: never.

    Steps are best's own; the same samples take longer at the baseline.
    """
    if baseline.throughput is None or best.throughput is None:
        return None
    saved_s_per_sample = 1 / baseline.throughput.value - 1 / best.throughput.value
    if saved_s_per_sample <= 0 or best.samples_per_step <= 0:
        return None
    return tuning_s / saved_s_per_sample / best.samples_per_step


def economics(along: Slice, knee: Knee, points: Sequence[Point]) -> tuple[str, ...]:
    """Returns what the next ladder step beyond the knee buys, and what stopping short loses.

    Each as a share of the throughput at the knee, with its 95 % interval.
    """
    if knee.status in (KneeStatus.DEAD, KneeStatus.FLAT) or not along.readings:
        return ()
    by_id = {point.id: point for point in points}
    index = next(i for i, item in enumerate(along.readings) if item.value == knee.value)
    here = along.readings[index]
    said = []
    if index < along.best_index:
        beyond = along.readings[index + 1]
        said.append(_step(along.knob, here, beyond, by_id, "going on to"))
    if index > 0:
        short = along.readings[index - 1]
        said.append(_step(along.knob, here, short, by_id, "stopping at"))
    return tuple(text for text in said if text)


def _step(knob: str, here: Reading, there: Reading, by_id: dict[str, Point], going: str) -> str:
    if not here.usable or not there.usable or here.point_id == there.point_id:
        return ""
    at, to = by_id[str(here.point_id)], by_id[str(there.point_id)]
    share = ratio(*compared(to, at))
    buys = share.value >= 1
    ends = (share.lo - 1, share.hi - 1) if buys else (1 - share.hi, 1 - share.lo)
    said = f"{'buys' if buys else 'gives up'} {abs(share.value - 1):.1%}"
    said += f" (95 %: {ends[0]:.1%} to {ends[1]:.1%})"
    costs = _differences(at, to)
    paid = f" for {' and '.join(costs)}" if costs else ""
    return f"{knob}: {going} {in_words(knob, there.value)} {said}{paid}"


def _differences(at: Point, to: Point) -> list[str]:
    """Returns what else changes between two points, in words: messages, memory."""
    said = []
    for name, words in _EFFECTS.items():
        before, after = at.effective.get(name), to.effective.get(name)
        if isinstance(before, int) and isinstance(after, int) and before != after:
            more = "more" if after > before else "fewer"
            said.append(f"{abs(after - before)} {more} {words}")
    before_bytes, after_bytes = peak_bytes(at), peak_bytes(to)
    if before_bytes and after_bytes:
        change = after_bytes - before_bytes
        if abs(change) > _WORTH_SAYING_FRAC * before_bytes:
            more = "more" if change > 0 else "less"
            said.append(f"{abs(change) / GIB:.2f} GiB {more} peak memory")
    return said


def peak_bytes(point: Point) -> float | None:
    """Returns the most memory that the point held at once, where it was measured."""
    for name in ("peak", "max_allocated", "peak_allocated", "peak_bytes", "rss_peak", "rss"):
        if point.memory_bytes.get(name):
            return point.memory_bytes[name]
    return None
