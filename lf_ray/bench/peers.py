"""The peers' own searcher objects behind one small interface. The only door to them in `bench`.

Ours is not here: it runs through `lf_ray.search` as in a sweep.
"""

import itertools
import logging
import random
import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import optuna
from ray import tune
from ray.tune.search.optuna import OptunaSearch

from lf_ray.protocol import Knobs, KnobValue
from lf_ray.search.space import Space

logging.getLogger("ray.tune.search.optuna").setLevel(logging.ERROR)
optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", module="optuna")

METRIC = "samples_per_s"


class Peer(Protocol):
    """A searcher: proposes a point, is told how it ended."""

    def ask(self) -> dict[str, KnobValue] | None:
        """Returns the varied knobs of the next trial, None when there is nothing left."""
        ...

    def tell(self, samples_per_s: float | None) -> None:
        """Takes the last trial's reading; None where it raised."""
        ...


class RayOptuna:
    """Ray Tune's OptunaSearch, called as Tune calls it.

    Args:
        space: what varies.
        seed: of the sampler.
        first: points to evaluate first.
        penalty: report this for a trial that raises, instead of an error.
        ordered: numbers as places on a ladder instead of unordered choices.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        first: Sequence[Knobs],
        *,
        penalty: float | None = None,
        ordered: bool = False,
    ) -> None:
        self._ladders = {name: list(values) for name, values in space.choices.items()}
        self._places = {
            name for name in self._ladders if ordered and is_ladder(self._ladders[name])
        }
        self._penalty = penalty
        domains: dict[str, Any] = {
            name: tune.randint(0, len(values)) if name in self._places else tune.choice(values)
            for name, values in self._ladders.items()
        }
        self._search = OptunaSearch(
            domains,
            metric=METRIC,
            mode="max",
            points_to_evaluate=[self._encoded(point) for point in first],
            seed=seed,
        )
        self._ids = (f"{index:05d}" for index in itertools.count())
        self._trial_id = ""

    @property
    def searcher(self) -> OptunaSearch:
        """Returns the object that Tune would be given."""
        return self._search

    def ask(self) -> dict[str, KnobValue] | None:
        """Returns OptunaSearch's suggestion."""
        self._trial_id = next(self._ids)
        config = self._search.suggest(self._trial_id)
        if not isinstance(config, dict):
            return None
        return {
            name: self._ladders[name][value] if name in self._places else value
            for name, value in config.items()
        }

    def tell(self, samples_per_s: float | None) -> None:
        """Completes the trial as Tune does, with an error where it raised."""
        value = self._penalty if samples_per_s is None else samples_per_s
        if value is None:
            self._search.on_trial_complete(self._trial_id, error=True)
        else:
            result = {METRIC: value, "training_iteration": 1}
            self._search.on_trial_complete(self._trial_id, result=result)

    def _encoded(self, point: Knobs) -> dict[str, Any]:
        return {
            name: values.index(point[name]) if name in self._places else point[name]
            for name, values in self._ladders.items()
        }


class OptunaAlone:
    """An Optuna study with its default sampler; a trial that raises is told as failed."""

    def __init__(self, space: Space, seed: int, first: Sequence[Knobs]) -> None:
        self._choices = {name: list(values) for name, values in space.choices.items()}
        sampler = optuna.samplers.TPESampler(seed=seed)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        for point in first:
            self._study.enqueue_trial({name: point[name] for name in self._choices})
        self._trial: optuna.trial.Trial | None = None

    def ask(self) -> dict[str, KnobValue] | None:
        """Returns the study's suggestion."""
        self._trial = self._study.ask()
        return {
            name: self._trial.suggest_categorical(name, values)
            for name, values in self._choices.items()
        }

    def tell(self, samples_per_s: float | None) -> None:
        """Tells the study the value, or that the trial failed."""
        assert self._trial is not None
        if samples_per_s is None:
            self._study.tell(self._trial, state=optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(self._trial, samples_per_s)


class InOrder:
    """Every point once, in the order of the space or shuffled."""

    def __init__(self, space: Space, seed: int, first: Sequence[Knobs], *, shuffled: bool) -> None:
        points = list(space.points())
        if shuffled:
            random.Random(seed).shuffle(points)
        names = list(space.choices)
        self._points = iter([{name: point[name] for name in names} for point in [*first, *points]])

    def ask(self) -> dict[str, KnobValue] | None:
        """Returns the next point."""
        return next(self._points, None)

    def tell(self, samples_per_s: float | None) -> None:
        """Learns nothing."""


def is_ladder(values: Sequence[KnobValue]) -> bool:
    """Returns whether a knob's values are numbers in a row."""
    return all(isinstance(value, int | float) for value in values)
