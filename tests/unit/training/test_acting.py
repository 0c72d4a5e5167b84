"""From trained weights to actions: export, checkpoint and prediction agree; errors are measured."""

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lf_ray.errors import CheckpointError, DataError
from lf_ray.machine import Machine
from lf_ray.predict import main as predict
from lf_ray.runtime.groot import build_groot
from lf_ray.settings import DataSettings, SweepConfig, plain
from lf_ray.train import main as train
from lf_ray.training.actions.action_error import action_error, last_episodes
from lf_ray.training.actions.export import export, export_documents, scale_as_trained
from lf_ray.training.actions.observation import open_whole, read_batch, sampled_actions
from lf_ray.training.actions.weights import acting_model, check_weights, find_weights
from lf_ray.training.actions.weights_check import WeightsCheck, weights_check
from lf_ray.training.checkpoint.folder import write_checkpoint
from lf_ray.training.checkpoint.manifest import Manifest, identity_of
from lf_ray.training.plan import TrainingPlan

MACHINE = Machine(num_cores=4, memory_bytes=2**36, shm_bytes=2**33)


class _Trained:
    """A result folder as a training leaves it, with weights that no seed would give."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.config = SweepConfig(data=DataSettings(cache_dir=str(cache), holdout_episodes=1))
        self.config.cluster.workers = 2
        self.source = open_whole(self.config)
        slot = self.source.parts[0].embodiment.slot
        self.slots = [slot]
        self.model = build_groot(self.config, self.slots, torch.device("cpu"))
        with torch.no_grad():
            for number, parameter in enumerate(self.model.parameters()):
                if parameter.requires_grad:
                    parameter.mul_(0.9).add_(1e-3 * (number % 3))
        self.plan = plan = TrainingPlan(
            folder=folder,
            config=self.config,
            data_id=self.source.data_id,
            num_steps=4,
            save_every=0,
            identity=identity_of(self.config, self.source.data_id, "", self.slots),
        )
        self.exported = export(self, plan)  # type: ignore[arg-type]  # the model is all it reads
        masters = {
            f"master.{name}": parameter.detach().clone()
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }
        manifest = Manifest(
            step=4, samples=32, lr=0.0, identity=plan.identity, config=plain(self.config)
        )
        write_checkpoint(plan.checkpoints, manifest, masters, keep=1)
        (folder / "config.yaml").write_text(json.dumps(plain(self.config)))

    @property
    def places(self) -> list[Path]:
        return [self.folder, self.folder / "export", self.folder / "checkpoints" / "step-00000004"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> _Trained:
    folder = tmp_path_factory.mktemp("trained")
    return _Trained(folder, tmp_path_factory.mktemp("cache"))


def _with_weights(config: SweepConfig, place: Path) -> SweepConfig:
    return replace(config, model=replace(config.model, weights=str(place)))


def test_weights_are_found_where_people_point(trained: _Trained, tmp_path: Path) -> None:
    kinds = [find_weights(str(place)) for place in trained.places]
    assert [item.is_checkpoint for item in kinds] == [False, False, True]
    assert kinds[0].path == kinds[1].path == Path(trained.exported["path"])
    assert find_weights(str(tmp_path)).path == tmp_path


def test_export_and_checkpoint_act_as_the_trained_model_does(trained: _Trained) -> None:
    batch = read_batch(trained.source, 0, [3, 50])
    expected = sampled_actions(trained.model.eval(), batch, seed=1)
    for place, tolerance in zip(trained.places, (0.05, 0.05, 0.0)):
        config = _with_weights(trained.config, place)
        model = acting_model(config, trained.slots, torch.device("cpu"))
        own = sampled_actions(model, batch, seed=1)
        assert float((own - expected).abs().mean()) <= tolerance * float(expected.abs().mean())
    random = acting_model(trained.config, trained.slots, torch.device("cpu"))
    assert not torch.allclose(sampled_actions(random, batch, 1), expected, atol=0.1)


def test_a_checkpoint_of_another_embodiment_or_shape_is_refused(trained: _Trained) -> None:
    config = _with_weights(trained.config, trained.places[2])
    with pytest.raises(CheckpointError, match=r"slots \[0\] were trained(.|\n)*slots \[2\]"):
        acting_model(config, [2], torch.device("cpu"))
    with pytest.raises(CheckpointError, match=r"model=nano"):
        check_weights(replace(config.model, size="3b", weights=str(trained.places[1])))
    assert check_weights(replace(config.model, weights=str(trained.places[1])))


def test_the_error_is_zero_for_recorded_actions_and_known_for_others(
    trained: _Trained,
) -> None:
    source = trained.source
    dataset = source.parts[0].dataset

    class Recorder(torch.nn.Module):
        """Answers what was recorded, moved by a tenth."""

        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.action_head = trained.model.action_head
            self.draw_shapes = trained.model.draw_shapes

        def prefix(self, batch: Any) -> Any:
            return None

        def sample_actions(self, features: Any, batch: Any, noise: Any) -> torch.Tensor:
            assert "augment_BD" not in batch
            self.calls += 1
            return torch.as_tensor(batch["action_BTA"] * 0.9)

    model = Recorder()
    episodes = last_episodes(source, 1)
    found = action_error(model, source, episodes, seed=0, num_samples=20)
    samples = np.asarray(dataset.samples_of(len(dataset.meta.episodes) - 1))
    chosen = samples[np.linspace(0, len(samples) - 1, 20).astype(int)]
    scaled = dataset.actions(dataset.rows_of(chosen))
    assert found.scaled.value == pytest.approx(0.1 * np.abs(scaled).mean(), rel=1e-4)
    assert (found.scaled.lo, found.scaled.num_parts) == (None, 1), "one episode: no interval"
    everything = action_error(model, source, last_episodes(source, 0), seed=0, num_samples=20)
    assert everything.scaled.num_parts == everything.num_episodes == len(dataset.meta.episodes)
    plain_error = everything.to_plain()
    assert plain_error["scaled_lo"] < plain_error["scaled"] < plain_error["scaled_hi"]
    for name, (lo, hi) in plain_error["by_group_ends"].items():
        assert lo <= plain_error["by_group"][name] <= hi
    assert (found.num_samples, found.num_episodes, model.calls) == (20, 1, 6)
    assert set(found.by_group) == {"velocity", "gripper"}
    assert last_episodes(source, 0) == [range(len(dataset.meta.episodes))]


def test_held_out_episodes_give_no_sample_to_a_training(trained: _Trained) -> None:
    from lf_ray.data.batches.opening import open_training_set

    kept = open_training_set(trained.config.data, trained.config.model)
    whole = trained.source.parts[0].dataset
    last = whole.samples_of(len(whole.meta.episodes) - 1)
    assert kept.sizes[0] == whole.num_samples - len(last)
    assert kept.data_id == trained.source.data_id
    kept.close()


def test_an_export_that_can_not_be_written_names_the_checkpoint_and_leaves_nothing_half(
    trained: _Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(trained.plan, folder=tmp_path / "x7")
    checkpoint = plan.checkpoints / "step-00000004"
    checkpoint.mkdir(parents=True)
    (checkpoint / "checkpoint.json").write_text("{}")

    def full(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("models.groot_n1_6.checkpoint.files.save_file", full)
    with pytest.raises(CheckpointError) as raised:
        export(trained, plan)  # type: ignore[arg-type]  # the model is all it reads
    said = str(raised.value)
    assert said.startswith(f"While exporting the trained model to {plan.folder / 'export'}")
    for part in ("No space left on device", f"safe in {checkpoint}", "resume=x7", "Free disk"):
        assert part in said
    assert [path.name for path in plan.folder.iterdir()] == ["checkpoints"]


def test_the_export_says_what_it_was_scaled_by(trained: _Trained) -> None:
    document = export_documents(trained.config)["statistics.json"]
    tag = trained.source.parts[0].embodiment.tag
    assert set(document[tag]) == {"state", "action"}
    assert set(document[tag]["action"]) == {"velocity", "gripper"}
    kept = json.loads((trained.folder / "export" / "statistics.json").read_text())
    assert kept == document
    assert export_documents(_with_weights(trained.config, trained.places[1])).keys() == {
        "config.json",
        "processor_config.json",
        "embodiment_id.json",
        "statistics.json",
    }


def test_predict_names_actions_in_the_robots_units(
    trained: _Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"model.weights={trained.folder}", "--episode", "2", "--frame", "7"]
    assert predict(words, MACHINE) == 0
    out = capsys.readouterr().out.splitlines()
    answer = json.loads(out[-1])
    assert (answer["episode"], answer["frame"], answer["weights"]) == (2, 7, str(trained.folder))
    assert {name: np.shape(rows) for name, rows in answer["actions"].items()} == {
        "velocity": (16, 2),
        "gripper": (16, 1),
    }
    dataset = trained.source.parts[0].dataset
    row = dataset.rows_of(np.array([dataset.samples_of(2)[7]]))
    raw = dataset.columns.action[row[0] : row[0] + 16]
    np.testing.assert_allclose(answer["recorded"]["velocity"], raw[:, :2], atol=1e-5)
    assert any(line.startswith("velocity") for line in out)


def test_new_data_is_scaled_as_the_weights_learnt_it(trained: _Trained, tmp_path: Path) -> None:
    export = trained.places[1]
    source = open_whole(trained.config)
    dataset = source.parts[0].dataset
    rows = np.array([5])
    before = dataset.actions(rows)
    assert scale_as_trained(source, 0, export)
    np.testing.assert_array_equal(dataset.actions(rows), before)
    document = json.loads((export / "statistics.json").read_text())
    tag = source.parts[0].embodiment.tag
    for stats in document[tag]["action"].values():
        stats.update({name: [2 * item for item in values] for name, values in stats.items()})
    (tmp_path / "statistics.json").write_text(json.dumps(document))
    assert scale_as_trained(source, 0, tmp_path)
    np.testing.assert_allclose(
        dataset.raw_actions(before, rows), 2 * _raw(dataset, rows), rtol=1e-4
    )
    assert not scale_as_trained(source, 0, tmp_path / "none")
    del document[tag]["action"]["gripper"]
    (tmp_path / "statistics.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match=r"gripper(.|\n)*data\.modality"):
        scale_as_trained(source, 0, tmp_path)
    source.close()


def _raw(dataset: Any, rows: Any) -> Any:
    return dataset.columns.action[rows[:, None] + np.arange(dataset.modality.horizon)]


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["--episode", "99"], "there are 8 episodes"),
        (["--frame", "58"], "frames with 16 recorded actions ahead"),
        (["--dataset", "1"], "there are 1 data sets"),
        (["data=synthetic"], "a frame of a data set"),
    ],
)
def test_predict_refuses_what_is_not_there(
    trained: _Trained, capsys: pytest.CaptureFixture[str], words: list[str], rule: str
) -> None:
    given = [f"model.weights={trained.folder}", *words]
    if words[0].startswith("data"):
        given[0] = f"model.weights={trained.folder / 'export' / 'model.safetensors'}"
        given.append(f"--config={trained.folder / 'config.yaml'}")
    assert predict(given, MACHINE) == 2
    assert rule in capsys.readouterr().err
    assert predict(["model=nano"], MACHINE) == 2


def test_random_weights_are_suspected(
    trained: _Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    place, cache = trained.places[1], trained.config.data.cache_dir
    words = ["--check-weights", str(place), "model=nano", f"data.cache_dir={cache}"]
    assert train(words, MACHINE) == 1
    said = capsys.readouterr().out
    assert "no better than random ones" in said
    assert "data=sample is not the data" in said
    assert "embodiment" in said
    found = weights_check(_with_weights(trained.config, place))
    assert found.suspects
    good = WeightsCheck(loaded=0.3, random=1.5, zero=1.3)
    assert good.text.startswith("The weights know this data: loss 0.3, x0.20")
