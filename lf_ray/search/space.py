"""What a sweep varies: knobs and their values, checked before any worker starts.

A SPACE literal in a sweep script is a dict of knob name to a list of values, or to a ladder that
is resolved when the baseline has told how many bytes are sent. Knows the knobs' conditions (which
knob does nothing unless another is set), not how points are proposed or run.
"""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from lf_ray.errors import ConfigError, four_parts, nearest
from lf_ray.protocol import ACTS_ONLY, KNOB_NAMES, Knobs, KnobValue, settled_knobs
from lf_ray.search.ladder import BatchLadder, BucketLadder
from lf_ray.settings import SweepConfig

Literal = Mapping[str, Sequence[KnobValue] | BucketLadder | BatchLadder]

BASELINE_ONLY: Literal = {}
"""The space of a sweep that visits the baseline alone; any other empty space is refused."""

_MOST_KEPT = 10_000

_RANGES: Mapping[str, tuple[float, float]] = {
    "overlap.bucket_size_mb": (1e-6, float("inf")),
    "overlap.ratio": (0, 1),
    "batch.per_gpu": (1, float("inf")),
    "batch.accumulation": (1, float("inf")),
    "data.workers": (0, float("inf")),
    "data.prefetch": (1, float("inf")),
    "data.decode_threads": (1, float("inf")),
    "nccl.max_ctas": (0, float("inf")),
}
_BLOCK_SIZES = re.compile(r"[a-z]+|\d+(\.\d+)?(-\d+(\.\d+)?)*")


