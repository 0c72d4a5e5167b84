"""Mirrors a training to MLflow, off the hot path; the books are the truth.

Runs in the driver, which is not a rank. Knows no MLflow: `record` delivers.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lf_ray.clock import Clock
from lf_ray.protocol import Knobs
from lf_ray.record.courier import Courier, to_stderr
from lf_ray.record.mirror.numbers import points_at
from lf_ray.record.mirror.updates import (
    FAILED,
    FINISHED,
    KILLED,
    RUNNING,
    RunUpdate,
    clean_tags,
    finite,
    in_ms,
    param_name,
    param_text,
)
from lf_ray.record.mlflow_sink import CLOSE_S, SPOOL_NAME, MlflowRuns
from lf_ray.record.spool import Spool
from lf_ray.training.books import Line

KEY = "training"
_POINT_EVERY_S = 5.0
STATUS: Mapping[int, str] = {0: FINISHED, 1: FAILED, 130: KILLED}


class TrainingMirror:
    """One MLflow run for a training; nothing that it is told waits for MLflow.

    Args:
        uri: checked tracking URI.
        folder: of the result; its name is the training's id.
        clock: dates the points.
        notify: is told once when the server is away, and once when it is back.
    """

    def __init__(
        self,
        uri: str,
        folder: Path,
        clock: Clock,
        notify: Callable[[str], object] = to_stderr,
    ) -> None:
        self._uri, self._id, self._clock = uri, folder.name, clock
        self._runs: MlflowRuns | None = None
        self._steps: list[Line] = []
        self._sent_s = 0.0
        self._samples_per_step = 0
        self._courier = Courier(
            self._deliver, Spool(folder / SPOOL_NAME), clock, f"MLflow at {uri}", notify
        )

    def begin(self, config: Mapping[str, Any], knobs: Knobs, tags: Mapping[str, object]) -> None:
        """Makes the run, or takes it up again."""
        model, cluster = config.get("model", {}), config.get("cluster", {})
        self._courier.start()
        self._courier.send(
            [
                RunUpdate(
                    key=KEY,
                    name=f"train {self._id}",
                    params={
                        **{param_name(name): param_text(value) for name, value in knobs.items()},
                        "model": str(model.get("size", "")),
                        "ranks": str(cluster.get("workers", "")),
                        "device": str(cluster.get("device", "")),
                        "lr": param_text(config.get("train", {}).get("lr", "")),
                    },
                    tags=clean_tags({"lf_ray.purpose": "train", **tags}),
                    status=RUNNING,
                    start_ms=in_ms(self._clock.wall_s()),
                    texts={"config.json": json.dumps(config, sort_keys=True, indent=1)},
                )
            ]
        )

    def take(self, lines: Sequence[Line]) -> None:
        """Takes lines of the books; steps become a point every few seconds."""
        for line in lines:
            if line["event"] == "started":
                self._samples_per_step = line["samples_per_step"]
            elif line["event"] == "step":
                self._steps.append(line)
            elif line["event"] == "action_error" and "scaled" in line:
                ends = {f"action_error_{end}": line.get(f"scaled_{end}") for end in ("lo", "hi")}
                known = {name: value for name, value in ends.items() if value is not None}
                self._send_numbers({"action_error": line["scaled"], **known}, line["step"])
        if self._clock.monotonic_s() - self._sent_s >= _POINT_EVERY_S:
            self._send_steps()

    def end(self, exit_code: int, tags: Mapping[str, object], files: Sequence[Path] = ()) -> None:
        """Sends what is left, the files, and how it ended."""
        self._send_steps()
        self._courier.send(
            [
                RunUpdate(
                    key=KEY,
                    tags=clean_tags(tags),
                    status=STATUS.get(exit_code, FAILED),
                    end_ms=in_ms(self._clock.wall_s()),
                    files=tuple(str(path) for path in files if path.is_file()),
                )
            ]
        )

    def close(self, timeout_s: float = CLOSE_S) -> list[str]:
        """Delivers what waits, no longer than told; returns what a person should know."""
        waiting = self._courier.close(timeout_s)
        if waiting:
            self._courier.warn(f"{waiting} updates were not delivered to {self._uri}.")
        return list(self._courier.warnings)

    def _send_steps(self) -> None:
        steps, self._steps = self._steps, []
        self._sent_s = self._clock.monotonic_s()
        if not steps:
            return
        step_s = statistics.fmean(item["step_s"] for item in steps)
        numbers = {
            "loss": statistics.fmean(float(item["loss"]) for item in steps),
            "grad_norm": statistics.fmean(float(item["grad_norm"]) for item in steps),
            "lr": steps[-1]["lr"],
            "step_ms": step_s * 1e3,
            "throughput": self._samples_per_step / step_s if step_s > 0 else 0.0,
            "data_wait": statistics.fmean(item["wait_s"] for item in steps) / max(step_s, 1e-9),
        }
        self._send_numbers(numbers, steps[-1]["step"])

    def _send_numbers(self, numbers: Mapping[str, float], step: int) -> None:
        points, odd = finite(points_at(numbers, step, self._clock.wall_s()))
        self._courier.send([RunUpdate(key=KEY, metrics=tuple(points), tags=clean_tags(odd))])

    def _deliver(self, update: RunUpdate) -> None:
        if self._runs is None:
            self._runs = MlflowRuns(self._uri, "train", self._id)
        self._runs.apply(update)
