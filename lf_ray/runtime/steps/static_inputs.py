"""Inputs of a captured step: fixed tensors that every replay copies into, and refuses others."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lf_ray.errors import CaptureError
from lf_ray.runtime.steps.diagnosis import MISMATCH, capture_error


class StaticInputs:
    """A copy of an input (a tensor, or a dict, list or tuple of inputs) at fixed addresses.

    Args:
        example: shapes, dtypes and devices are its; what is no tensor is constant.
    """

    def __init__(self, example: Any) -> None:
        self._tensors = {
            name: tensor.detach().clone() for name, tensor in named_tensors(example).items()
        }
        self._constants = _constants(example)
        self.value = _rebuilt(example, "input", self._tensors)

    @property
    def shapes(self) -> tuple[tuple[str, tuple[int, ...], torch.dtype], ...]:
        """Returns what tells one captured shape from another."""
        return shapes_of(self._tensors)

    def refuse(self, given: Any) -> None:
        """Raises unless an input has the captured names, shapes, dtypes and constants.

        Raises:
            CaptureError: naming each input that differs, expected and actual.
        """
        tensors = named_tensors(given)
        problems = [
            f"{name}: expected {_words(expected)}, got {_words(tensors.get(name))}"
            for name, expected in self._tensors.items()
            if _words(tensors.get(name)) != _words(expected)
        ]
        problems += [f"{name}: not captured" for name in tensors if name not in self._tensors]
        problems += [
            f"{name}: expected {expected!r}, got {_constants(given).get(name)!r}"
            for name, expected in self._constants.items()
            if _constants(given).get(name) != expected
        ]
        if problems:
            raise self._mismatch(problems)

    @torch.no_grad()
    def copy_from(self, given: Any) -> None:
        """Copies an input of the captured shapes into the fixed tensors."""
        self.refuse(given)
        for name, tensor in named_tensors(given).items():
            self._tensors[name].copy_(tensor, non_blocking=True)

    def _mismatch(self, problems: Sequence[str]) -> CaptureError:
        return capture_error(MISMATCH, "; ".join(problems), "")


def shapes_of(
    tensors: Mapping[str, Tensor],
) -> tuple[tuple[str, tuple[int, ...], torch.dtype], ...]:
    """Returns names, shapes and dtypes."""
    return tuple((name, tuple(item.shape), item.dtype) for name, item in tensors.items())


def named_tensors(value: Any, name: str = "input") -> dict[str, Tensor]:
    """Returns all tensors of an input by their place in it: input, input.key, input.0 ..."""
    if isinstance(value, Tensor):
        return {name: value}
    return {
        inner: tensor
        for key, item in _items(value)
        for inner, tensor in named_tensors(item, f"{name}.{key}").items()
    }


def _constants(value: Any, name: str = "input") -> dict[str, Any]:
    if isinstance(value, Tensor):
        return {}
    items = _items(value)
    if not items and not isinstance(value, Mapping | list | tuple):
        return {name: value}
    return {
        inner: constant
        for key, item in items
        for inner, constant in _constants(item, f"{name}.{key}").items()
    }


def _items(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    return []


def _rebuilt(value: Any, name: str, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return tensors[name]
    if isinstance(value, Mapping):
        return {key: _rebuilt(item, f"{name}.{key}", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_rebuilt(item, f"{name}.{index}", tensors) for index, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    return value


def _words(tensor: Tensor | None) -> str:
    if tensor is None:
        return "nothing"
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
