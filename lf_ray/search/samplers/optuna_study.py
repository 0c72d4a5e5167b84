"""The door to Optuna: TPE as a pure function of what was measured, and a study file to look at.

The sampler's study lives in memory and is built anew for every round from what the journal says,
with a seed of its own, so that a resumed sweep draws what the uninterrupted one would have. The
study file is a view with one writer: trials are added to it when they have ended, so none can be
left running, and it is written afresh from the journal when a sweep is resumed.
"""

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from lf_ray.protocol import (
    ChangeCost,
    Knobs,
    KnobValue,
    OutcomeKind,
    TrialRecord,
    TrialRequest,
    change_cost,
)
from lf_ray.record.events import JournalEvent
from lf_ray.search.conductor import Standing
from lf_ray.search.plan.decisions import PriceOf, Told, alike
from lf_ray.search.plan.state import TRIAL_PURPOSES
from lf_ray.search.samplers.fitting import fit_probs
from lf_ray.search.samplers.neighbours import neighbours
from lf_ray.search.samplers.plain import RandomProposer
from lf_ray.search.samplers.surrogate import Worth, measured_of, picked
from lf_ray.search.space import Space, point_key

_log = logging.getLogger(__name__)

STUDY_NAME = "sweep"
TPE_DRAWS = 3
EVEN_DRAWS = 250
NUM_CENTRES = 2
_STARTUP_TRIALS = 6
# Asked for first, since other knobs do nothing unless these are set.
_FIRST = ("graph.scope", "memory.backend", "batch.per_gpu", "batch.accumulation")

Allowed = Callable[[Knobs], bool]


class TpeProposer:
    """Optuna's tree-structured Parzen estimator draws candidates; a Gaussian process picks.

    TPE keeps the candidates where the good points are; on a few dozen readings it can't tell more.
    Beside its own draws stand the neighbours of the best points, one or two knobs away, and points
    drawn evenly. Which of them to spend a visit on is decided by expected improvement, times the
    chance to fit in memory, over cost.
    """

    def propose(
        self,
        space: Space,
        told: Sequence[Told],
        count: int,
        seed: int,
        allowed: Allowed,
        price: PriceOf = alike,
    ) -> list[dict[str, KnobValue]]:
        """Returns the `count` most promising of the candidates."""
        points = candidates(space, told, count, seed, allowed)
        if not points:
            return []
        measured = measured_of(told)
        prices = [price(point) for point in points]
        worth = Worth(
            fits_C=fit_probs(told, points),
            change_s_C=np.array([seconds for seconds, _ in prices]),
            samples_C=np.array([samples for _, samples in prices]),
            # A change of these starts new workers, so a round touches few of their values.
            classes=[tuple(point[name] for name in _restart_names(space)) for point in points],
        )
        return [points[index] for index in picked(space, measured, points, count, worth)]


def candidates(
    space: Space, told: Sequence[Told], count: int, seed: int, allowed: Allowed
) -> list[dict[str, KnobValue]]:
    """Returns distinct points that are worth a thought: TPE's, neighbours of the best, others."""
    drawn: dict[str, dict[str, KnobValue]] = {}
    with _quiet():
        study = _study_of(space, told, seed)
        for _ in range(TPE_DRAWS * count):
            point = _asked(study, space)
            drawn.setdefault(point_key(point), point)
    for point in neighbours(space, _best_knobs(told), seed):
        drawn.setdefault(point_key(point), point)
    near = [point for point in drawn.values() if allowed(point)]
    fresh = RandomProposer().propose(
        space, told, EVEN_DRAWS, seed, lambda k: point_key(k) not in drawn and allowed(k)
    )
    return [*near, *fresh]


def _best_knobs(told: Sequence[Told]) -> list[Knobs]:
    rated = [(item.samples_per_s, item.knobs) for item in told if item.samples_per_s is not None]
    return [knobs for _, knobs in sorted(rated, key=lambda pair: -pair[0])[:NUM_CENTRES]]


def _restart_names(space: Space) -> list[str]:
    return [
        name for name in space.choices if change_cost({name: 0}, {name: 1}) is ChangeCost.RESTART
    ]


