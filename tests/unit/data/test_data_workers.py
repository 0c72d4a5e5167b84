"""Decoding processes: same batches, replaced when killed, gone when the loader is."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from lf_ray.data.frames.decoder import Footage
from lf_ray.data.frames.pool import ChildWorker
from lf_ray.data.frames.request import DecodeReply, DecodeRequest
from lf_ray.data.lerobot.meta import VideoSpan
from lf_ray.data.loader import BatchLoader
from lf_ray.data.video import FrameSize
from lf_ray.settings import DataSettings, SweepConfig


def config(root: Path, cache_dir: Path, **settings: object) -> SweepConfig:
    data = DataSettings(source="lerobot", path=str(root), cache_dir=str(cache_dir), **settings)  # type: ignore[arg-type]
    return SweepConfig(data=data)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("order", ["shuffle", "block"])
def test_batches_do_not_depend_on_who_decodes(
    tiny_set: Path, tmp_path: Path, cache: bool, order: str
) -> None:
    expected = []
    with BatchLoader(config(tiny_set, tmp_path / "a", order=order), 0, 2, 0, 4) as loader:
        expected = [loader.next()[0] for _ in range(6)]
    settings = config(tiny_set, tmp_path / "b", order=order, cache=cache, workers=2)
    with BatchLoader(settings, 0, 2, 0, 4) as loader:
        for batch in expected:
            got, _ = loader.next()
            assert all(torch.equal(batch[name], got[name]) for name in batch)
        loader.set(workers=0, prefetch=5)
        loader.seek(8)
        got, _ = loader.next()
        assert torch.equal(got["images_BKHWC"], expected[1]["images_BKHWC"])


@pytest.mark.parametrize("workers", [0, 2])
def test_cache_and_threads_change_while_the_loader_runs(
    tiny_set: Path, tmp_path: Path, workers: int
) -> None:
    settings = config(tiny_set, tmp_path / "b", cache=False, workers=workers)
    with BatchLoader(config(tiny_set, tmp_path / "a"), 0, 1, 0, 4) as loader:
        expected = [loader.next()[0]["images_BKHWC"] for _ in range(6)]
    with BatchLoader(settings, 0, 1, 0, 4) as loader:
        got = [loader.next()[0]["images_BKHWC"]]
        assert loader.in_force()["data_cache"] == "off"
        for cache, threads in ((True, 2), (False, 1), (True, 1)):
            loader.set(cache=cache, decode_threads=threads)
            assert loader.fill(60)
            got.append(loader.next()[0]["images_BKHWC"])
            found = loader.in_force()
            assert found["data_cache"] == ("whole" if cache else "off")
            assert found["data_decode_threads"] == threads
        loader.set(workers=1 - workers // 2, prefetch=3)
        got += [loader.next()[0]["images_BKHWC"] for _ in range(2)]
    assert all(torch.equal(mine, other) for mine, other in zip(got, expected, strict=True))


def test_a_cache_without_room_is_not_called_whole(tiny_set: Path, tmp_path: Path) -> None:
    with BatchLoader(config(tiny_set, tmp_path, cache_gib=1e-4), 0, 1, 0, 4) as loader:
        assert loader.fill(60)
        assert loader.in_force()["data_cache"] == "part"
        loader.next()


def test_a_killed_worker_is_replaced_and_none_outlives_the_loader(
    tiny_set: Path, tmp_path: Path
) -> None:
    with BatchLoader(config(tiny_set, tmp_path), 0, 1, 0, 4) as loader:
        loader.seek(4000)
        expected = [loader.next()[0] for _ in range(3)]
    settings = config(tiny_set, tmp_path, cache=False, workers=1, prefetch=1)
    with BatchLoader(settings, 0, 1, 0, 4) as loader:
        loader.next()
        (first,) = loader.worker_pids()
        os.kill(first, signal.SIGKILL)
        loader.seek(4000)
        for batch in expected:
            assert torch.equal(loader.next()[0]["images_BKHWC"], batch["images_BKHWC"])
        (second,) = loader.worker_pids()
        assert second != first
    assert not is_alive(second)


def test_a_worker_ends_when_its_parent_is_gone() -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "lf_ray.data.frames.child", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.close()
    assert child.wait(20) == 0
    child.stdout.close()


def test_memory_stays_bounded_over_epochs(tiny_set: Path, tmp_path: Path) -> None:
    settings = config(tiny_set, tmp_path, cache=False, workers=1, prefetch=1)
    with BatchLoader(settings, 0, 1, 0, 3) as loader:

        def epoch_bytes() -> int:
            for _ in range(loader.epoch_samples // 3):
                loader.next()
            (pid,) = loader.worker_pids()
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")

        early = max(epoch_bytes() for _ in range(3))
        late = max(epoch_bytes() for _ in range(20))
    assert late < early + 8_000_000


def test_a_request_that_kills_is_named(tiny_set: Path) -> None:
    class Killing(ChildWorker):
        def _asked(self, request: DecodeRequest) -> DecodeReply:
            raise EOFError

    footage = Footage(VideoSpan(Path("bad.mp4")), np.arange(3.0), 0.05)
    request = DecodeRequest(0, 10, footage, (1, 2), FrameSize(4, 4), None)
    reply = Killing(1).answer(request)
    assert sorted(reply.bad) == [11, 12]
    assert "died twice" in reply.bad[11].reason


def test_close_does_not_wait_for_the_whole_cache(gr1_path: Path, tmp_path: Path) -> None:
    loader = BatchLoader(config(gr1_path, tmp_path), 0, 1, 0, 4)
    started_s = time.monotonic()
    loader.close()
    assert time.monotonic() - started_s < 2
