"""The Tune trainable: hands a request to the group's owner and reports the record it gets back.

It holds no model and no worker, only the owner's handle, so that Tune can reuse it for every trial.
"""

import json
from collections.abc import Mapping
from typing import Any

import ray
from ray import tune

from lf_ray.protocol import TrialRecord, TrialRequest
from lf_ray.trial.faults.outcomes import lost

HEAD_ONLY: Mapping[str, float] = {"node:__internal_head__": 0.001}
"""Resources of a trainable: a place on the head node, no core. (A resource of our own would be
refused on a cluster that is there already; no resource at all is refused by Tune.)"""


class TrialRunner(tune.Trainable):  # type: ignore[misc]  # Ray has no types
    """Runs the request in `config["request"]` (JSON) on one of the groups in `config["owners"]`.

    One result a trial: `record` (JSON), `outcome`, `throughput` (samples a second; 0 without a
    measurement), `gave_up` (why no further trial should be tried; else empty) and `done`.
    """

    def setup(self, config: dict[str, Any], owners: Any = None) -> None:
        """Takes the owners' handles, given by `tune.with_parameters` or in the config."""
        self._owners = list(owners if owners is not None else config["owners"])

    def step(self) -> dict[str, Any]:
        """Submits the trial's request and waits; a failed trial is a result, not an error."""
        request = TrialRequest.from_json(json.loads(self.config["request"]))
        owner = self._owners[int(self.config.get("group", 0)) % len(self._owners)]
        try:
            record = TrialRecord.from_json(ray.get(owner.submit.remote(request.to_json())))
            gave_up = str(ray.get(owner.given_up.remote()))
        except ray.exceptions.RayError as error:
            record = TrialRecord(
                request=request,
                outcome=lost("owner_lost", f"the group's owner is gone: {error}"),
            )
            gave_up = record.outcome.reason
        rate = record.throughput_samples_per_s
        return {
            "record": json.dumps(record.to_json()),
            "outcome": record.outcome.kind.value,
            "throughput": rate.value if rate is not None else 0.0,
            "gave_up": gave_up,
            "done": True,
        }

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Takes the next trial's config; there is nothing else to reset here."""
        return True

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Has nothing to save: the journal is what resumes a sweep."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Has nothing to load."""
