"""`cluster=sim_...` behind the real trainable: an answer without a worker."""

import json
from pathlib import Path

import pytest
from ray import tune

from lf_ray.compose import compose
from lf_ray.machine import detect
from lf_ray.protocol import Budget, OutcomeKind, TrialRecord
from lf_ray.testing.group_contract import request
from lf_ray.trial.launch import open_groups, prepare_data

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


def test_a_simulated_group_answers_and_says_so(tmp_path: Path) -> None:
    config = compose("overlap", ["cluster=sim_2xh200"], detect())
    assert prepare_data(config) == "sim_2xh200"
    budget = Budget(min_steps=20, max_steps=200, max_s=1e6)
    names = [json.dumps(request(f"t{index}", budget=budget)) for index in range(3)]
    with open_groups(config, tmp_path) as groups:
        results = tune.Tuner(
            tune.with_resources(groups.trainable, dict(groups.resources or {})),
            param_space={"request": tune.grid_search(names)},
            tune_config=tune.TuneConfig(
                reuse_actors=True,
                max_concurrent_trials=1,
                trial_dirname_creator=lambda trial: str(trial.trial_id),
            ),
            run_config=tune.RunConfig(name="sim", storage_path=str(tmp_path), verbose=0),
        ).fit()
        metrics = [dict(item.metrics or {}) for item in results]
    assert groups.left_over == []
    records = [TrialRecord.from_json(json.loads(item["record"])) for item in metrics]
    assert {item.outcome.kind for item in records} == {OutcomeKind.COMPLETED}
    assert all(item.outcome.effective["simulated"] for item in records)
