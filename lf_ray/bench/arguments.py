"""What benchmarks are asked for and what they end with: checked words, one line of JSON."""

import argparse
import json
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from lf_ray.record.journal import plain_json


def whole(least: int) -> Callable[[str], int]:
    """Returns a reader of a whole number, for argparse, which refuses anything below `least`."""

    def read(text: str) -> int:
        return int(_number(text, least, int))

    return read


def wholes(least: int) -> Callable[[str], tuple[int, ...]]:
    """Returns a reader of whole numbers as 1,2,4, none of them below `least`."""

    def read(text: str) -> tuple[int, ...]:
        return tuple(int(_number(part, least, int)) for part in text.split(","))

    return read


def number(least: float) -> Callable[[str], float]:
    """Returns a reader of a number that refuses anything below `least`."""

    def read(text: str) -> float:
        return _number(text, least, float)

    return read


def numbers(least: float, most: float = math.inf) -> Callable[[str], tuple[float, ...]]:
    """Returns a reader of numbers as 0,0.5,1, all of them from `least` to `most`."""

    def read(text: str) -> tuple[float, ...]:
        return tuple(_number(part, least, float, most) for part in text.split(","))

    return read


def words_of(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Returns a reader of words as fp32,bf16, each of them one of `known`."""

    def read(text: str) -> tuple[str, ...]:
        words = tuple(text.split(","))
        unknown = [word for word in words if word not in known]
        if unknown:
            said = f"must be of {', '.join(known)}, but got {', '.join(map(repr, unknown))}"
            raise argparse.ArgumentTypeError(said)
        return words

    return read


def json_line(values: Mapping[str, Any]) -> str:
    """Returns the last line of a benchmark; a number that JSON has none for becomes its word."""
    return json.dumps(plain_json(values), allow_nan=False) + "\n"


def _number(
    text: str, least: float, kind: type[int] | type[float], most: float = math.inf
) -> float:
    try:
        value = kind(text)
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise argparse.ArgumentTypeError(f"takes {what}, but got {text!r}") from None
    if not least <= value <= most or math.isinf(value):
        span = f"from {least:g} to {most:g}" if most < math.inf else f"{least:g} or more"
        raise argparse.ArgumentTypeError(f"must be {span}, but got {text}")
    return value
