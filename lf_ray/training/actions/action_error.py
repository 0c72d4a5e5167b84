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
from lf_ray.measure.clusters import PartRatio, part_ratio
from lf_ray.training.actions.observation import read_batch, sampled_actions

NUM_SAMPLES = 64
_BATCH = 8
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionError:
    """Mean absolute errors over samples, horizon and width, each with its interval over episodes.

    Attributes:
        scaled: of the normalised actions, in which the data spans [-1, 1].
        by_group: in the robot's own units, by action group.
    """

    scaled: PartRatio
    by_group: Mapping[str, PartRatio] = field(default_factory=dict)
    num_samples: int = 0
    num_episodes: int = 0

    def to_plain(self) -> dict[str, Any]:
        """Returns the values by name; ends are None where a single episode gives none."""
        return {
            "scaled": self.scaled.value,
            "scaled_lo": self.scaled.lo,
            "scaled_hi": self.scaled.hi,
            "by_group": {name: item.value for name, item in self.by_group.items()},
            "by_group_ends": {name: [item.lo, item.hi] for name, item in self.by_group.items()},
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
    errors = _Errors()
    count = 0
    for part, samples, episode_B in _batches(
        source, episodes, -(-num_samples // len(source.parts))
    ):
        count += len(samples)
        dataset = source.parts[part].dataset
        rows_B = dataset.rows_of(samples)
        target_BTA = dataset.actions(rows_B)
        horizon, width = target_BTA.shape[1:]
        batch = read_batch(source, part, samples.tolist())
        own_BTA = sampled_actions(model, batch, seed).numpy()[:, :horizon, :width]
        errors.add("", part, episode_B, np.abs(own_BTA - target_BTA))
        raw_BTA = np.abs(
            dataset.raw_actions(own_BTA, rows_B) - dataset.raw_actions(target_BTA, rows_B)
        )
        for name, columns in group_slices(dataset.modality.action).items():
            errors.add(name, part, episode_B, raw_BTA[:, :, columns])
    by_group = {name: errors.mean(name) for name in errors.names}
    return ActionError(
        scaled=by_group.pop(""),
        by_group=by_group,
        num_samples=count,
        num_episodes=sum(map(len, episodes)),
    )


class _Errors:
    """Sums of errors by name and episode: samples of one episode are alike, episodes are not."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[tuple[int, int], tuple[float, int]]] = {}

    @property
    def names(self) -> list[str]:
        return list(self._sums)

    def add(self, name: str, part: int, episode_B: Ints, errors_BTA: npt.NDArray[Any]) -> None:
        sums = self._sums.setdefault(name, {})
        for episode, errors_TA in zip(episode_B.tolist(), errors_BTA):
            total, size = sums.get((part, episode), (0.0, 0))
            added = float(errors_TA.sum(dtype=np.float64))
            sums[part, episode] = (total + added, size + errors_TA.size)

    def mean(self, name: str) -> PartRatio:
        parts = self._sums[name].values()
        found = part_ratio([total for total, _ in parts], [size for _, size in parts])
        assert found is not None
        return found


def _batches(
    source: TrainingSet, episodes: Sequence[range], num_samples: int
) -> Iterator[tuple[int, Ints, Ints]]:
    """Yields data set, samples and their episodes of each batch."""
    for part, chosen in enumerate(episodes):
        dataset = source.parts[part].dataset
        spans = [dataset.samples_of(episode) for episode in chosen]
        samples = np.concatenate([np.arange(span.start, span.stop) for span in spans])
        owners = np.repeat(np.asarray(chosen), [len(span) for span in spans])
        even = np.linspace(0, len(samples) - 1, min(num_samples, len(samples))).astype(np.int64)
        for first in range(0, len(even), _BATCH):
            places = even[first : first + _BATCH]
            yield part, samples[places], owners[places]
