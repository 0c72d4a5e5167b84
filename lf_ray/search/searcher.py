"""The door to Ray Tune's search: a Tune searcher that asks the conductor.

Tune drives; every decision, what is kept and what is told comes from the one path of events that
`lf_ray.search.conductor` is. Samplers and the study file: `lf_ray.search.samplers`.
"""

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from lf_ray.errors import RecordError
from lf_ray.protocol import OutcomeKind, TrialRequest
from lf_ray.search.conductor import Conductor, parse_record
from lf_ray.search.plan.decisions import Request, Stop


class SweepSearcher(Searcher):  # type: ignore[misc]
    """Gives Tune one request at a time for each group.

    A suggestion is `{"request": JSON, "group": index}`; a result must hold `record` (JSON).

    Args:
        conductor: begun.
        num_groups: how many requests may be under way; the index says whose turn it is.
        on_ask: called whenever Tune asks, in Tune's own loop.
        is_ending: returns whether the sweep has been told to end. What fails then, fails with it:
            it is left open, and run again when the sweep is resumed.
    """

    def __init__(
        self,
        conductor: Conductor | None = None,
        num_groups: int = 1,
        on_ask: Callable[[], None] = lambda: None,
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self._conductor = conductor
        self._free = list(range(num_groups))
        self._running: dict[str, tuple[TrialRequest, int]] = {}
        self._on_ask = on_ask
        self._is_ending = is_ending

    def suggest(self, trial_id: str) -> Any:
        """Returns the next trial's config, None while there is nothing to do, or FINISHED."""
        self._on_ask()
        if self._conductor is None:
            return Searcher.FINISHED
        try:
            decision = self._conductor.next()
        except RecordError:
            return Searcher.FINISHED
        if isinstance(decision, Stop):
            return Searcher.FINISHED
        if not isinstance(decision, Request):
            return None
        group = self._free.pop(0)
        self._running[trial_id] = (decision.request, group)
        return {"request": json.dumps(decision.request.to_json()), "group": group}

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Hands the record on; whatever came back, the request is closed."""
        if trial_id not in self._running or self._conductor is None:
            return
        request, group = self._running.pop(trial_id)
        self._free.append(group)
        self._free.sort()
        if self._conductor.stop is not None:
            return
        with contextlib.suppress(RecordError):  # the conductor remembers it and ends the sweep
            self._hand_on(request, result, error=error)

    def _hand_on(
        self, request: TrialRequest, result: Mapping[str, Any] | None, *, error: bool
    ) -> None:
        assert self._conductor is not None
        data = (result or {}).get("record")
        if error or data is None:
            if self._is_ending():
                return
            reason = "the trainable raised; its folder under tune/ has error.txt"
            if not error:
                reason = f"no record in the result, which has {sorted(result or {})}"
            self._conductor.fail(request, reason, "exception")
            return
        plain = json.loads(data) if isinstance(data, str) else data
        record = parse_record(request, plain)
        if record.outcome.kind is OutcomeKind.FAILED and self._is_ending():
            return
        self._conductor.finish(record)
        gave_up = str((result or {}).get("gave_up") or "")
        if gave_up:
            self._conductor.give_up(gave_up)

    def save(self, checkpoint_path: str) -> None:
        """Leaves a note where Tune looks for a state: the journal is what resumes a sweep."""
        Path(checkpoint_path).write_text("see journal.jsonl\n", encoding="utf-8")

    def restore(self, checkpoint_path: str) -> None:
        """Has nothing to take back from Tune."""

    def __getstate__(self) -> dict[str, Any]:
        return {"_metric": self._metric, "_mode": self._mode}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Comes back as a searcher that has finished; a sweep is resumed from its journal."""
        SweepSearcher.__init__(self)
        self.__dict__.update(state)
