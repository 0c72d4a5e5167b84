"""Warm groups of the project's own session under Ray, with faults where a plan says so."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from lf_ray.compose import compose
from lf_ray.machine import detect
from lf_ray.protocol import Budget, Deadlines, KnobValue, TrialRequest
from lf_ray.settings import SweepConfig, knobs_of
from lf_ray.testing.planned_session import PlannedFactory
from lf_ray.testing.ray_groups import OwnedGroup
from lf_ray.testing.sessions import Fault
from lf_ray.trial.cluster import start_cluster
from lf_ray.trial.launch import prepare_data
from lf_ray.trial.ranks.serve import ServeSettings
from lf_ray.trial.workers import GroupPlan, native_session, start_owner


class NativeGroup(OwnedGroup):
    """Ray, an owner and nano; a contract's requests run with this session's knobs.

    Args:
        folder: for what Ray writes.
        words: overrides of its settings, such as cluster.workers=2.
        faults: of its sessions.
        budget: steps of each request.
        step_s: deadline of a step.
    """

    kept_within_s = 10.0
    replaced_within_s = 90.0
    """On a CPU that others use too; on GPUs both are what lf-ray promises."""

    def __init__(
        self,
        folder: Path,
        words: Sequence[str],
        *,
        faults: tuple[Fault, ...] = (),
        budget: Budget,
        step_s: float,
    ) -> None:
        self.config: SweepConfig = compose("overlap", ["model=nano", *words], detect())
        if self.config.cluster.device == "cuda":
            self.kept_within_s, self.replaced_within_s = 2.0, 30.0
        self.knobs: dict[str, KnobValue] = {}
        self.budget = budget
        self.step_s = step_s
        prepare_data(self.config)
        self.cluster = start_cluster(self.config, folder)
        factory = PlannedFactory(make_session=native_session, faults=faults)
        serve = ServeSettings(gate_steps=self.config.measure.gate_steps)
        self.owner = start_owner(
            GroupPlan(config=self.config, folder=folder, make_session=factory, serve=serve)
        )

    def submit(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Runs a request with its id, and this group's knobs, steps and deadlines."""
        asked = TrialRequest.from_json(request)
        own = TrialRequest(
            id=asked.id,
            knobs={**knobs_of(self.config), **self.knobs},
            seed=asked.seed,
            purpose=asked.purpose,
            budget=self.budget,
            deadlines=Deadlines(start_s=300, first_batch_s=300, capture_s=300, step_s=self.step_s),
        )
        record: dict[str, Any] = ray.get(self.owner.submit.remote(own.to_json()), timeout=900)
        return record
