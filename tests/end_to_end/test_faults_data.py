"""Faults of the input path under a whole sweep: a decoding process killed, a video broken within.

`sweeps/data.py` takes the batches that training takes, by the same loader, without the training.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lf_ray.data.sample_set import SampleSetShape, render_sample_set
from lf_ray.data.video import VideoReader, write_video
from lf_ray.protocol import OutcomeKind, TrialRecord
from lf_ray.record.history import read_journal
from lf_ray.testing.sweep_process import SweepProcess
from lf_ray.trial.faults.leftovers import describe

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

SWEEP = Path(__file__).resolve().parents[2] / "sweeps" / "data.py"
WORDS = ("data.workers=1", "data.cache=false", "data.step_s=0.05", "sweep.trials=3")
BROKEN = "videos/chunk-000/observation.images.front/episode_000001.mp4"


@pytest.fixture
def robot_set(tmp_path: Path) -> Path:
    root = tmp_path / "set"
    render_sample_set(root, SampleSetShape(num_episodes=3, num_frames=24, side_px=32))
    return root


@pytest.fixture
def broken_set(robot_set: Path) -> Path:
    """Episode 1 has good ends, so that a look before the sweep finds nothing."""
    path = robot_set / BROKEN
    with VideoReader(path) as reader:
        frames = [frame for _, frame in reader.decode(0, 23, reader.size)]
    write_video(path, frames, 20.0, group_frames=4)
    data = bytearray(path.read_bytes())
    middle = data.find(b"mdat") + (data.find(b"moov") - data.find(b"mdat")) // 2
    data[middle : middle + 40] = b"\xff" * 40
    path.write_bytes(data)
    return robot_set


@pytest.fixture
def lives() -> Iterator[list[SweepProcess]]:
    started: list[SweepProcess] = []
    yield started
    for item in started:
        item.end()


def data_sweep(lives: list[SweepProcess], folder: Path, root: Path, *words: str) -> SweepProcess:
    given = (f"data.path={root}", f"data.cache_dir={folder / 'cache'}", *WORDS, *words)
    lives.append(SweepProcess(folder / "sweep", *given, program=[str(SWEEP)]))
    return lives[-1]


def records(life: SweepProcess) -> list[TrialRecord]:
    assert life.journal is not None
    return list(read_journal(life.journal).records)


def decoders(life: SweepProcess) -> list[int]:
    return [pid for pid in life.kin.pids() if "lf_ray.data.frames.child" in describe(pid)]


def test_a_broken_video_ends_the_sweep_with_frame_file_and_rank(
    lives: list[SweepProcess], tmp_path: Path, broken_set: Path
) -> None:
    life = data_sweep(lives, tmp_path, broken_set)
    assert life.wait() == 1, life.tail()
    assert life.left() == []
    kept = records(life)
    assert {record.outcome.kind for record in kept} == {OutcomeKind.FAILED}
    assert kept[0].outcome.rank == 0
    assert "frame" in kept[0].outcome.reason
    assert Path(BROKEN).name in kept[0].outcome.reason
    assert "skip_corrupt=true" in kept[0].outcome.reason
    assert "report.html" in life.tail()


def test_a_killed_decoding_process_is_replaced_and_a_broken_video_left_out_on_request(
    lives: list[SweepProcess], tmp_path: Path, broken_set: Path
) -> None:
    """One sweep gets over both, and says so of each."""
    life = data_sweep(lives, tmp_path, broken_set, "data.skip_corrupt=true")
    assert life.until(lambda: bool(decoders(life))), life.tail()
    os.kill(decoders(life)[0], signal.SIGKILL)
    assert life.wait() == 0, life.tail()
    assert life.left() == []
    kept = records(life)
    assert {record.outcome.kind for record in kept} == {OutcomeKind.COMPLETED}
    told = [record.outcome.reason for record in kept]
    assert any("rank 0: a decoding process died once and was replaced" in text for text in told)
    assert kept[0].metrics["samples_skipped"] > 0
    assert any(Path(BROKEN).name in text for text in kept[0].bad_frames)
