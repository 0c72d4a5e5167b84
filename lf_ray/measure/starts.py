"""Which start of the workers a record comes from: groups of one sweep are not equally fast."""

from collections.abc import Iterable

from lf_ray.protocol import TrialRecord


class Starts:
    """Numbers starts as records come in, from 1. Each node has a group of its own."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float | None]] = {}
        self._count = 0

    @property
    def num_nodes(self) -> int:
        """Returns how many nodes the records so far came from."""
        return len(self._known)

    def number(self, record: TrialRecord) -> int:
        """Returns the start that the next record comes from.

        A new one where it paid for a start, or where the group says so: a group that was replaced
        between two requests has charged it to neither.
        """
        node = str(record.outcome.effective.get("node", ""))
        start, before = self._known.get(node, (0, None))
        incarnation = record.metrics.get("incarnation", before)
        paid = record.outcome.costs_s.get("restart", 0.0) > 0
        if not start or paid or (before is not None and incarnation != before):
            self._count += 1
            start = self._count
        self._known[node] = (start, incarnation)
        return start


def starts_of(records: Iterable[TrialRecord]) -> tuple[list[int], tuple[float, ...]]:
    """Returns each record's start, and the dates at which later starts than the first began.

    Starts of several nodes run side by side: then there are no such dates.
    """
    starts, numbers, borders_s = Starts(), list[int](), list[float]()
    for record in records:
        number = starts.number(record)
        date_s = record.clock_s.get("requested", record.clock_s.get("first_step", 0.0))
        if numbers and number != numbers[-1] and date_s > 0:
            borders_s.append(date_s)
        numbers.append(number)
    return numbers, tuple(borders_s) if starts.num_nodes == 1 else ()
