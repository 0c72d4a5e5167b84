"""What we lean on in Optuna. Re-audit lf_ray/search/samplers before changing an assertion."""

import math
import warnings
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

optuna.logging.set_verbosity(optuna.logging.ERROR)


def told_study(state: TrialState) -> optuna.Study:
    """A study where batch 3 (of 0..3) never works, told as `state`."""
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=4)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for _ in range(40):
        trial = study.ask()
        batch = trial.suggest_int("batch", 0, 3)
        if batch < 3:
            study.tell(trial, float(batch))
        else:
            study.tell(trial, state=state)
    return study


def test_a_failed_trial_is_asked_again_and_a_pruned_one_is_not() -> None:
    """Why infeasible points are told as pruned (facts: 61 repeats in 100 trials when told FAIL)."""
    share = {
        state: sum(t.params["batch"] == 3 for t in told_study(state).trials[-20:]) / 20
        for state in (TrialState.FAIL, TrialState.PRUNED)
    }
    assert share[TrialState.FAIL] > 0.5
    assert share[TrialState.PRUNED] <= 0.25


def test_a_trial_can_be_added_when_it_has_ended(tmp_path: Path) -> None:
    """Why the study file can never hold a running trial."""
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/study.db", direction="maximize")
    for state, value in ((TrialState.COMPLETE, 1.0), (TrialState.PRUNED, None)):
        study.add_trial(
            create_trial(
                state=state,
                value=value,
                params={"word": "off"},
                distributions={"word": CategoricalDistribution(["off"])},
            )
        )
    assert [trial.state.is_finished() for trial in study.trials] == [True, True]


def test_nan_is_a_failure_and_inf_would_be_best() -> None:
    """Why nothing that is not finite is ever told."""
    study = optuna.create_study(direction="maximize")
    study.tell(study.ask(), 1.0)
    study.tell(study.ask(), math.inf)
    assert study.best_value == math.inf
    trial = study.ask()
    with pytest.warns(UserWarning, match="nan is not acceptable"):
        study.tell(trial, math.nan)
    assert study.trials[-1].state is TrialState.FAIL


def test_the_sampler_is_a_function_of_seed_and_history() -> None:
    """Why a resumed sweep draws what the uninterrupted one would have."""

    def draws(seed: int) -> list[int]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=2, multivariate=True, group=True, constant_liar=True
            )
            study = optuna.create_study(direction="maximize", sampler=sampler)
            for place in range(6):
                study.add_trial(
                    create_trial(
                        params={"x": place},
                        distributions={"x": IntDistribution(0, 50)},
                        value=float(place),
                    )
                )
            return [study.ask().suggest_int("x", 0, 50) for _ in range(5)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)