@dataclass(frozen=True)
class Space:
    """Knobs and domains of one sweep.

    Attributes:
        baseline: every knob's present value; knobs outside the space keep it.
        choices: values of each varied knob, numbers rising; empty where only `ladders` knows.
        ladders: rules still to be resolved, by knob.
    """

    baseline: Mapping[str, KnobValue]
    choices: Mapping[str, tuple[KnobValue, ...]]
    ladders: Mapping[str, BucketLadder]

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the varied knobs in the order of the literal."""
        return tuple(self.choices)

    def resolved(self, gradient_bytes: int) -> "Space":
        """Returns the space with every ladder as values, the baseline's own value among them."""
        choices = dict(self.choices)
        for name, ladder in self.ladders.items():
            own = self.baseline[name]
            choices[name] = tuple(sorted({*ladder.values(gradient_bytes), own}, key=float))
        return Space(self.baseline, choices, {})

    def rebased(self, baseline: Knobs) -> "Space":
        """Returns the same space around another baseline."""
        return Space(dict(baseline), self.choices, self.ladders)

    def active(self, name: str, knobs: Knobs) -> bool:
        """Returns whether the knob can change anything at this point."""
        if name == "batch.lr_rule":
            return _global_batch(knobs) != _global_batch(self.baseline)
        if name not in ACTS_ONLY:
            return True
        other, value, _ = ACTS_ONLY[name]
        return knobs[other] == value

    def may_act(self, name: str) -> bool:
        """Returns whether the knob can change anything at some point of the space."""
        if name not in ACTS_ONLY:
            return True
        other, value, _ = ACTS_ONLY[name]
        return value in self.choices.get(other, (self.baseline.get(other),))

    def canonical(self, knobs: Knobs) -> dict[str, KnobValue]:
        """Returns every knob of the point, those that can't change anything as in the baseline."""
        full = settled_knobs({**self.baseline, **knobs})
        if "batch.lr_rule" in full and not self.active("batch.lr_rule", full):
            full["batch.lr_rule"] = self.baseline["batch.lr_rule"]
        return full

    def num_points(self) -> int:
        """Returns how many combinations the literal spans, conditions not regarded."""
        count = 1
        for values in self.choices.values():
            count *= len(values)
        return count

    def points(self) -> Iterator[dict[str, KnobValue]]:
        """Yields every distinct canonical point, in the order of the literal."""
        if self.num_points() > _MOST_KEPT:
            yield from self._distinct()
        else:
            yield from map(dict, self._listed)

    @cached_property
    def _listed(self) -> tuple[Knobs, ...]:
        return tuple(self._distinct())

    def _distinct(self) -> Iterator[dict[str, KnobValue]]:
        seen: set[str] = set()
        for values in itertools.product(*self.choices.values()):
            point = self.canonical(dict(zip(self.choices, values)))
            key = point_key(point)
            if key not in seen:
                seen.add(key)
                yield point

    def clipped(self, name: str, value: float) -> KnobValue:
        """Returns the knob's value nearest to `value`, on a log scale where it spans one."""
        numbers = [float(item) for item in self.choices[name]]
        if min(numbers) > 0:
            return min(numbers, key=lambda item: abs(_log(item) - _log(value)))
        return min(numbers, key=lambda item: abs(item - value))

    def to_plain(self) -> dict[str, list[KnobValue]]:
        """Returns the literal as JSON values, a ladder as a list that holds its rule in words."""
        return {
            name: [self.ladders[name].rule] if name in self.ladders else list(values)
            for name, values in self.choices.items()
        }

    @property
    def fingerprint(self) -> str:
        """Returns a short hash that changes when knobs, values or rules do."""
        text = json.dumps(self.to_plain(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def point_key(knobs: Knobs) -> str:
    """Returns the point as text that is equal for equal points (4 and 4.0 are)."""
    # Thousands of points are asked for before each draw: json.dumps takes four times as long.
    return "; ".join(
        [
            f"{name}={value}" if value.__class__ is str else f"{name}={float(value)}"
            for name, value in sorted(knobs.items())
        ]
    )


def space_from_literal(literal: Literal, baseline: Knobs) -> Space:
    """Returns the checked space.

    Raises:
        ConfigError: a name is no knob, or a value is not one that the knob takes.
    """
    if not literal and literal is not BASELINE_ONLY:
        raise _refusal("a space names at least one knob", "an empty space", "Add a knob.")
    choices: dict[str, tuple[KnobValue, ...]] = {}
    ladders: dict[str, BucketLadder] = {}
    for name, values in literal.items():
        if name not in KNOB_NAMES:
            raise _refusal(
                "every name is a knob", repr(name), f"Nearest: {nearest(name, KNOB_NAMES)}."
            )
        if isinstance(values, BucketLadder):
            ladders[name] = values
            choices[name] = ()
        elif isinstance(values, BatchLadder):
            choices[name] = _checked_values(name, values.values(int(baseline[name])))
        else:
            choices[name] = _checked_values(name, values)
    return Space(dict(baseline), choices, ladders)


def space_diff(
    old: Mapping[str, Sequence[KnobValue]], new: Mapping[str, Sequence[KnobValue]]
) -> list[str]:
    """Returns what changed between two spaces as `to_plain` wrote them, in words."""
    lines = []
    for name in [*old, *(item for item in new if item not in old)]:
        if name not in new:
            lines.append(f"{name} removed (choices were {_words(old[name])})")
        elif name not in old:
            lines.append(f"{name} added: choices {_words(new[name])}")
        elif list(old[name]) != list(new[name]):
            lines.append(f"{name} choices {_words(old[name])} -> {_words(new[name])}")
    return lines


def _words(values: Sequence[KnobValue]) -> str:
    return f"[{', '.join(str(value) for value in values)}]"


def _checked_values(name: str, values: Any) -> tuple[KnobValue, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise _refusal(f"{name} has a list of values", repr(values), f"Did you mean [{values!r}]?")
    if not values:
        raise _refusal(f"{name} has at least one value", "an empty list", "Add a value.")
    checked = [_checked_value(name, value) for value in values]
    if len(set(checked)) < len(checked):
        raise _refusal(f"{name} lists each value once", repr(list(values)), "Drop the repeats.")
    if all(isinstance(value, int | float) for value in checked):
        checked.sort(key=float)
    return tuple(checked)


def _checked_value(name: str, value: Any) -> KnobValue:
    group, key = name.split(".")
    default = getattr(getattr(SweepConfig(), group), key)
    if isinstance(value, list | tuple | dict | set):
        raise _refusal(
            f"a choice of {name} is one value", repr(value), "Write a list as a string: '64-128'."
        )
    if isinstance(default, Enum):
        words = [str(item.value) for item in type(default)]
        if value not in words:
            raise _refusal(f"{name} is one of {', '.join(words)}", repr(value), "Use these words.")
        return str(value)
    if isinstance(default, str):
        if not isinstance(value, str) or not _is_word(name, value):
            raise _refusal(
                f"{name} is a string such as 'none' or '1-2-4-8'", repr(value), "Write it so."
            )
        return value
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise _refusal(f"{name} is True or False", repr(value), "Write one of the two.")
        return value
    return _checked_number(name, default, value)


def _is_word(name: str, value: str) -> bool:
    return name != "memory.block_sizes" or _BLOCK_SIZES.fullmatch(value) is not None


def _checked_number(name: str, default: int | float, value: Any) -> KnobValue:
    whole = isinstance(default, int)
    kind = "a whole number" if whole else "a number"
    wanted = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise _refusal(f"{name} is {kind}", repr(value), f"Write {kind}.")
    low, high = _RANGES.get(name, (float("-inf"), float("inf")))
    if not low <= value <= high:
        raise _refusal(
            f"{name} is within [{low:g}, {high:g}]", repr(value), "Drop or change the value."
        )
    return value if whole else float(value)


def _global_batch(knobs: Knobs) -> int:
    return int(knobs["batch.per_gpu"]) * int(knobs["batch.accumulation"])


def _log(value: float) -> float:
    return math.log(max(value, 1e-12))


def _refusal(rule: str, got: str, change: str) -> ConfigError:
    return ConfigError(four_parts("reading the search space", rule, got, change))
