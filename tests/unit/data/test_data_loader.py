"""The loader: fixed order, resumable, every sample once an epoch, nothing left behind."""

import threading
from pathlib import Path

import pytest
import torch

from lf_ray.data.loader import BatchLoader, open_batch_source
from lf_ray.settings import DataSettings, SweepConfig


def sample_config(cache_dir: Path, **data: object) -> SweepConfig:
    settings = DataSettings(cache_dir=str(cache_dir), **data)  # type: ignore[arg-type]
    return SweepConfig(data=settings)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_batch_has_the_fields_of_the_model(cache_dir: Path) -> None:
    from models.groot_n1_6.batch import BatchShape, check_batch
    from models.groot_n1_6.config import GrootConfig

    with BatchLoader(sample_config(cache_dir), 0, 1, 0, 4) as loader:
        batch, wait_s = loader.next()
    assert wait_s >= 0
    height, width = batch["images_BKHWC"].shape[2:4]
    shape = BatchShape(
        batch_size=4,
        num_views=1,
        frame_height=height,
        frame_width=width,
        num_text=batch["text_index_BX"].shape[1],
    )
    check_batch(batch, GrootConfig.nano(), shape)
    assert batch["images_BKHWC"].float().std() > 10
    assert 0 < batch["action_mask_BTA"].sum() < batch["action_mask_BTA"].numel()


def test_ranks_see_every_sample_once_an_epoch(cache_dir: Path) -> None:
    config = sample_config(cache_dir)
    seen: list[bytes] = []
    with BatchLoader(config, 0, 1, 3, 1) as single:
        num_samples = single.epoch_samples
        expected = sorted(_key(single.next()[0], 0) for _ in range(num_samples))
    for rank in range(3):
        with BatchLoader(config, rank, 3, 3, 4) as loader:
            for _ in range(num_samples // 12):
                batch, _ = loader.next()
                seen += [_key(batch, place) for place in range(4)]
    assert num_samples % 12 == 0
    assert sorted(seen) == expected


def _key(batch: dict[str, torch.Tensor], place: int) -> bytes:
    return (
        batch["images_BKHWC"][place].numpy().tobytes() + batch["state_B1W"][place].numpy().tobytes()
    )


def test_seek_returns_the_same_batches_whatever_the_batch_before(cache_dir: Path) -> None:
    config = sample_config(cache_dir)
    with BatchLoader(config, 1, 2, 0, 4) as loader:
        batches = [loader.next()[0] for _ in range(5)]
        assert loader.position == 40
        loader.seek(24)
        again, _ = loader.next()
        assert all(torch.equal(batches[3][name], again[name]) for name in again)
        loader.set(batch_size=2)
        loader.seek(24)
        half, _ = loader.next()
        assert torch.equal(half["state_B1W"], again["state_B1W"][:2])


def test_order_changes_with_seed_and_epoch(cache_dir: Path) -> None:
    config = sample_config(cache_dir)
    source = open_batch_source(config)
    with (
        BatchLoader(config, 0, 1, 0, 8, source=source) as first,
        BatchLoader(config, 0, 1, 1, 8, source=source) as other,
    ):
        state = first.next()[0]["state_B1W"]
        assert not torch.equal(state, other.next()[0]["state_B1W"])
        first.seek(first.epoch_samples)
        assert not torch.equal(state, first.next()[0]["state_B1W"])


def test_synthetic_batches_are_labelled_and_repeatable(cache_dir: Path) -> None:
    config = sample_config(cache_dir, source="synthetic")
    with BatchLoader(config, 0, 2, 5, 4) as loader:
        assert loader.data_id == "synthetic"
        batch, _ = loader.next()
        loader.seek(0)
        again, _ = loader.next()
    assert all(torch.equal(batch[name], again[name]) for name in batch)


def test_no_thread_outlives_close(cache_dir: Path) -> None:
    before = threading.active_count()
    loader = BatchLoader(sample_config(cache_dir), 0, 1, 0, 4)
    loader.next()
    loader.close()
    assert threading.active_count() == before


def test_real_data_set(gr1_path: Path, cache_dir: Path) -> None:
    config = sample_config(cache_dir, source="lerobot", path=str(gr1_path))
    with BatchLoader(config, 0, 1, 0, 4) as loader:
        batch, _ = loader.next()
        assert loader.epoch_samples == 2096 - 5 * 15
    assert batch["action_mask_BTA"].sum() == 4 * 16 * 44
    assert batch["embodiment_B"].tolist() == [2] * 4
