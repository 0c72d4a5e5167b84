"""How far a model's actions are from the recorded ones.

Letters: B samples, T action horizon, A action width.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lf_ray.data.batches.training_set import TrainingSet
from lf_ray.data.lerobot.group_statistics import group_slices
from lf_ray.training.actions.observation import read_batch, sampled_actions

NUM_SAMPLES = 64
_BATCH = 8
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionError:
    """Mean absolute errors over samples, horizon and width.

    Attributes:
        scaled: of the normalised actions, in which the data spans [-1, 1].
        by_group: in the robot's own units, by action group.
    """

    scaled: float
    by_group: Mapping[str, float] = field(default_factory=dict)
    num_samples: int = 0
    num_episodes: int = 0

    def to_plain(self) -> dict[str, Any]:
        """Returns the values by name."""
        return {
            "scaled": self.scaled,
            "by_group": dict(self.by_group),
            "num_samples": self.num_samples,
            "num_episodes": self.num_episodes,
        }


def last_episodes(source: TrainingSet, num_held_out: int) -> list[range]:
    """Returns the last episodes of each data set; all of them where none is held out."""
    counts = [len(part.dataset.meta.episodes) for part in source.parts]
    return [range(count - num_held_out if num_held_out else 0, count) for count in counts]


def action_error(
    model: Any,
    source: TrainingSet,
    episodes: Sequence[range],
    seed: int,
    num_samples: int = NUM_SAMPLES,
) -> ActionError:
    """Returns the error on some episodes of each data set.

    Args:
        model: a GR00T on its device.
        source: opened whole.
        episodes: of each data set, by position in its meta folder.
        seed: of the noise that sampling starts from.
        num_samples: spread evenly over the episodes.
    """
    scaled: list[Floats] = []
    by_group: dict[str, list[Floats]] = {}
    count = 0
    for part, samples in _batches(source, episodes, -(-num_samples // len(source.parts))):
        count += len(samples)
        dataset = source.parts[part].dataset
        rows_B = dataset.rows_of(samples)
        target_BTA = dataset.actions(rows_B)
        horizon, width = target_BTA.shape[1:]
        batch = read_batch(source, part, samples.tolist())
        own_BTA = sampled_actions(model, batch, seed).numpy()[:, :horizon, :width]
        scaled.append(np.abs(own_BTA - target_BTA).astype(np.float64))
        raw_BTA = np.abs(
            dataset.raw_actions(own_BTA, rows_B) - dataset.raw_actions(target_BTA, rows_B)
        )
        for name, columns in group_slices(dataset.modality.action).items():
            by_group.setdefault(name, []).append(raw_BTA[:, :, columns].astype(np.float64))
    return ActionError(
        scaled=_mean(scaled),
        by_group={name: _mean(errors) for name, errors in by_group.items()},
        num_samples=count,
        num_episodes=sum(map(len, episodes)),
    )


def _batches(
    source: TrainingSet, episodes: Sequence[range], num_samples: int
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yields data set and samples of each batch."""
    for part, chosen in enumerate(episodes):
        dataset = source.parts[part].dataset
        spans = [dataset.samples_of(episode) for episode in chosen]
        samples = np.concatenate([np.arange(span.start, span.stop) for span in spans])
        even = np.linspace(0, len(samples) - 1, min(num_samples, len(samples)))
        samples = samples[even.astype(np.int64)]
        for first in range(0, len(samples), _BATCH):
            yield part, samples[first : first + _BATCH]


def _mean(errors: list[Floats]) -> float:
    return float(np.mean(np.concatenate([item.reshape(-1) for item in errors])))
