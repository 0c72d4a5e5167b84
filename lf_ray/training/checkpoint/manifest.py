"""What a checkpoint says of itself: where the training stood, and what it must be gone on with.

No torch: the driver reads manifests before any worker starts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lf_ray.errors import CheckpointError, RecordError, four_parts
from lf_ray.protocol import KnobValue, Wire
from lf_ray.settings import SweepConfig, plain

FORMAT = 1
MANIFEST_NAME = "checkpoint.json"
EMBODIMENTS = "embodiment slots"

# What the numbers of the next steps follow from. Where and how fast it is computed is left free.
_IDENTITY: Mapping[str, Sequence[str]] = {
    "model": (
        "size",
        "image_px",
        "tune_llm",
        "tune_visual",
        "tune_top_llm_layers",
        "tune_projector",
        "tune_diffusion_model",
        "tune_vlln",
        "state_dropout_prob",
    ),
    "data": ("source", "weights", "embodiment", "order", "skip_corrupt", "holdout_episodes"),
    "train": (
        "lr",
        "base_global_batch",
        "weight_decay",
        "beta1",
        "beta2",
        "eps",
        "clip_norm",
        "warmup_ratio",
        "max_steps",
        "max_samples",
    ),
    "batch": ("per_gpu", "accumulation", "lr_rule"),
    "sweep": ("seed",),
    "cluster": ("workers",),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest(Wire):
    """A checkpoint in words and numbers.

    Attributes:
        step: steps that are done; the next one has this number.
        samples: that were trained on, over all ranks: where the data goes on.
        lr: of the last step.
        identity: what must be the same when the training goes on, by name.
        shapes: of every tensor, by file and name.
        config: the training's settings, nested and plain.
        versions: of the packages that it was saved with.
    """

    step: int
    samples: int
    lr: float
    identity: Mapping[str, Any]
    shapes: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT


def identity_of(
    config: SweepConfig, data_id: str, weights_id: str, slots: Sequence[int] = ()
) -> dict[str, KnobValue | None]:
    """Returns what a training's numbers follow from, by dotted name.

    Args:
        config: resolved.
        data_id: hash of the data's content.
        weights_id: hash of the weights that it starts from; empty for random ones.
        slots: of the embodiments in the data.
    """
    found = {
        f"{group}.{name}": _flat(plain(getattr(getattr(config, group), name)))
        for group, names in _IDENTITY.items()
        for name in names
    }
    embodiments = ",".join(map(str, slots))
    return {**found, "data": data_id, "model.weights": weights_id, EMBODIMENTS: embodiments}


def differences(saved: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Returns in words what differs between two identities."""
    return [
        f"{name} {saved.get(name)} -> {here.get(name)}"
        for name in sorted({*saved, *here})
        if saved.get(name) != here.get(name)
    ]


def read_manifest(folder: Path) -> Manifest:
    """Returns what a checkpoint folder says of itself.

    Raises:
        CheckpointError: it is none, damaged, or of another format.
    """
    path = folder / MANIFEST_NAME
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _refusal(folder, f"{type(error).__name__}: {error}") from None
    found = values.get("format") if isinstance(values, dict) else type(values).__name__
    if found != FORMAT:
        raise _refusal(folder, f"format {found}")
    try:
        return Manifest.from_json(values)
    except RecordError as error:
        raise _refusal(folder, str(error)) from None


def check_identity(folder: Path, manifest: Manifest, here: Mapping[str, Any]) -> None:
    """Refuses a checkpoint of another training.

    Raises:
        CheckpointError: naming what differs.
    """
    changed = differences(manifest.identity, here)
    if changed:
        raise CheckpointError(
            four_parts(
                f"going on from {folder}",
                "model, data, recipe, batch, seed and number of ranks must be those it began with",
                "; ".join(changed),
                "Resume with the same settings, or begin a new training with "
                "model.weights=<the export of the old one>.",
            )
        )


def _refusal(folder: Path, got: str) -> CheckpointError:
    return CheckpointError(
        four_parts(
            f"reading the checkpoint {folder}",
            f"a training checkpoint is a folder with a {MANIFEST_NAME} of format {FORMAT}",
            got,
            "Give another checkpoint, or resume with the version of lf-ray that wrote it.",
        )
    )


def _flat(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list) else value
