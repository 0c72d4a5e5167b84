"""`python -m lf_ray.bench data PATH`: samples a second, by stage and by worker count.

    python -m lf_ray.bench data PATH --model nano --batch 4       frames as nano wants them
    python -m lf_ray.bench data PATH --batch 32 --workers 4,8,16 --rounds 3

Ours and a plain PyTorch DataLoader (one PyAV seek for each frame, files kept open) deliver the same
pictures from the same files, in turns within one run: warm (ours from the frame cache, both with
the files in memory) and cold (frame cache empty, files dropped from memory; our start-up counts,
the plain loader's does not).
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from lf_ray.bench.arguments import json_line, number, whole, wholes
from lf_ray.data.batches.opening import open_training_set
from lf_ray.data.batches.sizes import groot_config
from lf_ray.data.batches.training_set import TrainingSet
from lf_ray.data.check import check_dataset, raise_problems
from lf_ray.data.frames.pool import DecoderPool
from lf_ray.data.frames.source import Camera
from lf_ray.data.loader import BatchLoader
from lf_ray.data.video import SeekingReader
from lf_ray.errors import LfRayError
from lf_ray.machine import detect
from lf_ray.settings import DataSettings, ModelSettings, SweepConfig
from models.groot_n1_6.views.preprocess import preprocess_views

TARGET_GPUS = 8
TARGET_SAMPLES_S = 300.0


@dataclass(frozen=True)
class Rate:
    """A measured stage.

    Attributes:
        stage: what ran.
        workers: decoding processes; 0 runs in the measuring process.
        num_samples: how many samples passed.
        wall_s: in what time.
        cpu_s: of this process alone.
    """

    stage: str
    workers: int
    num_samples: int
    wall_s: float
    cpu_s: float

    @property
    def per_s(self) -> float:
        """Returns samples a second."""
        return self.num_samples / self.wall_s

    @property
    def per_core(self) -> float:
        """Returns samples a second of processor time; for stages without workers."""
        return self.num_samples / max(self.cpu_s, 1e-9)


class PlainDataset(Dataset[dict[str, Any]]):
    """A LeRobot set the plain way: a sample is a seek a camera and a slice of the rows."""

    def __init__(self, training_set: TrainingSet, samples: np.ndarray) -> None:
        self._dataset = training_set.parts[0].dataset
        self._cameras: list[Camera] = [item.camera for item in training_set.parts[0].sources]
        self._samples = samples
        self._open: dict[Path, SeekingReader] = {}

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, place: int) -> dict[str, Any]:
        rows = self._dataset.rows_of(self._samples[place : place + 1])
        episode = self._dataset.episode_at(int(rows[0]))
        frames = []
        for camera in self._cameras:
            footage = camera.footage(episode)
            time_s = footage.row_times_s[rows[0] - self._dataset.first_row_E[episode]]
            start_s = footage.row_times_s[0] - (footage.span.from_s or 0.0)
            reader = self._open.get(footage.span.path)
            if reader is None:
                reader = self._open[footage.span.path] = SeekingReader(footage.span.path)
            frames.append(reader.at(float(time_s - start_s), camera.size))
        return {
            "images": torch.from_numpy(np.stack(frames)),
            "state": torch.from_numpy(self._dataset.states(rows)[0]),
            "action": torch.from_numpy(self._dataset.actions(rows)[0]),
        }


@dataclass(frozen=True)
class Bench:
    """What is measured, and for how long.

    Attributes:
        seconds: cap of one run of the plain loader.
    """

    data: DataSettings
    model: ModelSettings
    batch_size: int
    seconds: float

    def opened(self, cache_dir: Path, *, cache: bool = True) -> TrainingSet:
        """Returns the data set with its cache in a folder."""
        return open_training_set(
            replace(self.data, cache_dir=str(cache_dir), cache=cache), self.model
        )

    def plain(self, stage: str, training_set: TrainingSet, workers: int, seed: int) -> Rate:
        """Measures the plain loader over shuffled samples until time is up."""
        samples = np.random.default_rng(seed).permutation(training_set.sizes[0])
        # Not forked: this process has decoded, and a forked worker waits for its decoder's locks.
        loader = DataLoader(
            PlainDataset(training_set, samples),
            self.batch_size,
            num_workers=workers,
            multiprocessing_context="forkserver" if workers else None,
        )
        batches = iter(loader)
        if workers:
            next(batches)  # its workers' start is not held against it
        return _timed(stage, workers, self.batch_size, batches, self.seconds)

    def ours(self, stage: str, training_set: TrainingSet, workers: int, num_samples: int) -> Rate:
        """Measures our loader from its start over a number of samples."""
        config = SweepConfig(data=replace(self.data, workers=workers, prefetch=4), model=self.model)
        started_s, cpu_s = time.monotonic(), time.process_time()
        with BatchLoader(config, 0, 1, 0, self.batch_size, source=training_set) as loader:
            for _ in range(max(num_samples // self.batch_size, 1)):
                loader.next()
            wall_s, cpu_s = time.monotonic() - started_s, time.process_time() - cpu_s
            return Rate(stage, workers, loader.position, wall_s, cpu_s)

    def warm(self, training_set: TrainingSet, workers: Sequence[int], rounds: int) -> list[Rate]:
        """Measures both with everything in memory, in turns."""
        self.ours("fill", training_set, 0, training_set.sizes[0])
        num_samples = max(4 * training_set.sizes[0], 4000)
        rates = []
        for turn in range(rounds):
            for count in workers:
                pair: list[Callable[[], Rate]] = [
                    lambda c=count, t=turn: self.plain("plain warm", training_set, c, t),  # type: ignore[misc]
                    lambda c=count: self.ours("ours warm", training_set, c, num_samples),  # type: ignore[misc]
                ]
                rates += [run() for run in (pair if turn % 2 == 0 else reversed(pair))]
        return rates

    def cold(self, folder: Path, workers: Sequence[int], rounds: int) -> list[Rate]:
        """Measures both from empty caches over the first epoch, in turns."""
        rates = []
        for turn in range(rounds):
            for count in workers:
                for kind in ("plain", "ours") if turn % 2 == 0 else ("ours", "plain"):
                    training_set = self.opened(folder / f"{kind}{turn}{count}")
                    drop_from_memory(training_set)
                    if kind == "plain":
                        rates.append(self.plain("plain cold", training_set, count, turn))
                    else:
                        size = training_set.sizes[0]
                        rates.append(self.ours("ours cold", training_set, count, size))
                    training_set.close()
        return rates

    def stages(self, training_set: TrainingSet, folder: Path) -> list[Rate]:
        """Measures each stage of ours alone, in this process."""
        bare = self.opened(folder, cache=False)
        rows = np.arange(min(bare.parts[0].dataset.num_rows, 2000))
        requests = [r for source in bare.parts[0].sources for r in source.requests(rows)]
        started_s, cpu_s = time.monotonic(), time.process_time()
        pool = DecoderPool(0, 1)
        num_frames = sum(len(reply.result().frames) for reply in pool.submit(requests))
        pool.close()
        num_samples = num_frames // len(bare.parts[0].sources)
        wall_s, cpu_s = time.monotonic() - started_s, time.process_time() - cpu_s
        rates = [Rate("1 decode", 0, num_samples, wall_s, cpu_s)]
        bare.close()
        rates.append(replace(self.ours("2 batch from cache", training_set, 0, 8000)))
        return [*rates, self._device_stage(training_set)]

    def _device_stage(self, training_set: TrainingSet) -> Rate:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        config = groot_config(self.model)
        data = SweepConfig(data=self.data, model=self.model)
        with BatchLoader(data, 0, 1, 0, self.batch_size, device, training_set) as loader:
            batch, _ = loader.next()

            def preprocess() -> Iterator[int]:
                while True:
                    images, augment = (
                        batch[name].to(device, non_blocking=True)
                        for name in ("images_BKHWC", "augment_BD")
                    )
                    yield int(preprocess_views(images, augment, config).isnan().any())

            name = f"3 copy and preprocess ({device.type})"
            return _timed(name, 0, self.batch_size, preprocess(), min(self.seconds, 2.0))


def _timed(
    stage: str, workers: int, batch_size: int, batches: Iterator[Any], seconds: float
) -> Rate:
    started_s, cpu_s, num_batches = time.monotonic(), time.process_time(), 0
    for _ in batches:
        num_batches += 1
        if time.monotonic() - started_s > seconds:
            break
    wall_s = time.monotonic() - started_s
    return Rate(stage, workers, num_batches * batch_size, wall_s, time.process_time() - cpu_s)


def drop_from_memory(training_set: TrainingSet) -> None:
    """Asks the system to forget the videos, so that they are read from disk again."""
    for part in training_set.parts:
        for source in part.sources:
            for episode in range(len(part.dataset.meta.episodes)):
                file = os.open(source.camera.footage(episode).span.path, os.O_RDONLY)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(file)


def best(rates: Sequence[Rate], stage: str) -> float:
    """Returns the samples a second at the stage's best worker count, pooled over its turns."""
    by_workers: dict[int, list[Rate]] = {}
    for rate in rates:
        if rate.stage == stage:
            by_workers.setdefault(rate.workers, []).append(rate)
    return max(
        sum(rate.num_samples for rate in turns) / sum(rate.wall_s for rate in turns)
        for turns in by_workers.values()
    )


