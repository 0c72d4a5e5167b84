"""What a training is to do, resolved from the settings before anything starts. No torch.

Pure: settings, a best.yaml's `found` block and the machine in; a plan, or refusals, out.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lf_ray.errors import ConfigError, four_parts
from lf_ray.machine import Machine
from lf_ray.protocol import Deadlines, Interval
from lf_ray.runtime.update.schedule import DEFAULT_STEPS, LrSchedule, lr_schedule
from lf_ray.settings import SweepConfig, Trainer

# A demonstration on two cores that ends within minutes; a GPU gets the recipe's own default.
CPU_STEPS = 1_000
MAX_SAVE_EVERY = 1_000
_HELD_OUT_SHARE = 20
_MIN_EPISODES = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPlan:
    """Everything that the ranks need to know of a training; picklable.

    Attributes:
        folder: of the result; reachable under this path by rank 0 and the driver.
        config: with its length, saving and base batch filled in.
        identity: what a checkpoint to go on from must have been saved with.
        stop_path: a file whose appearance asks for a checkpoint and an early end.
        block_s: steps run about this long before ranks talk: a host that waits for the device
            costs some ten milliseconds each time.
        save_s: how long a copy to the host, and a write that is still under way, may take.
        export_s: how long the export, and the action error, may each take.
    """

    folder: Path
    config: SweepConfig
    data_id: str
    num_steps: int
    save_every: int
    identity: Mapping[str, Any]
    versions: Mapping[str, str] = field(default_factory=dict)
    deadlines: Deadlines = field(
        default_factory=lambda: Deadlines(
            start_s=900.0, first_batch_s=900.0, capture_s=300.0, step_s=120.0
        )
    )
    block_s: float = 4.0
    save_s: float = 900.0
    export_s: float = 3600.0

    @property
    def checkpoints(self) -> Path:
        """Returns the folder of the checkpoints."""
        return self.folder / "checkpoints"

    @property
    def stop_path(self) -> Path:
        """Returns the file that asks for an end."""
        return self.folder / "stop"

    @property
    def samples_per_step(self) -> int:
        """Returns the samples over all ranks that one step consumes."""
        return global_batch(self.config)

    def steps_to_save(self, step: int) -> int:
        """Returns how many steps follow `step` before the next checkpoint, or the end."""
        left = self.num_steps - step
        if self.save_every <= 0:
            return left
        return min(left, self.save_every - step % self.save_every)


def global_batch(config: SweepConfig) -> int:
    """Returns the samples over all ranks that one step consumes."""
    return config.batch.per_gpu * config.batch.accumulation * config.num_workers


def schedule_of(config: SweepConfig) -> LrSchedule:
    """Returns the learning rate of every step."""
    batch = global_batch(config)
    base = config.train.base_global_batch or batch
    return lr_schedule(config.train, config.batch.lr_rule, batch, base)


def resolved(config: SweepConfig, found: Mapping[str, Any], num_episodes: int) -> SweepConfig:
    """Returns the settings with what they leave open filled in.

    Args:
        config: as composed.
        found: of the best.yaml; its baseline's batch is what lr and warm-up belong to.
        num_episodes: of the smallest data set; 0 where there are none.

    Raises:
        ConfigError: two lengths, a length or share that makes no sense, another trainer.
    """
    _check(config, num_episodes)
    train, data = config.train, config.data
    if train.max_steps is None and train.max_samples is None:
        on_gpu = config.cluster.device == "cuda"
        train = dataclasses.replace(train, max_steps=DEFAULT_STEPS if on_gpu else CPU_STEPS)
    if train.base_global_batch is None:
        train = dataclasses.replace(train, base_global_batch=_base_batch(config, found))
    filled = dataclasses.replace(config, train=train)
    if train.save_every is None:
        tenth = -(-schedule_of(filled).num_steps // 10)
        train = dataclasses.replace(train, save_every=min(MAX_SAVE_EVERY, tenth))
    if data.holdout_episodes is None:
        share = max(1, num_episodes // _HELD_OUT_SHARE)
        held_out = share if num_episodes >= _MIN_EPISODES else 0
        data = dataclasses.replace(data, holdout_episodes=held_out)
    # The configuration passed the sweep's gate: a training compares nothing and holds no batches.
    measure = dataclasses.replace(config.measure, gate_steps=0)
    return dataclasses.replace(config, train=train, data=data, measure=measure)


def stale_reasons(
    found: Mapping[str, Any], config: SweepConfig, machine: Machine, data_id: str
) -> tuple[list[str], list[str]]:
    """Returns how a configuration's origin differs from what it would train: refused, and noted.

    Model, kind of device and number of ranks decide which setting is best; other data or versions
    may move it.
    """
    gpu = machine.gpus[0] if machine.gpus and config.cluster.device == "cuda" else ""
    was_gpu = next(iter(found.get("gpus") or ()), "") if found.get("device") == "cuda" else ""
    refused = _changes(
        found,
        [
            ("model", found.get("model"), config.model.size),
            ("device", found.get("device"), config.cluster.device),
            ("GPU", was_gpu or None, gpu),
            ("world size", found.get("world_size"), config.num_workers),
        ],
    )
    noted = _changes(found, [("data", found.get("data_id"), data_id)])
    return refused, noted


def refuse_stale(reasons: Sequence[str], accept: bool) -> None:
    """Refuses a configuration that was found elsewhere, unless it was accepted.

    Raises:
        ConfigError: naming what differs.
    """
    if reasons and not accept:
        raise ConfigError(
            four_parts(
                "taking a configuration that a sweep found",
                "it is best for the model, device and number of ranks that it was found on",
                "; ".join(reasons),
                "Run the sweep here, or train with it all the same: train.accept_stale=true.",
            )
        )


def promised(found: Mapping[str, Any]) -> Interval | None:
    """Returns the throughput that the sweep measured for the configuration."""
    rate = found.get("throughput_samples_per_s")
    return Interval.from_json(rate) if isinstance(rate, Mapping) else None


def _changes(found: Mapping[str, Any], pairs: Sequence[tuple[str, Any, Any]]) -> list[str]:
    return [
        f"{name} {was} -> {now}" for name, was, now in pairs if was not in (None, now) and found
    ]


def _base_batch(config: SweepConfig, found: Mapping[str, Any]) -> int:
    knobs = found.get("baseline_knobs") or {}
    per_gpu = knobs.get("batch.per_gpu", config.batch.per_gpu)
    accumulation = knobs.get("batch.accumulation", config.batch.accumulation)
    return int(per_gpu) * int(accumulation) * int(found.get("world_size") or config.num_workers)


def _check(config: SweepConfig, num_episodes: int) -> None:
    train, held_out = config.train, config.data.holdout_episodes
    lengths = f"train.max_steps={train.max_steps}, train.max_samples={train.max_samples}"
    rules = [
        (
            "train.max_steps and train.max_samples exclude each other",
            lengths,
            train.max_steps is None or train.max_samples is None,
        ),
        (
            "the length is at least 1",
            lengths,
            min(train.max_steps or 1, train.max_samples or 1) >= 1
            and 0 not in (train.max_steps, train.max_samples),
        ),
        ("train.save_every is 0 or more", f"{train.save_every}", (train.save_every or 0) >= 0),
        ("train.keep is at least 1", f"{train.keep}", train.keep >= 1),
        ("train.max_restarts is 0 or more", f"{train.max_restarts}", train.max_restarts >= 0),
        (
            "data.holdout_episodes leaves an episode to train on",
            f"{held_out} of {num_episodes}",
            not held_out or 0 <= held_out < num_episodes,
        ),
        ("lf_ray.train runs its own step", "trainer=loongforge", config.trainer is Trainer.native),
        (
            "a training needs real workers",
            f"cluster={config.cluster.kind}",
            not config.cluster.kind.startswith("sim_"),
        ),
    ]
    for rule, got, holds in rules:
        if not holds:
            change = "Correct that setting; --help shows an example."
            raise ConfigError(four_parts("planning the training", rule, got, change))
