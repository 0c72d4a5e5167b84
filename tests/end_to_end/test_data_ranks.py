"""Two ranks on one cache, and writers that are killed."""

import hashlib
import signal
import subprocess
import sys
import time
from pathlib import Path

from lf_ray.data.check import check_dataset
from lf_ray.data.loader import BatchLoader
from lf_ray.data.sample_set import sample_set
from lf_ray.settings import DataSettings, ModelSettings, SweepConfig
from lf_ray.testing.ranks import RankPlace, RankPool


def _read_epoch(place: RankPlace, cache_dir: str) -> tuple[str, float, str]:
    """Returns a digest of the rank's pictures, its middle wait once all are there, and the id."""
    config = SweepConfig(data=DataSettings(cache_dir=cache_dir))
    with BatchLoader(config, place.rank, place.world_size, 0, 4) as loader:
        assert loader.fill(60)
        digest = hashlib.sha256()
        for _ in range(loader.epoch_samples // 8):
            batch, _ = loader.next()
            digest.update(batch["images_BKHWC"].numpy().tobytes())
        waits_s = sorted(loader.next()[1] for _ in range(200))
        return digest.hexdigest(), waits_s[100], loader.data_id


def _in_new_ranks(cache_dir: Path) -> list[tuple[str, float, str]]:
    pool = RankPool(2)
    try:
        return pool.run(_read_epoch, str(cache_dir), deadline_s=100)
    finally:
        pool.close()


def test_two_ranks_share_an_empty_cache_and_agree_with_a_full_one(tmp_path: Path) -> None:
    cold = _in_new_ranks(tmp_path)
    warm = _in_new_ranks(tmp_path)
    for (digest, _, data_id), (again, wait_s, same_id) in zip(cold, warm):
        assert (digest, data_id) == (again, same_id)
        assert wait_s < 0.05
    assert cold[0][0] != cold[1][0]
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
