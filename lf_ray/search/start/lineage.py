"""Going on with a sweep: what must be the same, said in words where it is not."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lf_ray.record.history import SweepHistory
from lf_ray.search.space import Space, space_diff

# Settings that may change when a sweep goes on: how long, where to, and how it is shown.
_FREE = ("resume", "output", "tracking", "sweep.trials", "sweep.minutes", "sweep.new_lineage")


def resume_changes(history: SweepHistory, header: Mapping[str, Any], space: Space) -> list[str]:
    """Returns in words what differs from what the sweep began with; empty where nothing does."""
    began = history.header
    changes = space_diff(
        {name: list(values) for name, values in began.space.items()}, space.to_plain()
    )
    old, new = _flat(began.config), _flat(header["config"])
    for name in sorted(set(old) | set(new)):
        if name.startswith(_FREE) or old.get(name) == new.get(name):
            continue
        changes.append(f"{name} {old.get(name)} -> {new.get(name)}")
    for name, was, now in (
        ("data", began.data_id, header["data_id"]),
        ("code", began.versions.get("source"), header["versions"]["source"]),
        ("torch", began.versions.get("torch"), header["versions"].get("torch")),
        ("machine", began.machine.get("label"), header["machine"]["label"]),
    ):
        if was != now:
            changes.append(f"{name} {was} -> {now}")
    return changes


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def source_hash() -> str:
    """Returns a short hash of what decides a trial's result: our own Python files."""
    root = Path(__file__).resolve().parents[3]
    digest = hashlib.sha256()
    for folder in ("lf_ray", "models"):
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
