"""Checkpoint folders on disk: written whole or not at all, read tensor by tensor, K of them kept.

One safetensors file for each kind of tensor (masters, first and second moments, counters), so that
never more than a third of a checkpoint is in memory twice.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lf_ray.errors import CheckpointError, four_parts
from lf_ray.training.checkpoint.manifest import MANIFEST_NAME, Manifest

PARTIAL = ".partial"
_COUNTERS = "counters"
_PREFIX = "step-"


def checkpoint_name(step: int) -> str:
    """Returns the folder's name; names sort as steps do."""
    return f"{_PREFIX}{step:08d}"


def complete_checkpoints(parent: Path) -> list[Path]:
    """Returns the checkpoints that were written to their end, oldest first."""
    return sorted(
        path
        for path in parent.glob(f"{_PREFIX}*")
        if path.suffix != PARTIAL and (path / MANIFEST_NAME).is_file()
    )


def write_checkpoint(
    parent: Path, manifest: Manifest, state: Mapping[str, Tensor], keep: int
) -> Path:
    """Writes a checkpoint and removes those beyond the newest `keep`; returns its folder.

    The folder gets its name when everything in it is on the disk.
    """
    final = parent / checkpoint_name(manifest.step)
    partial = final.with_suffix(PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    shapes: dict[str, dict[str, list[int]]] = {}
    for kind, tensors in _by_kind(state).items():
        path = partial / f"{kind}.safetensors"
        save_file(tensors, path)
        _flush(path)
        shapes[kind] = {name: list(tensor.shape) for name, tensor in tensors.items()}
    text = json.dumps({**manifest.to_json(), "shapes": shapes}, indent=1)
    (partial / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")
    _flush(partial / MANIFEST_NAME)
    _flush(partial)
    if final.exists():
        _remove(final)
    partial.rename(final)
    _flush(parent)
    for old in complete_checkpoints(parent)[: -max(keep, 1)]:
        _remove(old)
    return final


def remove_partial(parent: Path) -> None:
    """Removes what a killed process left half written."""
    for path in parent.glob(f"{_PREFIX}*{PARTIAL}"):
        shutil.rmtree(path, ignore_errors=True)


class CheckpointState(Mapping[str, Tensor]):
    """The tensors of a checkpoint, each read when it is asked for.

    Raises:
        CheckpointError: a file is missing, cut off, or not what the manifest says.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._files: dict[str, Any] = {}
        self._kind_of: dict[str, str] = {}
        for kind, shapes in manifest.shapes.items():
            path = folder / f"{kind}.safetensors"
            try:
                self._files[kind] = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise self._damaged(f"{path.name}: {error}") from None
            if sorted(self._files[kind].keys()) != sorted(shapes):
                raise self._damaged(f"{path.name} with other tensors than its manifest names")
            self._kind_of |= dict.fromkeys(shapes, kind)

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._files[self._kind_of[name]].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._kind_of)

    def __len__(self) -> int:
        return len(self._kind_of)

    def _damaged(self, got: str) -> CheckpointError:
        return CheckpointError(
            four_parts(
                f"opening the checkpoint {self._folder}",
                "its files are whole",
                got,
                f"Remove the folder {self._folder.name}: the one before it is then gone on from.",
            )
        )


def _by_kind(state: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Returns the tensors by what stands before the first dot of their names."""
    kinds: dict[str, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        kind, dot, _ = name.partition(".")
        kinds.setdefault(kind if dot else _COUNTERS, {})[name] = tensor
    return kinds


def _remove(folder: Path) -> None:
    # Without its manifest a folder is no checkpoint: a kill in the middle leaves no half of one.
    (folder / MANIFEST_NAME).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _flush(path: Path) -> None:
    """Makes sure that a file, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
