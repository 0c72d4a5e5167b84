"""Loads and saves weights in the public layout, and says what a checkpoint is.

    python -m models.groot_n1_6.weights keys [nano|3b]   one line a key; nothing is allocated
    python -m models.groot_n1_6.weights check PATH       is it loadable, and if not, why
    python -m models.groot_n1_6.weights check PATH data.path=DIR    and does it know this data

Loading is strict: every missing, unknown and misshapen key is in one message. What is loaded keeps
the dtype that the model was built with; what is saved is bfloat16, as the public files are.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.groot_n1_6.checkpoint.errors import CheckpointFormatError, four_parts
from models.groot_n1_6.checkpoint.files import CheckpointReader, read_document, write_checkpoint
from models.groot_n1_6.checkpoint.verdict import Verdict, judge
from models.groot_n1_6.config import GrootConfig, TuneFlags
from models.groot_n1_6.model import GrootN16, build

SIZES = ("nano", "3b")
EMBED_KEY = "backbone.model.language_model.model.embed_tokens.weight"
HEAD_KEY = "backbone.model.language_model.lm_head.weight"


def checkpoint_shapes(config: GrootConfig) -> dict[str, tuple[int, ...]]:
    """Returns every key of a checkpoint with its shape, in the model's order."""
    model = build(config, device="meta")
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def cast_parameters(model: GrootN16, *, frozen: torch.dtype, trainable: torch.dtype) -> None:
    """Gives frozen and trainable parameters their dtypes, in place."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(trainable if parameter.requires_grad else frozen)


@torch.no_grad()
def load_weights(model: GrootN16, path: Path | str) -> None:
    """Fills the model from a checkpoint folder or file.

    Raises:
        CheckpointFormatError: with everything that does not fit; the model is then untouched.
    """
    path = Path(path)
    reader = CheckpointReader(path)
    document = read_document(path, "config.json") if path.is_dir() else None
    verdict = judge(reader.stored, checkpoint_shapes(model.config), model.config, document)
    if not verdict.loadable:
        raise CheckpointFormatError(_refusal(path, model.config, verdict))
    parameters = dict(model.named_parameters())
    layers = model.category_layers()
    for name, tensor in reader.tensors():
        owner, _, key = name.rpartition(".")
        if owner in layers:
            layers[owner].set_table(key, tensor)
        else:
            parameters[name].copy_(tensor)
    if HEAD_KEY not in reader.stored:
        parameters[HEAD_KEY].copy_(parameters[EMBED_KEY])


def export_tensors(
    model: GrootN16, masters: Mapping[str, Tensor] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yields every key with its bfloat16 values on the host.

    `masters` are the trained values by parameter name, where the caller keeps them apart.
    """
    masters = masters or {}
    layers = model.category_layers()
    for name, parameter in model.named_parameters():
        value = masters.get(name, parameter).detach()
        owner, _, key = name.rpartition(".")
        if owner in layers:
            value = layers[owner].table(key, value)
        yield name, value.to(device="cpu", dtype=torch.bfloat16)


def save_weights(
    model: GrootN16,
    folder: Path | str,
    *,
    documents: Mapping[str, Any] | None = None,
    masters: Mapping[str, Tensor] | None = None,
) -> None:
    """Writes the model as a folder in the public layout.

    `documents` replaces or adds JSON files by name: a run that started from a checkpoint passes on
    that one's config.json and processor_config.json, and its own statistics.json.
    """
    contents = {**default_documents(model.config), **(documents or {})}
    write_checkpoint(Path(folder), dict(export_tensors(model, masters)), contents)


