"""A finding about a data set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lf_ray.errors import DataError, four_parts

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, or only worth knowing.

    Attributes:
        message: in four parts: what was being done, the rule, what there is, what to change.
        is_fatal: whether it keeps the set from being trained on.
    """

    message: str
    is_fatal: bool = True


class Findings:
    """Collects problems while checks go on."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add(self, doing: str, rule: str, got: str, change: str) -> None:
        """Adds a problem that keeps the set from being trained on."""
        self.problems.append(Problem(four_parts(doing, rule, got, change)))

    def note(self, text: str) -> None:
        """Adds something worth knowing."""
        self.problems.append(Problem(text, is_fatal=False))

    def attempt(self, action: Callable[[], T]) -> T | None:
        """Returns what the action returns, or None after adding the error that it raised."""
        try:
            return action()
        except DataError as error:
            self.problems.append(Problem(str(error)))
            return None


def raise_problems(problems: Sequence[Problem]) -> None:
    """Raises what keeps the data from being trained on, all in one message.

    Raises:
        DataError: any problem is fatal.
    """
    fatal = [problem.message for problem in problems if problem.is_fatal]
    if fatal:
        raise DataError("\n".join(fatal))


def unwritable(cache_dir: Path, error: OSError) -> DataError:
    """Returns the error for a cache folder that the sample set can't be written into."""
    return DataError(
        four_parts(
            "rendering the sample data set",
            f"data.cache_dir {cache_dir} must be writable, with 10 MB free",
            f"{error.strerror}",
            "Set data.cache_dir to another folder.",
        )
    )


def listed(names: list[str], limit: int = 3) -> str:
    """Returns the first names and how many more there are."""
    head = ", ".join(names[:limit])
    return head if len(names) <= limit else f"{head} and {len(names) - limit} more"