def spread(rates: Sequence[Rate], temperature: str) -> list[float]:
    """Returns the smallest and the largest ratio, ours over plain, of any single turn."""
    by_stage: dict[str, dict[int, list[Rate]]] = {}
    for rate in rates:
        by_stage.setdefault(rate.stage, {}).setdefault(rate.workers, []).append(rate)
    tops = [
        [
            max(rate.per_s for rate in turn)
            for turn in zip(*by_stage[f"{whose} {temperature}"].values())
        ]
        for whose in ("ours", "plain")
    ]
    ratios = [ours / plain for ours, plain in zip(*tops)]
    return [round(min(ratios), 2), round(max(ratios), 2)]


def summary(rates: Sequence[Rate], frame_bytes: int) -> dict[str, Any]:
    """Returns the ratios, the rates a core, and what eight fast GPUs would need.

    Each ratio is pooled over the turns; its `_span` is the smallest and the largest of one turn.
    """
    from_cache = next(rate for rate in rates if rate.stage.startswith("2 "))
    decode = next(rate for rate in rates if rate.stage.startswith("1 "))
    wanted = TARGET_GPUS * TARGET_SAMPLES_S
    return {
        "ratio_warm": round(best(rates, "ours warm") / best(rates, "plain warm"), 2),
        "ratio_cold": round(best(rates, "ours cold") / best(rates, "plain cold"), 2),
        "ratio_warm_span": spread(rates, "warm"),
        "ratio_cold_span": spread(rates, "cold"),
        "warm_samples_s_core": round(from_cache.per_core),
        "decoded_samples_s_core": round(decode.per_core),
        "need": {
            "samples_s": wanted,
            "cores_from_cache": round(wanted / from_cache.per_core, 2),
            "cores_decoding": round(wanted / decode.per_core, 2),
            "read_bytes_s": round(wanted * frame_bytes),
            "cache_bytes_per_1000_samples": frame_bytes * 1000,
        },
    }


