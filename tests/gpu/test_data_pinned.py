"""Batches on their way to a GPU: pinned on the host, one tensor a field, copied beside the host."""

import json
import sys
import time
from pathlib import Path

import pytest
import torch

from lf_ray.data.loader import BatchLoader
from lf_ray.data.sample_set import SampleSetShape, render_sample_set
from lf_ray.settings import DataSettings, SweepConfig

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
NUM_COPIES = 20


@pytest.fixture
def config(tmp_path: Path) -> SweepConfig:
    render_sample_set(tmp_path / "set", SampleSetShape(num_episodes=2, num_frames=40, side_px=64))
    data = DataSettings(
        source="lerobot", path=str(tmp_path / "set"), cache_dir=str(tmp_path / "cache")
    )
    return SweepConfig(data=data)


@pytest.mark.parametrize("workers", [0, 1])
def test_every_field_of_a_batch_is_one_pinned_tensor(config: SweepConfig, workers: int) -> None:
    config.data.workers = workers
    with (
        BatchLoader(config, 0, 1, 0, 4, "cuda") as pinned,
        BatchLoader(config, 0, 1, 0, 4, "cpu") as plain,
    ):
        for _ in range(3):
            batch, expected = pinned.next()[0], plain.next()[0]
            assert set(batch) == set(expected)
            for name, tensor in batch.items():
                assert tensor.is_pinned(), name
                assert not expected[name].is_pinned(), name
                assert tensor.is_contiguous(), name
                copied = tensor.to("cuda", non_blocking=True)
                assert torch.equal(copied.cpu(), expected[name]), name


def test_a_batch_that_is_dropped_at_once_still_arrives(config: SweepConfig) -> None:
    """Host memory of a copy under way is not given to the next batch."""
    with BatchLoader(config, 0, 1, 0, 4, "cuda") as loader:
        expected = [loader.next()[0]["images_BKHWC"].clone() for _ in range(8)]
        loader.seek(0)
        busy = torch.randn(4096, 4096, device="cuda")
        for _ in range(20):
            busy = busy @ busy / 64
        arrived = [loader.next()[0]["images_BKHWC"].to("cuda", non_blocking=True) for _ in range(8)]
        torch.cuda.synchronize()
    assert all(torch.equal(got.cpu(), want) for got, want in zip(arrived, expected, strict=True))


def test_the_host_does_not_wait_for_a_pinned_copy() -> None:
    images = torch.empty(64, 2, 256, 256, 3, dtype=torch.uint8, pin_memory=True)
    on_device = images.cuda()
    asked_s, whole_s = [], []
    for _ in range(NUM_COPIES):
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        on_device.copy_(images, non_blocking=True)
        asked_s.append(time.perf_counter() - began_s)
        torch.cuda.synchronize()
        whole_s.append(time.perf_counter() - began_s)
    asked, whole = (sorted(values)[NUM_COPIES // 2] for values in (asked_s, whole_s))
    line = {
        "what": "pinned_copy",
        "bytes": images.numel(),
        "n": NUM_COPIES,
        "host_ms": asked * 1e3,
        "whole_ms": whole * 1e3,
        "gb_per_s": images.numel() / whole / 1e9,
    }
    sys.stdout.write(json.dumps(line) + "\n")
    assert asked < 0.5 * whole
