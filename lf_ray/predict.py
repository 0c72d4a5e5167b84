"""Gives a trained model's actions for one observation of a data set.

    python -m lf_ray.predict model.weights=outputs/train/ID --episode 3 --frame 120
    python -m lf_ray.predict --config best.yaml model.weights=EXPORT data.path=DIR

`model.weights` is a training's result folder, its export, one of its checkpoints, or any folder in
the public layout. Beside the actions stand the recorded ones. The last line is JSON: `actions` by
the group names of modality.json, each [horizon][width] in the robot's own units.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lf_ray.compose import compose
from lf_ray.data.batches.training_set import TrainingSet
from lf_ray.data.check import check_dataset, raise_problems
from lf_ray.data.lerobot.group_statistics import group_slices
from lf_ray.errors import ConfigError, LfRayError, four_parts
from lf_ray.machine import Machine, detect
from lf_ray.settings import SweepConfig

EXIT_REFUSED = 2


def main(argv: Sequence[str] | None = None, machine: Machine | None = None) -> int:
    """Runs the command line; returns 0, or 2 where it was refused."""
    options = _parser().parse_args(argv)
    try:
        config = _composed(options.overrides, options.config, machine or detect())
        answer = _predicted(config, options)
    except LfRayError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_REFUSED
    sys.stdout.write("\n".join([*_table(answer), json.dumps(answer)]) + "\n")
    return 0


def _composed(words: Sequence[str], config_path: str | None, machine: Machine) -> SweepConfig:
    """Returns the settings; without --config those of the training that the weights come from."""
    from lf_ray.training.actions.weights import config_beside

    given = [f"--config={config_path}", *words] if config_path else list(words)
    config = compose("predict", given, machine)
    if config.model.weights is None:
        raise ConfigError(
            four_parts(
                "choosing what acts",
                "model.weights names trained weights",
                "none",
                "Give model.weights=outputs/train/ID, an export, or a checkpoint.",
            )
        )
    beside = None if config_path else config_beside(config.model.weights)
    if beside is not None:
        config = compose("predict", [f"--config={beside}", *words], machine)
    if config.data.source == "synthetic":
        raise ConfigError(
            four_parts(
                "choosing an observation",
                "it is a frame of a data set",
                "data=synthetic",
                "Give data.path=DIR, or data=sample.",
            )
        )
    raise_problems(check_dataset(config.data, config.model))
    return config


def _predicted(config: SweepConfig, options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from lf_ray.training.actions.export import scale_as_trained
    from lf_ray.training.actions.observation import open_whole, read_batch, sampled_actions
    from lf_ray.training.actions.weights import acting_model, find_weights

    source = open_whole(config)
    try:
        sample = _sample(source, options)
        part = source.parts[options.dataset]
        place = find_weights(str(config.model.weights)).path
        as_trained = scale_as_trained(source, options.dataset, place)
        device = torch.device(config.cluster.device)
        model = acting_model(config, [part.embodiment.slot], device)
        batch = read_batch(source, options.dataset, [sample])
        own_BTA = sampled_actions(model, batch, config.sweep.seed).numpy()
        rows_B = part.dataset.rows_of(np.array([sample]))
        recorded_BTA = part.dataset.actions(rows_B)
        horizon, width = recorded_BTA.shape[1:]
        own_BTA = own_BTA[:, :horizon, :width]
        slices = group_slices(part.dataset.modality.action)
        raw, recorded = (
            part.dataset.raw_actions(values_BTA, rows_B)[0]
            for values_BTA in (own_BTA, recorded_BTA)
        )
        return {
            "weights": config.model.weights,
            "data": str(part.dataset.meta.root),
            "embodiment": part.embodiment.tag,
            "scaled_by": "the weights' statistics" if as_trained else "the data's statistics",
            "episode": options.episode,
            "frame": options.frame,
            "task": part.dataset.meta.tasks.get(int(part.dataset.columns.task[rows_B[0]]), ""),
            "actions": {name: raw[:, cut].tolist() for name, cut in slices.items()},
            "recorded": {name: recorded[:, cut].tolist() for name, cut in slices.items()},
            "mae": {
                name: float(np.abs(raw[:, cut] - recorded[:, cut]).mean())
                for name, cut in slices.items()
            },
            "mae_normalised": float(np.abs(own_BTA - recorded_BTA).mean()),
        }
    finally:
        source.close()


def _sample(source: TrainingSet, options: argparse.Namespace) -> int:
    """Returns the sample that starts at a frame of an episode."""
    _within("--dataset", options.dataset, len(source.parts), "data sets in data.path")
    dataset = source.parts[int(options.dataset)].dataset
    _within("--episode", options.episode, len(dataset.meta.episodes), "episodes")
    samples = dataset.samples_of(int(options.episode))
    horizon = dataset.modality.horizon
    _within("--frame", options.frame, len(samples), f"frames with {horizon} recorded actions ahead")
    return samples[int(options.frame)]


def _within(option: str, value: int, count: int, what: str) -> None:
    if not 0 <= value < count:
        raise ConfigError(
            four_parts(
                "choosing an observation",
                f"there are {count} {what}",
                f"{option} {value}",
                f"Give {option} from 0 to {max(count - 1, 0)}.",
            )
        )


def _table(answer: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{answer['embodiment']}, episode {answer['episode']}, frame {answer['frame']}: "
        f"{answer['task']}",
        f"{'group':<20} {'first step':<40} {'recorded':<40} MAE over the horizon",
    ]
    for name, rows in answer["actions"].items():
        first, recorded = (_numbers(item[0]) for item in (rows, answer["recorded"][name]))
        lines.append(f"{name:<20} {first:<40} {recorded:<40} {answer['mae'][name]:.4g}")
    return [
        *lines,
        f"normalised MAE {answer['mae_normalised']:.4g}, scaled by {answer['scaled_by']}",
    ]


def _numbers(values: Sequence[float], limit: int = 4) -> str:
    shown = " ".join(f"{value:.3g}" for value in values[:limit])
    return shown if len(values) <= limit else f"{shown} ..."


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lf_ray.predict",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Overrides are group=option and key=value, as for lf_ray.train. Seed of the noise: "
        "sweep.seed.\nExit codes: 0, or 2 where it was refused.",
    )
    parser.add_argument("overrides", nargs="*", help="group=option or key=value")
    parser.add_argument("--config", help="a best.yaml, or the config.yaml of a training")
    parser.add_argument("--dataset", type=int, default=0, help="number of the path in data.path")
    parser.add_argument("--episode", type=int, default=0, help="from 0, in the meta folder's order")
    parser.add_argument("--frame", type=int, default=0, help="from 0, in the episode")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
