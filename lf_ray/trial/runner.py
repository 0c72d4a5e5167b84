"""The Tune trainable: hands a request to the group's owner and reports the record it gets back.

It holds no model and no worker, only the owner's handle, so that Tune can reuse it for every trial.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray import tune

from lf_ray.protocol import TrialRecord, TrialRequest
from lf_ray.trial.faults.outcomes import lost

HEAD_ONLY: Mapping[str, float] = {"node:__internal_head__": 0.001}
"""Resources of a trainable: a place on the head node, no core. (A resource of our own would be
refused on a cluster that is there already; no resource at all is refused by Tune.)"""


_STARTS_S = 1800.0
_BUSY_S = (0.01, 0.5)
"""How long to wait before asking again whether a group is free: at first, at most."""


def longest_s(request: TrialRequest) -> float | None:
    """Returns how long an owner that works may keep a request; None where steps have no limit.

    Two attempts and the starts before them; the owner itself has a deadline for every phase, so
    this one is for an owner that hangs. Generous, since what comes later costs the group.
    """
    limits, budget = request.deadlines, request.budget
    num_steps = budget.max_steps + request.noise_steps
    phases_s = 6 * limits.first_batch_s + limits.capture_s
    visit_s = phases_s + num_steps * limits.step_s + budget.max_s
    return _STARTS_S + 2 * visit_s if math.isfinite(visit_s) else None


def bound_to(owners: Sequence[Any]) -> Any:
    """Returns the trainable with the handles of the groups' owners."""
    return tune.with_parameters(TrialRunner, owners=list(owners))


class TrialRunner(tune.Trainable):  # type: ignore[misc]  # Ray has no types
    """Runs the request in `config["request"]` (JSON) on whichever group is free.

    One result a trial: `record` (JSON), `outcome`, `throughput` (samples a second; 0 without a
    measurement), `gave_up` (why no further trial should be tried; else empty) and `done`.
    """

    def setup(self, config: dict[str, Any], owners: Any) -> None:
        """Takes the owners' handles, given by `bound_to`."""
        self._owners = list(owners)

    def step(self) -> dict[str, Any]:
        """Submits the trial's request and waits; a failed trial is a result, not an error."""
        request = TrialRequest.from_json(json.loads(self.config["request"]))
        record, gave_up = self._record(request)
        rate = record.throughput_samples_per_s
        return {
            "record": json.dumps(record.to_json()),
            "outcome": record.outcome.kind.value,
            "throughput": rate.value if rate is not None else 0.0,
            "gave_up": gave_up,
            "done": True,
        }

    def _record(self, request: TrialRequest) -> tuple[TrialRecord, str]:
        """Returns a record from the first free owner; of lost owners only if all are lost."""
        wait_s, most_s = _BUSY_S
        while self._owners:
            for owner in list(self._owners):
                try:
                    call = owner.submit_if_free.remote(request.to_json())
                    answer = ray.get(call, timeout=longest_s(request))
                except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
                    self._owners.remove(owner)
                    reason = f"the group's owner is gone: {type(error).__name__}: {error}"
                    continue
                if answer is not None:
                    return TrialRecord.from_json(answer["record"]), answer["gave_up"]
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, most_s)
        return TrialRecord(request=request, outcome=lost("owner_lost", reason)), reason

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Takes the next trial's config; there is nothing else to reset here."""
        return True

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Has nothing to save: the journal is what resumes a sweep."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Has nothing to load."""
