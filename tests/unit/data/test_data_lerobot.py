"""Versions, statistics and scaling: the same recording reads the same however it is stored."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lf_ray.data.batches.opening import open_training_set
from lf_ray.data.batches.training_set import TrainingSet
from lf_ray.data.check import check_dataset
from lf_ray.data.lerobot.dataset import LeRobotDataset, content_id
from lf_ray.data.lerobot.embodiments import DEFAULTS, choose_embodiment, choose_modality
from lf_ray.data.lerobot.meta import read_info, read_meta
from lf_ray.data.lerobot.modality import Group, Scaling, parse_modality
from lf_ray.data.lerobot.scaling import VectorScaler
from lf_ray.data.lerobot.statistics import compute_statistics, read_statistics
from lf_ray.errors import DataError
from lf_ray.settings import DataSettings, ModelSettings

Edit = Callable[[Path, Callable[[Any], None]], None]
SLOTS = {"new_embodiment": 0, "libero_panda": 1, "gr1": 2}


def opened(
    root: Path, cache_dir: Path | None = None, modality: str | None = None
) -> LeRobotDataset:
    info = read_info(root)
    chosen = choose_modality(info, choose_embodiment(info, None, SLOTS), modality)
    return LeRobotDataset(read_meta(info), chosen, cache_dir)


def training_set(*roots: Path, cache_dir: Path, **settings: Any) -> TrainingSet:
    data = DataSettings(
        source="lerobot",
        path=[str(root) for root in roots],
        cache_dir=str(cache_dir),
        **settings,
    )
    return open_training_set(data, ModelSettings())


def raw_actions(root: Path) -> np.ndarray:
    import pyarrow.parquet as pq

    tables = [pq.read_table(path) for path in sorted(root.glob("data/*/*.parquet"))]
    return np.concatenate([np.array(table["action"].to_pylist(), np.float32) for table in tables])


def test_the_last_frames_of_an_episode_start_no_sample(tiny_set: Path) -> None:
    dataset = opened(tiny_set)
    assert dataset.num_samples == 3 * (24 - 15)
    rows = dataset.rows_of(np.arange(dataset.num_samples))
    assert rows.tolist() == [*range(9), *range(24, 33), *range(48, 57)]
    assert dataset.actions(rows[-1:]).shape == (1, 16, 3)


def test_actions_are_scaled_to_the_statistics(tiny_set: Path) -> None:
    dataset = opened(tiny_set)
    raw = raw_actions(tiny_set)
    low, high = raw.min(axis=0), raw.max(axis=0)
    expected = 2 * (raw[30:46] - low) / (high - low) - 1
    assert np.allclose(dataset.actions(np.array([30]))[0], expected, atol=1e-5)


def test_version_3_and_images_read_like_version_2(
    tiny_set: Path, v3_set: Path, image_set: Path, tmp_path: Path
) -> None:
    sets = [opened(root) for root in (tiny_set, v3_set, image_set)]
    rows = np.array([0, 23 - 15, 30, 56])
    for dataset in sets[1:]:
        assert np.array_equal(dataset.states(rows), sets[0].states(rows))
        assert np.array_equal(dataset.actions(rows), sets[0].actions(rows))
        assert dataset.meta.tasks == sets[0].meta.tasks
    for root in (v3_set, image_set):
        data = DataSettings(source="lerobot", path=str(root))
        assert check_dataset(data, ModelSettings()) == []


def test_version_2_0_reads_like_2_1(tiny_set: Path, own_set: Path, edit_json: Edit) -> None:
    edit_json(own_set / "meta/info.json", lambda info: info.update(codebase_version="v2.0"))
    rows = np.array([0, 30])
    assert np.array_equal(opened(own_set).actions(rows), opened(tiny_set).actions(rows))


def test_missing_statistics_are_computed_into_the_cache_only(
    tiny_set: Path, own_set: Path, tmp_path: Path
) -> None:
    (own_set / "meta/stats.json").unlink()
    before = sorted(path for path in own_set.rglob("*"))
    rows = np.arange(9)
    computed = opened(own_set, tmp_path / "cache")
    assert np.allclose(computed.actions(rows), opened(tiny_set).actions(rows), atol=1e-6)
    assert sorted(path for path in own_set.rglob("*")) == before
    kept = list((tmp_path / "cache/statistics").glob("*.json"))
    assert len(kept) == 4
    stamps = [path.stat().st_mtime_ns for path in kept]
    opened(own_set, tmp_path / "cache")
    assert [path.stat().st_mtime_ns for path in kept] == stamps


def test_statistics_of_episodes_are_merged(own_set: Path) -> None:
    raw = raw_actions(own_set).reshape(3, 24, 3)
    (own_set / "meta/stats.json").unlink()
    lines = []
    for index, values in enumerate(raw):
        stats = {name: item.tolist() for name, item in compute_statistics(values).items()}
        stats["count"] = [24]
        lines.append(json.dumps({"episode_index": index, "stats": {"action": stats}}))
    (own_set / "meta/episodes_stats.jsonl").write_text("\n".join(lines))
    merged = read_statistics(read_info(own_set))["action"]
    whole = compute_statistics(raw.reshape(-1, 3))
    assert set(merged) == {"min", "max", "mean", "std"}
    for name, values in merged.items():
        assert np.allclose(values, whole[name], atol=1e-6), name


def test_rows_are_kept_in_the_cache_and_follow_a_change(own_set: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    cache = tmp_path / "cache"
    first = opened(own_set, cache)
    assert isinstance(first.columns.action, np.memmap)
    assert np.array_equal(first.columns.action, raw_actions(own_set))
    path = own_set / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(path).to_pydict()
    table["action"][0][0] = 0.125
    pq.write_table(pq.read_table(path).from_pydict(table), path)
    assert opened(own_set, cache).columns.action[0, 0] == 0.125


def test_scalings(tiny_set: Path, own_set: Path, edit_json: Edit) -> None:
    raw = raw_actions(own_set)

    def change(modality: Any) -> None:
        modality["action"]["velocity"]["scaling"] = "mean_std"
        modality["action"]["gripper"]["scaling"] = "percentile"

    edit_json(own_set / "meta/modality.json", change)
    got = opened(own_set).actions(np.array([0]))[0]
    expected = (raw[:16, :2] - raw[:, :2].mean(axis=0)) / raw[:, :2].std(axis=0)
    assert np.allclose(got[:, :2], expected, atol=1e-4)
    assert np.abs(got[:, 2]).max() <= 1


def test_a_dimension_that_never_changes_becomes_zero_and_comes_back() -> None:
    group = Group("a", "action", 0, 2)
    stats = {"min": np.array([-1.0, 5.0]), "max": np.array([3.0, 5.0])}
    scaler = VectorScaler([group], {"a": stats})
    values = np.array([[1.0, 5.0], [9.0, 5.0]], np.float32)
    scaled = scaler.scaled(values)
    assert scaled.tolist() == [[0.0, 0.0], [1.0, 0.0]]
    assert scaler.unscaled(scaled).tolist() == [[1.0, 5.0], [3.0, 5.0]]


def test_relative_actions_count_from_the_state_with_statistics_by_step(
    own_set: Path, edit_json: Edit
) -> None:
    def change(modality: Any) -> None:
        modality["action"] = {"position": {"start": 0, "end": 2, "relative": True}}

    edit_json(own_set / "meta/modality.json", change)
    dataset = opened(own_set)
    rows = dataset.rows_of(np.arange(dataset.num_samples))
    got = dataset.actions(rows)
    state = dataset.columns.state[rows, :2]
    raw = dataset.columns.action[rows[:, None] + np.arange(16)] - state[:, None]
    low, high = raw.min(axis=0), raw.max(axis=0)
    assert np.allclose(got, 2 * (raw - low) / (high - low) - 1, atol=1e-5)
    own = {name: item.tolist() for name, item in {"min": low - 1, "max": high + 1}.items()}
    (own_set / "meta/relative_stats.json").write_text(json.dumps({"position": own}))
    wider = opened(own_set).actions(rows)
    assert np.allclose(wider, 2 * (raw - low + 1) / (high - low + 2) - 1, atol=1e-5)


def test_scaled_actions_come_back(own_set: Path, edit_json: Edit) -> None:
    def change(modality: Any) -> None:
        modality["action"] = {
            "position": {"start": 0, "end": 2, "relative": True},
            "gripper": {"start": 2, "end": 3},
        }

    edit_json(own_set / "meta/modality.json", change)
    dataset = opened(own_set)
    rows = np.array([0, 5, 30])
    expected = dataset.columns.action[rows[:, None] + np.arange(16)]
    assert np.allclose(dataset.raw_actions(dataset.actions(rows), rows), expected, atol=1e-5)
    statistics = dataset.statistics()
    assert len(statistics["action"]["position"]["min"]) == 16
    assert len(statistics["state"]["touch"]["max"]) == 1


def test_embodiment_defaults_stand_in_for_a_missing_modality() -> None:
    modality = parse_modality(DEFAULTS["libero_panda"], "default")
    assert [group.name[0] for group in modality.state] == list("xyzrpyg")
    assert sum(group.width for group in modality.state) == 8
    assert sum(group.width for group in modality.action) == 7
    assert [view.name for view in modality.views] == ["image", "wrist_image"]
    widowx = parse_modality(DEFAULTS["oxe_widowx"], "default")
    assert widowx.state[0].scaling is Scaling.MEAN_STD
    assert widowx.horizon == 8


def test_content_id_follows_content_not_place(tiny_set: Path, own_set: Path) -> None:
    assert content_id(own_set) == content_id(tiny_set)
    (own_set / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "else"}\n')
    assert content_id(own_set) != content_id(tiny_set)


def test_several_sets_train_together(
    tiny_set: Path, v3_set: Path, tmp_path: Path, edit_json: Edit
) -> None:
    other = Path(shutil.copytree(tiny_set, tmp_path / "other"))
    edit_json(other / "meta/modality.json", lambda value: value["action"].pop("gripper"))
    both = training_set(tiny_set, other, cache_dir=tmp_path, weights=[3.0, 1.0])
    assert both.sizes == (27, 27)
    assert both.weights == (3.0, 1.0)
    edit_json(other / "meta/modality.json", lambda value: value.update(action_horizon=99))
    with pytest.raises(DataError, match=r"1 to 16"):
        training_set(other, cache_dir=tmp_path)


def test_real_statistics_scale_the_real_set(gr1_path: Path) -> None:
    dataset = opened(gr1_path)
    rows = dataset.rows_of(np.arange(0, dataset.num_samples, 40))
    actions, states = dataset.actions(rows), dataset.states(rows)
    assert actions.shape[1:] == (16, 44)
    assert states.shape[1:] == (44,)
    assert np.abs(actions).max() <= 1
    assert np.abs(states).max() <= 1
    assert actions.std() > 0.1
    assert dataset.meta.tasks[0]
