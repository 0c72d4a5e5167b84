"""Files of a data set: read whole and named in errors, or hashed."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lf_ray.errors import DataError, four_parts

_LFS_POINTER = b"version https://git-lfs"
_EDGE_BYTES = 64 * 1024


def require_file(path: Path, doing: str) -> Path:
    """Returns the path if a file with content is there.

    Raises:
        DataError: it is missing, empty, or the pointer that Git LFS leaves for a file which was
            not downloaded.
    """
    if not path.is_file():
        _refuse(doing, f"{path} must exist", "no such file", "Restore it, or download it again.")
    with path.open("rb") as file:
        head = file.read(len(_LFS_POINTER))
    if not head:
        _refuse(doing, f"{path} must have content", "an empty file", "Download it again.")
    if head == _LFS_POINTER:
        _refuse(
            doing,
            f"{path} must be the data itself",
            "a Git LFS pointer",
            "Run `git lfs pull` in the data set's folder.",
        )
    return path


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file.

    Raises:
        DataError: the file is missing, empty, an LFS pointer, or holds no JSON object.
    """
    doing = f"reading {path.name}"
    value = _parsed(path, doing, require_file(path, doing).read_text(errors="replace"))
    if not isinstance(value, dict):
        _refuse(doing, f"{path} must hold a JSON object", type(value).__name__, "Restore it.")
    return dict(value)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a file with one JSON object a line.

    Raises:
        DataError: the file is missing, empty, an LFS pointer, or a line is no JSON object.
    """
    doing = f"reading {path.name}"
    lines = require_file(path, doing).read_text(errors="replace").splitlines()
    values = [
        _parsed(path, f"{doing}, line {number}", line)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not values or not all(isinstance(value, dict) for value in values):
        _refuse(doing, f"{path} must hold a JSON object a line", "other lines", "Restore it.")
    return values


def entry(path: Path, values: dict[str, Any], key: str, kind: Callable[[Any], Any]) -> Any:
    """Returns `kind(values[key])`.

    Raises:
        DataError: the key is missing, or its value is not of that kind.
    """
    doing = f"reading {path.name}"
    if key not in values:
        _refuse(doing, f"{path} must have the key {key!r}", f"keys {sorted(values)}", "Add it.")
    try:
        return kind(values[key])
    except (TypeError, ValueError):
        rule = f"{key!r} in {path} must be of kind {kind.__name__}"
        return _refuse(doing, rule, repr(values[key]), "Correct it.")


def file_hash(path: Path) -> str:
    """Returns a hash of a file's size, start and end.

    Enough to tell recordings apart: a parquet file ends, and an mp4 starts or ends, with a table
    that lists the coded size of each of its parts.
    """
    digest = hashlib.blake2b(digest_size=16)
    num_bytes = path.stat().st_size
    digest.update(str(num_bytes).encode())
    with path.open("rb") as file:
        digest.update(file.read(_EDGE_BYTES))
        if num_bytes > _EDGE_BYTES:
            file.seek(max(_EDGE_BYTES, num_bytes - _EDGE_BYTES))
            digest.update(file.read(_EDGE_BYTES))
    return digest.hexdigest()


def listing_hash(paths: Iterable[Path]) -> str:
    """Returns a hash of names, sizes and times of change: quick, and different for a copy."""
    parts = []
    for path in paths:
        status = path.stat()
        parts.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    return joined_hash(parts)


def remembered(path: Path, compute: Callable[[], Any]) -> Any:
    """Returns the JSON value kept in a file, computing and keeping it where there is none.

    A folder that can't be written costs the keeping, nothing else.
    """
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        value = compute()
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps(value))
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
    return value


def joined_hash(parts: Iterable[str]) -> str:
    """Returns one short hash of several strings, order included."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _parsed(path: Path, doing: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        return _refuse(doing, f"{path} must be valid JSON", str(error), "Restore or correct it.")


def _refuse(doing: str, rule: str, got: str, change: str) -> Any:
    raise DataError(four_parts(doing, rule, got, change))
