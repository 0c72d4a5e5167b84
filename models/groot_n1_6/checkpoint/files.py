"""Reads and writes checkpoint files, header first, tensor by tensor. No pickle is ever executed."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from models.groot_n1_6.checkpoint.errors import CheckpointFormatError, four_parts

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
PICKLE_SUFFIXES = (".pt", ".pth", ".bin")
MAX_SHARD_BYTES = 5_000_000_000
POINTER_START = b"version https://git-lfs"


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor is and what its header says of it."""

    path: Path
    key: str
    shape: tuple[int, ...]
    dtype: str


class CheckpointReader:
    """The tensors of a checkpoint, by the key that the model knows them by.

    Opening reads headers only; a `.pt` file is mapped with torch's weights-only loader.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mapped: dict[str, Tensor] = {}
        if path.suffix in PICKLE_SUFFIXES and path.is_file():
            self._mapped = _load_plain_tensors(path)
            stored = {
                key: StoredTensor(path, key, tuple(tensor.shape), str(tensor.dtype))
                for key, tensor in self._mapped.items()
            }
        else:
            stored = _read_headers(path)
        self.stored = _without_wrapper(stored)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yields every tensor under its key, file by file."""
        by_file: dict[Path, list[str]] = {}
        for name, entry in self.stored.items():
            by_file.setdefault(entry.path, []).append(name)
        for path, names in by_file.items():
            if self._mapped:
                yield from ((name, self._mapped[self.stored[name].key]) for name in names)
                continue
            with _opened(path) as file:
                for name in names:
                    yield name, file.get_tensor(self.stored[name].key)


def read_document(folder: Path, name: str) -> dict[str, Any] | None:
    """Returns a JSON document of a checkpoint folder, None where it has none."""
    path = folder / name
    if not path.is_file():
        return None
    try:
        document = json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointFormatError(
            four_parts(
                f"reading {path}",
                "the file holds one JSON object",
                f"{error}",
                "Fetch the checkpoint again.",
            )
        ) from error
    return document if isinstance(document, dict) else None


def write_checkpoint(
    folder: Path,
    tensors: Mapping[str, Tensor],
    documents: Mapping[str, Any],
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Writes shards, then documents, then the index that makes the folder loadable."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX_NAME).unlink(missing_ok=True)
    shards = shard_keys(
        {key: _num_bytes(tensor) for key, tensor in tensors.items()}, max_shard_bytes
    )
    weight_map: dict[str, str] = {}
    for number, keys in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        partial = folder / f".{name}.partial"
        save_file({key: tensors[key].contiguous() for key in keys}, partial, {"format": "pt"})
        partial.replace(folder / name)
        weight_map.update(dict.fromkeys(keys, name))
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=2) + "\n")
    total = sum(_num_bytes(tensor) for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n")


def shard_keys(num_bytes: Mapping[str, int], max_shard_bytes: int) -> list[list[str]]:
    """Returns keys in order, cut into shards that stay within the limit where a tensor can."""
    shards: list[list[str]] = []
    room = 0
    for key, size in num_bytes.items():
        if not shards or size > room:
            shards.append([])
            room = max_shard_bytes
        shards[-1].append(key)
        room -= size
    return shards


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _read_headers(path: Path) -> dict[str, StoredTensor]:
    stored: dict[str, StoredTensor] = {}
    for file_path in _shard_paths(path):
        with _opened(file_path) as file:
            for key in file.keys():  # noqa: SIM118 (not a mapping)
                header = file.get_slice(key)
                shape = tuple(header.get_shape())
                stored[key] = StoredTensor(file_path, key, shape, str(header.get_dtype()))
    return stored


def _shard_paths(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    index = read_document(path, INDEX_NAME) if path.is_dir() else None
    if index is not None:
        names = sorted(set(index.get("weight_map", {}).values()))
        paths = [path / Path(name).name for name in names]
    else:
        paths = [path / SINGLE_NAME] if (path / SINGLE_NAME).is_file() else []
    absent = [file.name for file in paths if not file.is_file()]
    if paths and not absent:
        return paths
    raise CheckpointFormatError(
        four_parts(
            f"opening the checkpoint {path}",
            f"it is a safetensors file, or a folder with {SINGLE_NAME} or {INDEX_NAME} "
            "and all shards that this names",
            f"no {', '.join(absent)}" if absent else _describe(path),
            "Give the folder of the downloaded checkpoint, whole.",
        )
    )


def _describe(path: Path) -> str:
    if not path.exists():
        return "a path that does not exist"
    names = sorted(item.name for item in path.iterdir())
    return f"a folder with {', '.join(names[:8]) or 'nothing'}"


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        with path.open("rb") as raw:
            is_pointer = raw.read(len(POINTER_START)) == POINTER_START
        got = "a Git-LFS pointer instead of the file" if is_pointer else f"{error}"
        raise CheckpointFormatError(
            four_parts(
                f"reading {path}",
                "weights are whole safetensors files",
                got,
                "Run git lfs pull." if is_pointer else "Fetch the file again.",
            )
        ) from error


def _load_plain_tensors(path: Path) -> dict[str, Tensor]:
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # the loader's refusals share no class
        raise CheckpointFormatError(
            four_parts(
                f"reading {path}",
                "a pickled file is loaded only if it holds nothing but tensors",
                f"{type(error).__name__}",
                "Convert it to safetensors where you trust it.",
            )
        ) from error
    for wrapper in ("state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    if not isinstance(loaded, dict) or not all(
        isinstance(item, Tensor) for item in loaded.values()
    ):
        raise CheckpointFormatError(
            four_parts(
                f"reading {path}",
                "the file holds a dictionary from names to tensors",
                type(loaded).__name__,
                "Save the model's state_dict.",
            )
        )
    return loaded


def _without_wrapper(stored: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Drops a leading `model.` that some trainers add to every key."""
    if stored and all(key.startswith("model.") for key in stored):
        return {key.removeprefix("model."): entry for key, entry in stored.items()}
    return stored