def _study_of(space: Space, told: Sequence[Told], seed: int) -> optuna.Study:
    sampler = optuna.samplers.TPESampler(
        seed=seed,
        n_startup_trials=_STARTUP_TRIALS,
        multivariate=True,
        group=True,
        constant_liar=True,
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for item in told:
        trial = _told_trial(space, item)
        if trial is not None:
            study.add_trial(trial)
    return study


def _told_trial(space: Space, item: Told) -> FrozenTrial | None:
    places: dict[str, int | str] = {}
    distributions: dict[str, BaseDistribution] = {}
    for name, values in space.choices.items():
        if len(values) < 2 or not space.active(name, item.knobs):
            continue
        value = item.knobs[name]
        if _is_ladder(values):
            numbers = [float(number) for number in values]
            gaps = [abs(number - float(value)) for number in numbers]
            places[name] = gaps.index(min(gaps))
        elif value in values:
            places[name] = str(value)
        else:
            return None
        distributions[name] = _distribution(values)
    completed = item.kind is OutcomeKind.COMPLETED and item.samples_per_s is not None
    return create_trial(
        state=TrialState.COMPLETE if completed else TrialState.PRUNED,
        params=places,
        distributions=distributions,
        value=item.samples_per_s if completed else None,
    )


def _asked(study: optuna.Study, space: Space) -> dict[str, KnobValue]:
    trial = study.ask()
    point: dict[str, KnobValue] = dict(space.baseline)
    for name in sorted(space.choices, key=lambda item: item not in _FIRST):
        values = space.choices[name]
        if len(values) < 2:
            point[name] = values[0]
        elif space.active(name, point):
            if _is_ladder(values):
                point[name] = values[trial.suggest_int(name, 0, len(values) - 1)]
            else:
                point[name] = trial.suggest_categorical(name, list(values))
    return space.canonical(point)


def _is_ladder(values: Sequence[KnobValue]) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _distribution(values: Sequence[KnobValue]) -> BaseDistribution:
    if _is_ladder(values):
        return IntDistribution(0, len(values) - 1)
    return CategoricalDistribution(list(values))


class StudyFile:
    """An observer that keeps a study file which Optuna's own tools can open.

    Args:
        path: the SQLite file; an old one is replaced.
        space: what varies; ladders are shown as numbers.
    """

    def __init__(self, path: Path, space: Space) -> None:
        self._path = path
        self._space = space
        self._study: optuna.Study | None = None
        self._told: set[str] = set()

    def on_sweep(self, header: Mapping[str, Any], events: Sequence[JournalEvent]) -> None:
        """Writes the file from what the journal holds."""
        for suffix in ("", "-journal", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        with _quiet():
            self._study = optuna.create_study(
                study_name=STUDY_NAME, direction="maximize", storage=f"sqlite:///{self._path}"
            )
            self._study.set_user_attr("sweep", str(header.get("id", "")))
            self._study.set_user_attr("space", self._space.to_plain())
        for event in events:
            if event.kind == "finished":
                self._add(TrialRecord.from_json(event.data["record"]))

    def on_started(self, request: TrialRequest, reason: str, standing: Standing) -> None:
        """Writes nothing: a trial that never ends must not be left running in the file."""

    def on_finished(self, record: TrialRecord, standing: Standing) -> None:
        """Adds a trial that has ended."""
        self._add(record)

    def on_note(self, text: str) -> None:
        """Writes nothing."""

    def on_ended(self, reason: str, exit_code: int, standing: Standing) -> None:
        """Keeps why the sweep ended."""
        if self._study is not None:
            self._study.set_user_attr("ended", reason)

    def _add(self, record: TrialRecord) -> None:
        if self._study is None or record.request.id in self._told:
            return
        self._told.add(record.request.id)
        reading = record.throughput_samples_per_s
        completed = record.outcome.kind is OutcomeKind.COMPLETED and reading is not None
        state = _STATES[record.outcome.kind] if not completed else TrialState.COMPLETE
        request = record.request
        attrs = {
            "id": request.id,
            "point": record.point_id,
            "purpose": str(request.purpose),
            "is_trial": request.purpose in TRIAL_PURPOSES,
            "outcome": str(record.outcome.kind),
            "reason": record.outcome.reason,
        }
        knobs = {name: request.knobs[name] for name in self._space.choices}
        now = datetime.now()
        with _quiet():
            trial = create_trial(
                state=state,
                params=knobs,
                distributions={name: _shown(self._space, name) for name in knobs},
                value=reading.value if completed and reading else None,
                user_attrs=attrs,
            )
            trial.datetime_start = trial.datetime_complete = now
            self._study.add_trial(trial)


_STATES = {
    OutcomeKind.COMPLETED: TrialState.PRUNED,
    OutcomeKind.PRUNED: TrialState.PRUNED,
    OutcomeKind.INFEASIBLE: TrialState.PRUNED,
    OutcomeKind.INVALID: TrialState.FAIL,
    OutcomeKind.FAILED: TrialState.FAIL,
}


def _shown(space: Space, name: str) -> BaseDistribution:
    own = space.baseline[name]
    if isinstance(own, str):
        # A study refuses a knob whose words change from trial to trial.
        return CategoricalDistribution(sorted({own, *map(str, space.choices[name]), "none", "off"}))
    return optuna.distributions.FloatDistribution(0.0, 1e9)


@contextmanager
def _quiet() -> Any:
    """Keeps Optuna's log lines and its notes on experimental arguments off the screen."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(level)
