"""How much disk a training needs, asked before it begins."""

import shutil
from collections.abc import Callable
from pathlib import Path

from lf_ray.errors import MachineError, four_parts
from lf_ray.runtime.groot import sized, tune_flags
from lf_ray.settings import ModelSettings
from models.groot_n1_6.model import build

# fp32 masters and two moments; weights in an export are bf16.
STATE_BYTES_PER_VALUE = 12
EXPORT_BYTES_PER_VALUE = 2


def value_counts(settings: ModelSettings, num_active_slots: int = 1) -> tuple[int, int]:
    """Returns how many values are trained and how many an export holds; nothing is allocated.

    Args:
        settings: of the model.
        num_active_slots: embodiments in the data; the others' weights are not trained.
    """
    model = build(sized(settings), tune=tune_flags(settings), device="meta")
    layers = model.category_layers()
    trained = total = 0
    for name, parameter in model.named_parameters():
        total += parameter.numel()
        if parameter.requires_grad:
            is_sliced = name.rpartition(".")[0] in layers
            num_slots = parameter.shape[0] if is_sliced else 1
            trained += parameter.numel() * (num_active_slots if is_sliced else 1) // num_slots
    return trained, total


def needed_bytes(num_trained: int, num_exported: int, keep: int) -> int:
    """Returns the disk that kept checkpoints, the one being written and the export take."""
    checkpoints = (max(keep, 1) + 1) * num_trained * STATE_BYTES_PER_VALUE
    return checkpoints + num_exported * EXPORT_BYTES_PER_VALUE


def check_room(
    folder: Path,
    counts: tuple[int, int],
    keep: int,
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> int:
    """Returns the bytes that will be needed; the folder is there.

    Raises:
        MachineError: the disk has not that much free.
    """
    needed, free = needed_bytes(*counts, keep), free_bytes(folder)
    if free < needed:
        one = counts[0] * STATE_BYTES_PER_VALUE
        raise MachineError(
            four_parts(
                "making room for checkpoints",
                f"{max(keep, 1)} kept, one being written ({one / 1e9:.1f} GB each) and the export "
                f"need {needed / 1e9:.1f} GB",
                f"{free / 1e9:.1f} GB free in {folder}",
                "Give output.dir on a larger disk, or train.keep=1.",
            )
        )
    return needed
