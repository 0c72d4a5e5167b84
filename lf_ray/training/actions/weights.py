"""Finds weights where people point at, and builds the model that acts with them.

A place may be a folder in the public layout, a file, a training checkpoint (fp32 masters), or the
result folder of a training.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lf_ray.compose import from_nested
from lf_ray.data.files import file_hash, joined_hash
from lf_ray.errors import CheckpointError, four_parts
from lf_ray.runtime.groot import build_groot
from lf_ray.settings import ModelSettings, SweepConfig
from lf_ray.training.checkpoint.folder import CheckpointState, complete_checkpoints
from lf_ray.training.checkpoint.manifest import EMBODIMENTS, MANIFEST_NAME, read_manifest
from models.groot_n1_6.checkpoint.errors import CheckpointFormatError
from models.groot_n1_6.weights import check_checkpoint

CONFIG_NAME = "config.yaml"
_DOING = "loading weights to act with"


@dataclass(frozen=True, slots=True)
class FoundWeights:
    """What a place holds.

    Attributes:
        path: in the public layout, or the checkpoint.
        is_checkpoint: a training checkpoint.
    """

    path: Path
    is_checkpoint: bool = False


def find_weights(place: str) -> FoundWeights:
    """Returns what lies at a place: a result folder gives its export, else its last checkpoint."""
    path = Path(place).expanduser()
    if (path / MANIFEST_NAME).is_file():
        return FoundWeights(path, is_checkpoint=True)
    if (path / "export").is_dir():
        return FoundWeights(path / "export")
    kept = complete_checkpoints(path / "checkpoints")
    return FoundWeights(kept[-1], is_checkpoint=True) if kept else FoundWeights(path)


def config_beside(place: str) -> Path | None:
    """Returns the configuration of the training that weights came from, where it lies by."""
    path = Path(place).expanduser()
    candidates = [folder / CONFIG_NAME for folder in (path, *path.parents[:2])]
    return next((item for item in candidates if item.is_file()), None)


def check_weights(settings: ModelSettings) -> str:
    """Refuses weights that a training can't start from; returns a hash of them, "" for random.

    Only headers are read.

    Raises:
        CheckpointError: with everything that does not fit.
    """
    if settings.weights is None:
        return ""
    path = Path(settings.weights).expanduser()
    if (path / MANIFEST_NAME).is_file():
        raise CheckpointError(
            four_parts(
                "starting from model.weights",
                "it is a folder in the public layout",
                f"the training checkpoint {path}",
                "Go on with that training by resume=<id>, or give its export folder.",
            )
        )
    try:
        size, verdict = check_checkpoint(path)
    except CheckpointFormatError as error:
        raise CheckpointError(str(error)) from None
    if size != settings.size or not verdict.loadable:
        raise CheckpointError(
            four_parts(
                f"starting from {path}",
                f"it holds a GR00T N1.6 of size {settings.size}, no more and no less",
                verdict.describe() or f"one of size {size}",
                f"Give weights of that size, or model={size}.",
            )
        )
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    return joined_hash(file_hash(file) for file in files)


def acting_model(config: SweepConfig, slots: list[int], device: torch.device) -> Any:
    """Returns the model in evaluation mode with the weights that `model.weights` leads to.

    Args:
        config: its model settings are overruled by those that a training checkpoint was saved with.
        slots: embodiments that are to act.
        device: where to.

    Raises:
        CheckpointError: there are no such weights, or they don't fit.
    """
    settings = config.model
    if settings.weights is None:
        model = build_groot(config, slots, device)
        return model.eval()
    found = find_weights(settings.weights)
    if not found.is_checkpoint:
        public = replace(config, model=replace(settings, weights=str(found.path)))
        return build_groot(public, slots, device).eval()
    return _from_checkpoint(found.path, slots, device)


@torch.no_grad()
def _from_checkpoint(folder: Path, slots: list[int], device: torch.device) -> Any:
    manifest = read_manifest(folder)
    words = [word for word in str(manifest.identity.get(EMBODIMENTS, "")).split(",") if word]
    trained = [int(word) for word in words] or slots
    if not set(slots) <= set(trained):
        raise _refusal(folder, f"embodiment slots {trained} were trained", f"data of slots {slots}")
    # The frozen part is what the training began with: its weights, or its seed's random ones.
    model = build_groot(from_nested(dict(manifest.config)), trained, device)
    parameters = dict(model.named_parameters())
    state = CheckpointState(folder, manifest)
    for name in (key for key in state if key.startswith("master.")):
        parameter, master = parameters.get(name.removeprefix("master.")), state[name]
        if parameter is None or parameter.shape != master.shape:
            shape = "no such tensor" if parameter is None else f"shape {list(parameter.shape)}"
            raise _refusal(folder, f"{name} has shape {list(master.shape)}", f"{shape} here")
        parameter.copy_(master)
    return model.eval()


def _refusal(folder: Path, rule: str, got: str) -> CheckpointError:
    change = "Give the export of that training, or data of its embodiment."
    return CheckpointError(four_parts(f"{_DOING} from {folder}", rule, got, change))
