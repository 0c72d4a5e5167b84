"""Two ranks on one cache, and writers that are killed."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from lf_ray.data.check import check_dataset
from lf_ray.data.sample_set import sample_set
from lf_ray.settings import DataSettings, ModelSettings

RANK = """
import hashlib, json, sys, time
from lf_ray.data.loader import BatchLoader
from lf_ray.settings import DataSettings, SweepConfig
rank, cache_dir = int(sys.argv[1]), sys.argv[2]
with BatchLoader(SweepConfig(data=DataSettings(cache_dir=cache_dir)), rank, 2, 0, 4) as loader:
    started_s = time.monotonic()
    assert loader.fill(60)
    digest = hashlib.sha256()
    for _ in range(loader.epoch_samples // 8):
        batch, _ = loader.next()
        digest.update(batch["images_BKHWC"].numpy().tobytes())
    waits = sorted(loader.next()[1] for _ in range(200))
    print(json.dumps({"digest": digest.hexdigest(), "wait_s": waits[100], "id": loader.data_id}))
"""


def start_rank(rank: int, cache_dir: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", RANK, str(rank), str(cache_dir)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def results(ranks: "list[subprocess.Popen[str]]") -> list[dict[str, object]]:
    lines = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks)
    return [json.loads(line.splitlines()[-1]) for line in lines]


def test_two_ranks_share_an_empty_cache_and_agree_with_a_full_one(tmp_path: Path) -> None:
    cold = results([start_rank(rank, tmp_path) for rank in range(2)])
    warm = results([start_rank(rank, tmp_path) for rank in range(2)])
    for first, second in zip(cold, warm):
        assert first["digest"] == second["digest"]
        assert first["id"] == second["id"]
        assert float(str(second["wait_s"])) < 0.05
    assert cold[0]["digest"] != cold[1]["digest"]
    assert not list(tmp_path.glob(".*"))


def test_a_killed_writer_of_the_sample_set_leaves_nothing_half(tmp_path: Path) -> None:
    code = f"from lf_ray.data.sample_set import *; sample_set(Path({str(tmp_path)!r}))"
    writer = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".*.tmp/data/*/*.parquet")):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    root = sample_set(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [root.name]
    data = DataSettings(source="lerobot", path=str(root))
    assert check_dataset(data, ModelSettings()) == []


def test_an_unwritable_cache_is_refused_before_start(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    (problem,) = check_dataset(DataSettings(cache_dir=str(blocker / "cache")), ModelSettings())
    assert problem.is_fatal
    assert "data.cache_dir" in problem.message