def needs_text(need: dict[str, Any]) -> str:
    """Returns in words what eight GPUs at 300 samples/s each need."""
    return (
        f"{TARGET_GPUS} GPUs at {TARGET_SAMPLES_S:.0f} samples/s need {need['samples_s']:.0f} "
        f"samples/s: {need['cores_from_cache']:.1f} cores from the frame cache, or "
        f"{need['cores_decoding']:.1f} cores that decode; {need['read_bytes_s'] / 1e9:.2f} GB/s "
        f"read from the cache (memory, or a disk that fast where it does not fit), and "
        f"{need['cache_bytes_per_1000_samples'] / 1e9:.2f} GB of cache for 1,000 samples."
    )


def run_bench(bench: Bench, workers: Sequence[int], rounds: int) -> tuple[list[Rate], int]:
    """Returns all measurements, and the bytes of one sample's pictures."""
    with tempfile.TemporaryDirectory(prefix="lf-ray-bench-") as folder:
        training_set = bench.opened(Path(folder) / "warm")
        try:
            rates = bench.warm(training_set, workers, rounds)
            rates += bench.stages(training_set, Path(folder) / "bare")
            rates += bench.cold(Path(folder), workers, rounds)
            return rates, int(np.prod(training_set.image_shape(1)))
        finally:
            training_set.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark and returns its exit code: 0, or 2 for data that can't be trained on."""
    options = _parser().parse_args(argv)
    data = DataSettings(source="lerobot", path=options.path, embodiment=options.embodiment)
    image_px = 252 if options.model == "3b" else 56
    model = ModelSettings(size=options.model, image_px=image_px)
    bench = Bench(data, model, options.batch, options.seconds)
    try:
        raise_problems(check_dataset(data, model))
        rates, frame_bytes = run_bench(bench, sorted(set(options.workers)), options.rounds)
    except LfRayError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for rate in rates:
        sys.stdout.write(
            f"{rate.stage:30} workers {rate.workers}  {rate.per_s:9.1f} samples/s  "
            f"n {rate.num_samples:6} in {rate.wall_s:6.2f} s\n"
        )
    numbers = summary(rates, frame_bytes)
    sys.stdout.write(needs_text(numbers["need"]) + "\n")
    head = {"bench": "data", "path": options.path, "model": options.model, "batch": options.batch}
    head["rounds"] = options.rounds
    machine = {
        "machine": detect().label,
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
    }
    sys.stdout.write(json_line({**head, **machine, **numbers}))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lf_ray.bench data", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("path", help="folder of a LeRobot data set")
    parser.add_argument("--model", default="3b", choices=("nano", "3b"), help="decides frame size")
    parser.add_argument("--embodiment", help="embodiment tag")
    parser.add_argument("--batch", type=whole(1), default=16, help="samples of a batch")
    parser.add_argument("--workers", type=wholes(0), default="0,1,2", help="worker counts")
    parser.add_argument("--rounds", type=whole(1), default=2, help="turns of each pair")
    parser.add_argument("--seconds", type=number(0.1), default=4.0, help="cap of a plain run")
    return parser


if __name__ == "__main__":
    sys.exit(main())
