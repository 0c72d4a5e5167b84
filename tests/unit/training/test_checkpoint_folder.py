"""Checkpoints on disk: whole or absent, strict when read, few."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lf_ray.clock import SystemClock
from lf_ray.errors import CheckpointError, MachineError
from lf_ray.settings import DataSettings, ModelSettings, SweepConfig
from lf_ray.training.checkpoint.folder import (
    CheckpointState,
    complete_checkpoints,
    remove_partial,
    write_checkpoint,
)
from lf_ray.training.checkpoint.manifest import (
    Manifest,
    check_identity,
    identity_of,
    read_manifest,
)
from lf_ray.training.checkpoint.room import check_room, needed_bytes, value_counts
from lf_ray.training.checkpoint.saver import Saver

STATE = {
    "master.a.weight": torch.randn(3, 4),
    "master.b": torch.randn(5),
    "m.a.weight": torch.randn(3, 4),
    "m.b": torch.randn(5),
    "steps_done": torch.tensor(8),
}


def manifest(step: int = 8) -> Manifest:
    return Manifest(step=step, samples=64 * step, lr=1e-3, identity={"model.size": "nano"})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, manifest(), STATE, keep=2)
    read = read_manifest(folder)
    assert (read.step, read.samples, read.lr) == (8, 512, 1e-3)
    assert read.shapes["master"] == {"master.a.weight": [3, 4], "master.b": [5]}
    state = CheckpointState(folder, read)
    assert set(state) == set(STATE)
    assert len(state) == 5
    assert all(torch.equal(state[name], tensor) for name, tensor in STATE.items())
    assert state.get("v.a.weight") is None
    assert sorted(path.suffix for path in folder.iterdir()) == [".json"] + [".safetensors"] * 3


def test_the_newest_stay_and_what_was_not_finished_is_none(tmp_path: Path) -> None:
    for step in (4, 8, 12):
        write_checkpoint(tmp_path, manifest(step), STATE, keep=2)
    (tmp_path / "step-00000016.partial").mkdir()
    (tmp_path / "step-00000020").mkdir()
    assert [path.name for path in complete_checkpoints(tmp_path)] == [
        "step-00000008",
        "step-00000012",
    ]
    remove_partial(tmp_path)
    assert not (tmp_path / "step-00000016.partial").exists()


def test_a_step_that_is_saved_again_replaces_the_first(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, manifest(), STATE, keep=1)
    folder = write_checkpoint(tmp_path, replace(manifest(), lr=0.5), STATE, keep=1)
    assert read_manifest(folder).lr == 0.5


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("", "JSONDecodeError"),
        ('{"format": 9}', "format 9"),
        ('{"format": 1, "step": 3}', "missing"),
    ],
)
def test_an_odd_manifest_is_refused(tmp_path: Path, text: str, got: str) -> None:
    (tmp_path / "checkpoint.json").write_text(text)
    with pytest.raises(CheckpointError, match=got):
        read_manifest(tmp_path)


def test_files_that_are_cut_off_missing_or_of_another_checkpoint_are_refused(
    tmp_path: Path,
) -> None:
    folder = write_checkpoint(tmp_path, manifest(), STATE, keep=1)
    read = read_manifest(folder)
    path = folder / "m.safetensors"
    whole = path.read_bytes()
    for content in (whole[:-4], b""):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"m\.safetensors(.|\n)*the one before it"):
            CheckpointState(folder, read)
    path.write_bytes((folder / "master.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="other tensors"):
        CheckpointState(folder, read)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"m\.safetensors"):
        CheckpointState(folder, read)


def test_another_training_is_refused_by_name(tmp_path: Path) -> None:
    config = SweepConfig()
    config.cluster.workers = 2
    saved = identity_of(config, "d1", "")
    wide = replace(
        config, model=ModelSettings(size="3b"), data=DataSettings(cache_dir="x", workers=4)
    )
    assert identity_of(replace(config, data=wide.data), "d1", "") == saved
    json.dumps(saved)
    with pytest.raises(CheckpointError, match=r"data d1 -> d2; model\.size nano -> 3b"):
        check_identity(
            tmp_path,
            replace(manifest(), identity=saved),
            identity_of(wide, "d2", ""),
        )


def test_a_write_that_fails_is_told_and_the_next_one_succeeds(tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"
    place.write_text("in the way")
    saver = Saver(place, 2, SystemClock())
    saver.save(manifest(4), STATE)
    saver.wait()
    place.unlink()
    saver.save(manifest(8), STATE)
    saver.wait()
    first, second = saver.news()
    assert (first.step, second.step) == (4, 8)
    assert "Error" in first.error
    assert (second.error, saver.news()) == ("", [])
    assert Path(second.path) == complete_checkpoints(place)[0]
    saver.close()


def test_a_write_that_fails_leaves_its_room_to_the_next_one(tmp_path: Path) -> None:
    saver = Saver(tmp_path, 2, SystemClock())
    saver.save(manifest(4), {**STATE, "zzz.no_storage": torch.empty(4, device="meta")})
    saver.wait()
    (failed,) = saver.news()
    assert failed.error
    assert list(tmp_path.iterdir()) == []
    saver.close()


def test_room_follows_from_what_learns(tmp_path: Path) -> None:
    trained, exported = value_counts(ModelSettings())
    assert 8_000_000 <= trained <= 12_000_000
    assert exported > trained
    frozen = value_counts(ModelSettings(tune_diffusion_model=False))[0]
    assert frozen < trained / 2
    assert value_counts(ModelSettings(), num_active_slots=2)[0] > trained
    needed = needed_bytes(trained, exported, keep=2)
    assert needed == 36 * trained + 2 * exported
    assert check_room(tmp_path, (trained, exported), 2, lambda _: needed) == needed
    with pytest.raises(MachineError, match=r"need 0\.\d GB(.|\n)*train\.keep=1"):
        check_room(tmp_path, (trained, exported), 2, lambda _: needed - 1)


def test_room_at_the_public_size() -> None:
    trained, exported = value_counts(ModelSettings(size="3b", image_px=252), num_active_slots=32)
    assert (trained, exported) == (1_619_968_000, 3_286_608_832)
    assert trained * 12 / 1e9 == pytest.approx(19.4, abs=0.1)
