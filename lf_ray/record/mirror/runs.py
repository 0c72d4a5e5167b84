"""What MLflow should show of a sweep, as updates of runs: pure, and free of MLflow.

The same events always give the same updates, dates included, so that sending one twice changes
nothing. One run for the sweep; below it one for each trial; below a trial one for each time that
it was measured again. Slice points that were no trials stand below the trial they start from.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lf_ray.measure.between import between_visits
from lf_ray.measure.interval import pooled
from lf_ray.measure.interval import throughput as rate_of
from lf_ray.protocol import (
    ARITHMETIC_KNOBS,
    Interval,
    KnobValue,
    OutcomeKind,
    Purpose,
    TrialRecord,
    TrialRequest,
)
from lf_ray.record.mirror.numbers import (
    is_measured,
    metric_points,
    points_at,
    rates,
    with_bounds,
)
from lf_ray.record.mirror.updates import (
    EFFECTIVE,
    EFFECTIVE_OF,
    FAILED,
    FINISHED,
    KILLED,
    RUNNING,
    SWEEP,
    RunUpdate,
    clean_key,
    clean_tags,
    finite,
    in_ms,
    param_name,
    param_text,
)

# The cores that compute also send, so what one hides of the other can't be told.
_NOISE_ON_CPU = ("overlap_hidden",)
_LOST = (OutcomeKind.FAILED, OutcomeKind.INVALID)


@dataclass
class Mirror:
    """Turns a sweep's events into updates of runs.

    Attributes:
        varied: knobs of the space.
        visits: records so far, by point.
        open_runs: requests under way, with the key of the run above.
        shared_tags: what every run of the sweep carries.
        loss_samples: where in training the losses of all trials are compared.
        left_out: metrics that mean nothing on the sweep's device.
    """

    sweep_id: str = ""
    varied: tuple[str, ...] = ()
    baseline_knobs: Mapping[str, KnobValue] = field(default_factory=dict)
    visits: dict[str, list[TrialRecord]] = field(default_factory=dict)
    open_runs: dict[str, str] = field(default_factory=dict)
    shared_tags: Mapping[str, str] = field(default_factory=dict)
    loss_samples: int = 0
    left_out: tuple[str, ...] = ()

    def begin(self, header: Mapping[str, Any], wall_s: float) -> RunUpdate:
        """Returns the sweep's own run."""
        self.sweep_id = str(header["id"])
        self.varied = tuple(header["space"])
        self.baseline_knobs = dict(header["baseline_knobs"])
        config = json.dumps(header["config"], sort_keys=True, indent=1)
        machine, versions = header["machine"], header["versions"]
        self.shared_tags = clean_tags(
            {
                "space_hash": header["space_hash"],
                "data_id": header["data_id"],
                "machine": machine.get("label", ""),
                "gpu": ", ".join(machine.get("gpus", ())) or "none",
                **{f"version.{name}": value for name, value in versions.items()},
            }
        )
        model = header["config"].get("model", {}).get("size", "")
        cluster = header["config"].get("cluster", {})
        self.left_out = _NOISE_ON_CPU if cluster.get("device") == "cpu" else ()
        return RunUpdate(
            key=SWEEP,
            name=f"{header['name']} {self.sweep_id}",
            params={
                **{param_name(k): param_text(v) for k, v in self.baseline_knobs.items()},
                "model": str(model),
                "ranks": str(cluster.get("workers", "")),
                "device": str(cluster.get("device", "")),
                "seed": str(header["seed"]),
            },
            tags={
                **self.shared_tags,
                "lf_ray.purpose": SWEEP,
                "config_sha256": hashlib.sha256(config.encode()).hexdigest(),
            },
            status=RUNNING,
            start_ms=in_ms(wall_s),
            texts={"config.json": config},
        )

    def started(self, request: TrialRequest, wall_s: float) -> RunUpdate:
        """Returns the run of a request that was sent; the request's own id is its key."""
        point_id = request.replicate_of or request.id
        if request.replicate_of:
            parent = point_id
        elif request.purpose is Purpose.SLICE:
            parent = self._best_trial()
        else:
            parent = SWEEP
        self.open_runs[request.id] = parent
        return RunUpdate(
            key=request.id,
            parent=parent,
            name=self._name(request),
            params=self._params(request.knobs),
            tags={
                **self.shared_tags,
                "lf_ray.purpose": str(request.purpose),
                "lf_ray.trial": point_id,
            },
            status=RUNNING,
            start_ms=in_ms(wall_s),
        )

    def finished(self, record: TrialRecord, wall_s: float) -> list[RunUpdate]:
        """Returns what a record adds: its own run's end, its trial's new mean, the sweep's best."""
        request = record.request
        parent = self.open_runs.pop(request.id, SWEEP)
        if request.purpose is Purpose.BASELINE and not self.loss_samples:
            self.loss_samples = request.budget.min_steps * record.samples_per_step
        group = self.visits.setdefault(record.point_id, [])
        group.append(record)
        at_s = record.clock_s.get("finished", wall_s)
        points, odd = finite(metric_points(record, self.loss_samples, at_s, self.left_out))
        lost = record.outcome.kind in _LOST
        updates = [
            RunUpdate(
                key=request.id,
                parent=parent,
                name=self._name(request),
                params=self._effective(record, as_params=True),
                tags=clean_tags(
                    {
                        **_outcome_tags(record, self.baseline_knobs),
                        **self._effective(record, as_params=False),
                        **odd,
                    }
                ),
                metrics=tuple(points),
                status=FAILED if lost else FINISHED,
                end_ms=in_ms(at_s),
            )
        ]
        if record.point_id != request.id and is_measured(record):
            updates.append(self._pooled_update(record.point_id, at_s))
        if is_measured(record):
            updates += self._sweep_update(at_s)
        return updates

    def ended(self, reason: str, exit_code: int, wall_s: float) -> list[RunUpdate]:
        """Returns the final states: nothing is left running."""
        left = [
            RunUpdate(
                key=key,
                parent=parent,
                tags={"outcome": "unfinished"},
                status=KILLED,
                end_ms=in_ms(wall_s),
            )
            for key, parent in self.open_runs.items()
        ]
        self.open_runs.clear()
        status = {0: FINISHED, 130: KILLED}.get(exit_code, FAILED)
        sweep = RunUpdate(
            key=SWEEP,
            tags=clean_tags({"ended": reason, "exit_code": str(exit_code)}),
            status=status,
            end_ms=in_ms(wall_s),
        )
        return [*left, sweep]

    def result(self, summary: Mapping[str, Any], files: Sequence[str], at_s: float) -> RunUpdate:
        """Returns the answer for the sweep's run: numbers from summary.json, files beside it."""
        flat: dict[str, float] = {"gpu_seconds": summary["gpu_seconds"]}
        gain = summary["gain"] or {}
        named = {"ratio": "gain", "lo": "gain_lo", "hi": "gain_hi"}
        flat |= {named[key]: value for key, value in gain.items() if value is not None}
        flat |= {f"seconds_{key}": value for key, value in summary["seconds"].items()}
        flat |= {f"trials_{key}": float(value) for key, value in summary["outcomes"].items()}
        best = summary["best"] or {}
        if best:
            flat |= with_bounds("throughput", Interval.from_json(best["throughput_samples_per_s"]))
        tags = {"best_trial": str(best.get("trial", "none"))}
        if "converges" in summary:
            tags["converges"] = summary["converges"]["verdict"]
            tags["converges_reason"] = summary["converges"]["reason"]
        for knob, knee in summary["knee"].items():
            name = param_name(knob)
            tags[f"knee.{name}"] = f"{knee['value']} ({knee['lo']} to {knee['hi']})"
            tags[f"knee_status.{name}"] = knee["status"]
        points, odd = finite(points_at(flat, 0, at_s))
        return RunUpdate(
            key=SWEEP,
            metrics=tuple(points),
            tags=clean_tags({**tags, **odd}),
            files=tuple(files),
        )

    def checked(self, summary: Mapping[str, Any]) -> list[RunUpdate]:
        """Returns what is known of the learning of the trials that the answer names."""
        verdicts: dict[str, str] = {}
        for item in (*summary.get("named", {}).values(), {**summary, **(summary["best"] or {})}):
            if item.get("trial") in self.visits and "converges" in item:
                verdicts[item["trial"]] = item["converges"]["verdict"]
        return [RunUpdate(key=key, tags={"converges": word}) for key, word in verdicts.items()]

    def _name(self, request: TrialRequest) -> str:
        settings = " ".join(
            f"{param_name(name)}={param_text(request.knobs[name])}"
            for name in self.varied
            if name in request.knobs
        )
        return f"{request.id} {settings}".strip()

    def _params(self, knobs: Mapping[str, KnobValue]) -> dict[str, str]:
        """Returns the varied knobs, and any other that is not the baseline's.

        What never varies stands at the sweep's run: repeated here it would bury what does.
        """
        return {
            param_name(name): param_text(value)
            for name, value in knobs.items()
            if name in self.varied or value != self.baseline_knobs.get(name)
        }

    def _effective(self, record: TrialRecord, *, as_params: bool) -> dict[str, str]:
        """Returns what really ran: as parameters what can vary in this sweep, as tags the rest."""
        groups = {name.split(".")[0] for name in self.varied}
        found: dict[str, str] = {}
        for name, value in record.outcome.effective.items():
            varies = bool(EFFECTIVE_OF.get(name, groups) & groups)
            if varies == as_params:
                found[f"{EFFECTIVE}{clean_key(name)}"] = param_text(value)
        return found

    def _between(self) -> dict[str, float]:
        steps = {name: _step_times(visits) for name, visits in self.visits.items()}
        return between_visits({name: group for name, group in steps.items() if group})

    def _pooled(self, point_id: str, between: Mapping[str, float]) -> tuple[Interval, int] | None:
        group = [record for record in self.visits[point_id] if is_measured(record)]
        if not group:
            return None
        step_s = pooled(_step_times(group), between[point_id])
        return step_s, group[0].samples_per_step

    def _pooled_update(self, point_id: str, at_s: float) -> RunUpdate:
        """Returns a trial's mean over its visits so far, as its latest value."""
        found = self._pooled(point_id, self._between())
        assert found is not None
        step_s, samples_per_step = found
        own = next((r for r in self.visits[point_id] if r.request.id == point_id), None)
        steps = len(own.trace.wall_s) if own and own.trace else 0
        flat = rates(step_s, samples_per_step)
        points = points_at(flat, steps + step_s.num_visits - 1, at_s)
        tags = {"visits": str(step_s.num_visits)}
        late = own is not None and not is_measured(own)
        if late:  # its own visit came to nothing, a later one did not
            tags |= {"outcome": str(OutcomeKind.COMPLETED), "reason": "measured when visited again"}
        return RunUpdate(
            key=point_id,
            metrics=tuple(finite(points)[0]),
            tags=tags,
            status=FINISHED if late else "",
            end_ms=in_ms(at_s) if late else 0,
        )

    def _sweep_update(self, at_s: float) -> list[RunUpdate]:
        """Returns the sweep's best so far against its seconds: the regret curve."""
        first = next(iter(self.visits.values()))[0]
        began_s = first.clock_s.get("requested", at_s) - first.outcome.costs_s.get("restart", 0.0)
        elapsed_s = max(0.0, at_s - began_s)
        best = max(self._throughputs().values())
        points = points_at({"best_throughput": best}, round(elapsed_s), at_s)
        return [RunUpdate(key=SWEEP, metrics=tuple(finite(points)[0]))]

    def _throughputs(self) -> dict[str, float]:
        between = self._between()
        found = {point_id: self._pooled(point_id, between) for point_id in self.visits}
        return {name: rate_of(*pair).value for name, pair in found.items() if pair is not None}

    def _best_trial(self) -> str:
        """Returns the fastest trial so far, from which slices start; the sweep without one."""
        trials = {
            name: value
            for name, value in self._throughputs().items()
            if self.visits[name][0].request.purpose in (Purpose.BASELINE, Purpose.SEARCH)
        }
        return max(trials, key=lambda name: trials[name], default=SWEEP)


def _outcome_tags(record: TrialRecord, baseline: Mapping[str, KnobValue]) -> dict[str, str]:
    outcome, gate = record.outcome, record.gate
    passed = "none" if gate is None else "passed" if gate.passed else "failed"
    knobs = record.request.knobs
    same = all(knobs.get(name) == baseline.get(name) for name in ARITHMETIC_KNOBS)
    tags = {
        "outcome": str(outcome.kind),
        "reason": outcome.reason,
        "stop_rule": outcome.stop_rule,
        "gate": passed,
        # The answer says more of those that were checked.
        "converges": "not needed" if same else "not checked",
    }
    if outcome.error_kind:
        tags["error_kind"] = outcome.error_kind
    return tags


def _step_times(group: Sequence[TrialRecord]) -> list[Interval]:
    return [r.step_s for r in group if r.step_s is not None and is_measured(r)]
