"""best.yaml and knee.yaml: a configuration to train with, and what it was found with.

The only file of lf_ray.analysis with YAML. What is written is plain nested data which
`lf_ray.compose` reads back with `--config`.
"""

from collections.abc import Mapping
from typing import Any

import yaml

from lf_ray.analysis.answer import Answer, device, num_ranks
from lf_ray.analysis.points import Point
from lf_ray.protocol import Knobs

# What belongs to a training run. Where it runs, and how the sweep went, is not carried over.
_CARRIED = ("trainer", "model", "data", "train", "loongforge")
_KNOB_GROUPS = ("batch", "overlap", "pipeline", "update", "graph", "memory", "nccl")


def found_config(
    answer: Answer, knobs: Knobs, kind: str, point: Point | None = None
) -> dict[str, Any]:
    """Returns the sweep's settings with `knobs` set, and the `found` block.

    Args:
        answer: of the sweep.
        knobs: every knob by its dotted name.
        kind: what the configuration is: "best", "knee", "goodput" ...
        point: the measurement of these knobs, where there is one.
    """
    config = answer.history.header.config
    nested = {
        group: dict(value) if isinstance(value, Mapping) else value
        for group, value in config.items()
        if group in _CARRIED + _KNOB_GROUPS
    }
    for name, value in knobs.items():
        group, key = name.split(".")
        nested.setdefault(group, {})[key] = value
    nested["found"] = _found(answer, kind, point)
    return nested


def config_text(nested: Mapping[str, Any]) -> str:
    """Returns a configuration as YAML, what it was found with in its first lines."""
    found = nested["found"]
    said = (
        f"# The {found['kind']} configuration of sweep {found['sweep']} {found['id']}.\n"
        f"# {_use(found)}\n"
    )
    text: str = yaml.safe_dump(dict(nested), sort_keys=False, allow_unicode=True)
    return said + text


def _use(found: Mapping[str, Any]) -> str:
    if found["sweep"] == "data":
        return "Nothing was trained here: give its data.* values to a sweep or to lf_ray.train."
    return f"Train with it: python -m lf_ray.train --config {found['kind']}.yaml"


def _found(answer: Answer, kind: str, point: Point | None) -> dict[str, Any]:
    header = answer.history.header
    rate = point.throughput if point else None
    return {
        "kind": kind,
        "verdict": str(answer.verdict),
        "sweep": header.name,
        "id": header.id,
        "trial": point.id if point else None,
        "model": header.config.get("model", {}).get("size"),
        "world_size": num_ranks(answer.history),
        "device": device(answer.history),
        "gpus": [str(name) for name in header.machine.get("gpus", ())],
        "machine": header.machine.get("label"),
        "data_id": header.data_id,
        "versions": dict(header.versions),
        "samples_per_step": point.samples_per_step if point else None,
        "throughput_samples_per_s": rate.to_json() if rate else None,
        "gain": answer.gain.to_json() if answer.gain and kind == "best" else None,
        "baseline_knobs": dict(header.baseline_knobs),
    }