def default_documents(config: GrootConfig) -> dict[str, Any]:
    """Returns the JSON files of a folder that has no model of its own to follow."""
    return {
        "config.json": {
            "model_type": "Gr00tN1d6",
            "architectures": ["Gr00tN1d6"],
            "model_name": "nvidia/Eagle-Block2A-2B-v2",
            "size": config.size,
            "select_layer": config.language.num_layers,
            "hidden_size": config.hidden_width,
            "input_embedding_dim": config.dit.width,
            "backbone_embedding_dim": config.language.width,
            "action_horizon": config.action_horizon,
            "max_state_dim": config.max_state_dim,
            "max_action_dim": config.max_action_dim,
            "max_num_embodiments": config.num_slots,
            "max_seq_len": config.dit.max_positions,
            "num_timestep_buckets": config.num_time_buckets,
            "state_dropout_prob": config.state_dropout_prob,
        },
        "processor_config.json": {
            "processor_class": "Gr00tN1d6Processor",
            "processor_kwargs": {
                "shortest_image_edge": config.shortest_edge_px,
                "crop_fraction": config.crop_frac,
                "formalize_language": True,
                "max_state_dim": config.max_state_dim,
                "max_action_dim": config.max_action_dim,
                "max_action_horizon": config.action_horizon,
                "use_albumentations": True,
            },
        },
        "statistics.json": {},
        "embodiment_id.json": dict(config.slots),
    }


def check_checkpoint(path: Path | str) -> tuple[str, Verdict]:
    """Returns the size that a checkpoint is nearest to and what keeps it from being that.

    Raises:
        CheckpointFormatError: there is nothing to read.
    """
    path = Path(path)
    reader = CheckpointReader(path)
    document = read_document(path, "config.json") if path.is_dir() else None
    verdicts = {}
    for size in SIZES:
        config = GrootConfig.of_size(size)
        verdicts[size] = judge(reader.stored, checkpoint_shapes(config), config, document)
    nearest = min(verdicts, key=lambda size: verdicts[size].num_problems)
    return nearest, verdicts[nearest]


def key_lines(size: str, tune: TuneFlags | None = None) -> Iterator[str]:
    """Yields name, shape, dtype in the file and whether it learns, a line a key."""
    model = build(GrootConfig.of_size(size), tune=tune, device="meta")
    for name, parameter in model.named_parameters():
        shape = ",".join(str(side) for side in parameter.shape)
        yield f"{name} [{shape}] bfloat16 {'trainable' if parameter.requires_grad else 'frozen'}"


def _refusal(path: Path, config: GrootConfig, verdict: Verdict) -> str:
    change = "Give a GR00T N1.6 checkpoint"
    if verdict.version is None:
        change += f" of size {config.size}, or set model.size to the one that this is"
    return four_parts(
        f"loading weights from {path}",
        f"a checkpoint holds the {config.size} model's keys and shapes, no more and no less",
        verdict.describe(),
        f"{change}.",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m models.groot_n1_6.weights",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    keys = commands.add_parser(
        "keys",
        help="print name, shape, dtype and trainable of every key",
        epilog="example: python -m models.groot_n1_6.weights keys 3b",
    )
    keys.add_argument("size", nargs="?", default="3b", choices=SIZES)
    check = commands.add_parser(
        "check",
        help="say whether a checkpoint is loadable",
        epilog="example: python -m models.groot_n1_6.weights check GR00T-N1.6-3B data.path=DIR",
    )
    check.add_argument("path", type=Path)
    check.add_argument(
        "settings", nargs="*", help="data.path=DIR and what goes with it: run one batch, too"
    )
    chosen = parser.parse_args(arguments)
    if chosen.command == "keys":
        return _print_lines(key_lines(chosen.size))
    return _run_check(chosen.path, chosen.settings)


def _print_lines(lines: Iterator[str]) -> int:
    try:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def batch_check_command(path: Path, size: str, settings: Sequence[str]) -> list[str]:
    """Returns the command that compares a checkpoint's loss on data with that of random weights.

    It is the trainer's own, which knows data sets; this package does not.
    """
    command = [sys.executable, "-m", "lf_ray.train", "--check-weights", str(path)]
    given = {word.partition("=")[0] for word in settings}
    return [*command, *([] if "model" in given else [f"model={size}"]), *settings]


def _run_check(path: Path, settings: Sequence[str]) -> int:
    try:
        size, verdict = check_checkpoint(path)
    except CheckpointFormatError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if not verdict.loadable:
        sys.stderr.write(_refusal(path, GrootConfig.of_size(size), verdict) + "\n")
        return 2
    sys.stdout.write(f"{path} is a loadable GR00T N1.6 checkpoint of size {size}\n")
    sys.stdout.flush()
    if not settings:
        return 0
    return subprocess.run(batch_check_command(path, size, settings), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
