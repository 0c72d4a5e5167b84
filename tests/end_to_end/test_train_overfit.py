"""The recipe learns: nano on one real episode ends far below no answer, and acts as recorded."""

import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lf_ray.protocol import Purpose, TrialRequest
from lf_ray.runtime.draws import step_draws
from lf_ray.runtime.session import Session
from lf_ray.settings import BatchSettings, DataSettings, SweepConfig, TrainSettings, knobs_of
from lf_ray.training.actions.action_error import action_error
from lf_ray.training.actions.observation import open_whole, read_batch
from lf_ray.training.actions.weights_check import zero_velocity_loss
from lf_ray.training.plan import resolved

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

MAX_LOSS_RATIO = 0.3
MAX_ACTION_ERROR = 0.1
NUM_STEPS = 400
NUM_EPISODES = 5


def test_nano_learns_one_real_episode_by_heart(gr1_path: Path, tmp_path: Path) -> None:
    # The episode is the first of five: the others are held out.
    config = SweepConfig(
        data=DataSettings(
            source="lerobot",
            path=str(gr1_path),
            holdout_episodes=NUM_EPISODES - 1,
            cache_dir=str(tmp_path),
        ),
        batch=BatchSettings(per_gpu=12),
        train=TrainSettings(lr=2e-3, beta2=0.95, warmup_ratio=0.1, max_steps=NUM_STEPS),
    )
    config = replace(config, cluster=replace(config.cluster, workers=1))
    config = resolved(config, {}, NUM_EPISODES)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # Printed, not asserted: a test does not know what machine it runs on.
    began_s = time.process_time()
    session = Session(config, 0, 1, "cpu", None, None)
    source = open_whole(config)
    try:
        request = TrialRequest(
            id="overfit", knobs=knobs_of(config), seed=0, purpose=Purpose.BASELINE
        )
        session.prepare(request)
        losses = [sample.loss for sample in session.run(NUM_STEPS)]
        found = action_error(session.model, source, [range(1)], seed=0)
        spent_s = time.process_time() - began_s
        batch = read_batch(source, 0, list(range(0, 400, 10)))
    finally:
        session.close()
        source.close()
        torch.set_num_threads(threads)
    shapes = {"noise_BTA": tuple(batch["action_BTA"].shape)}
    zero = zero_velocity_loss(batch, step_draws(shapes, torch.Generator(), 0, 0, 0)["noise_BTA"])
    ratio = statistics.fmean(losses[-20:]) / zero
    measured = {
        "what": "overfit",
        "steps": NUM_STEPS,
        "loss_ratio": round(ratio, 4),
        "action_error": round(found.scaled.value, 4),
        "cpu_s": round(spent_s, 1),
    }
    sys.stdout.write(json.dumps(measured) + "\n")
    assert found.num_samples == 64
    assert ratio <= MAX_LOSS_RATIO, measured
    assert found.scaled.value <= MAX_ACTION_ERROR, measured
