"""Checkpoints in the public layout: strict loading, named refusals, bit-equal round trips."""

import json
import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.groot_n1_6 import weights
from models.groot_n1_6.checkpoint.errors import CheckpointFormatError
from models.groot_n1_6.checkpoint.files import INDEX_NAME, shard_keys, write_checkpoint
from models.groot_n1_6.config import GrootConfig
from models.groot_n1_6.model import GrootN16, build

Tensors = dict[str, torch.Tensor]
NANO = GrootConfig.nano()
VLLN = "action_head.vlln.weight"
LM_HEAD = "backbone.model.language_model.lm_head.weight"
EMBED = "backbone.model.language_model.model.embed_tokens.weight"


@cache
def _drawn(dtype: torch.dtype, seed: int) -> GrootN16:
    return build(NANO, dtype=dtype, seed=seed)


def nano(dtype: torch.dtype = torch.float32, seed: int = 0) -> GrootN16:
    """Returns a nano model of its own: a copy takes a quarter of what drawing its weights does."""
    return deepcopy(_drawn(dtype, seed))


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    """Returns random values for every key of the nano size, made without our model's code."""
    generator = torch.Generator().manual_seed(7)
    return {
        key: torch.randn(shape, generator=generator).to(torch.bfloat16)
        for key, shape in weights.checkpoint_shapes(NANO).items()
    }


@pytest.fixture
def folder(tensors: Tensors, tmp_path: Path) -> Path:
    """Returns a sharded checkpoint."""
    path = tmp_path / "checkpoint"
    write_checkpoint(path, tensors, {"config.json": {"action_horizon": 16}}, 4_000_000)
    return path


def read_folder(path: Path) -> Tensors:
    """Returns all tensors of a sharded checkpoint, by way of its index."""
    index = json.loads((path / INDEX_NAME).read_text())
    loaded: Tensors = {}
    for name in set(index["weight_map"].values()):
        loaded |= load_file(path / name)
    assert set(loaded) == set(index["weight_map"])
    return loaded


def assert_same_bits(left: Tensors, right: Tensors) -> None:
    assert set(left) == set(right)
    for key, tensor in left.items():
        assert tensor.dtype == right[key].dtype == torch.bfloat16, key
        assert torch.equal(tensor.view(torch.int16), right[key].view(torch.int16)), key


def whole(model: GrootN16) -> GrootN16:
    return model


def active(model: GrootN16) -> GrootN16:
    model.activate_embodiments([2])
    return model


def several(model: GrootN16) -> GrootN16:
    model.activate_embodiments([3, 1])
    return model


@pytest.mark.parametrize("prepare", [whole, active, several])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_round_trip_is_bit_equal(
    tensors: Tensors,
    folder: Path,
    tmp_path: Path,
    prepare: Callable[[GrootN16], GrootN16],
    dtype: torch.dtype,
) -> None:
    model = prepare(nano(dtype=dtype, seed=1))
    weights.load_weights(model, folder)
    weights.save_weights(model, tmp_path / "export")
    assert_same_bits(read_folder(tmp_path / "export"), tensors)


def test_activation_after_loading_keeps_the_resting_slots(tensors: Tensors, folder: Path) -> None:
    model = nano(dtype=torch.bfloat16)
    weights.load_weights(model, folder)
    model.activate_embodiments([1])
    held = model.action_head.state_encoder.layer1.W
    assert torch.equal(held, tensors["action_head.state_encoder.layer1.W"][1:2])
    model.activate_embodiments([0])
    assert_same_bits(dict(weights.export_tensors(model)), tensors)


def test_what_one_slot_learned_is_merged_into_the_export(tensors: Tensors, folder: Path) -> None:
    model = active(nano(dtype=torch.bfloat16))
    weights.load_weights(model, folder)
    name = "action_head.action_decoder.layer2.W"
    master = torch.full((1, 512, 64), 1.5)
    exported = dict(weights.export_tensors(model, {name: master}))
    assert (exported[name][2] == 1.5).all()
    rest = [0, 1, 3]
    assert torch.equal(exported[name][rest], tensors[name][rest])


def test_parameters_take_the_dtypes_that_the_caller_says(folder: Path) -> None:
    model = nano()
    weights.cast_parameters(model, frozen=torch.bfloat16, trainable=torch.float32)
    weights.load_weights(model, folder)
    for parameter in model.parameters():
        assert parameter.dtype == (torch.float32 if parameter.requires_grad else torch.bfloat16)


def test_export_holds_the_four_documents(tmp_path: Path) -> None:
    statistics = {"gr1": {"state": {"left_arm": {"min": [0.0], "max": [1.0]}}}}
    weights.save_weights(nano(), tmp_path, documents={"statistics.json": statistics})
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "Gr00tN1d6"
    assert config["action_horizon"] == 16
    assert json.loads((tmp_path / "statistics.json").read_text()) == statistics
    assert json.loads((tmp_path / "embodiment_id.json").read_text()) == dict(NANO.slots)
    assert (tmp_path / "processor_config.json").is_file()
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == [
        "model-00001-of-00001.safetensors"
    ]


@pytest.mark.parametrize("wrapper", ["", "model."])
def test_a_single_file_and_a_wrapped_one_load(
    tensors: Tensors, tmp_path: Path, wrapper: str
) -> None:
    path = tmp_path / "model.safetensors"
    save_file({wrapper + key: tensor for key, tensor in tensors.items()}, path)
    for source in (path, tmp_path):
        model = nano(dtype=torch.bfloat16)
        weights.load_weights(model, source)
        assert_same_bits(dict(weights.export_tensors(model)), tensors)


def test_everything_that_does_not_fit_is_in_one_message(tensors: Tensors, tmp_path: Path) -> None:
    broken = dict(tensors)
    del broken["backbone.model.mlp1.3.bias"]
    broken["action_head.spare"] = torch.zeros(2)
    broken[VLLN] = torch.zeros(7)
    save_file(broken, tmp_path / "model.safetensors")
    model = nano()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    with pytest.raises(CheckpointFormatError) as caught:
        weights.load_weights(model, tmp_path)
    message = str(caught.value)
    assert "1 missing: backbone.model.mlp1.3.bias" in message
    assert "1 unknown: action_head.spare" in message
    assert f"1 of another shape: {VLLN} [7] instead of [96]" in message
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]), name


def test_many_misfits_are_counted_and_a_few_named(tensors: Tensors, tmp_path: Path) -> None:
    kept = {key: tensor for key, tensor in tensors.items() if "transformer_blocks" not in key}
    save_file(kept, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointFormatError, match=r"112 missing: .*, and 106 more"):
        weights.load_weights(nano(), tmp_path)


def test_a_tied_language_head_may_be_absent(tensors: Tensors, tmp_path: Path) -> None:
    tied = {key: tensor for key, tensor in tensors.items() if key != LM_HEAD}
    save_file(tied, tmp_path / "model.safetensors")
    model = nano(dtype=torch.bfloat16)
    weights.load_weights(model, tmp_path)
    exported = dict(weights.export_tensors(model))
    assert torch.equal(exported[LM_HEAD], tensors[EMBED])


def test_state_dropout_starts_its_token_where_the_file_has_none(folder: Path) -> None:
    model = build(NANO.with_state_dropout(0.5))
    weights.load_weights(model, folder)
    token = model.action_head.mask_token
    assert token is not None
    assert token.abs().sum() > 0


@pytest.mark.parametrize(
    ("key", "version"),
    [
        ("backbone.model.model.visual.patch_embed.proj.weight", "GR00T N1.7"),
        ("backbone.eagle_model.mlp1.0.weight", "GR00T N1.5"),
        ("action_head.future_tokens.weight", "GR00T N1.5"),
        ("backbone.linear.weight", "GR00T N1 "),
    ],
)
def test_another_version_is_named(tmp_path: Path, key: str, version: str) -> None:
    save_file({key: torch.zeros(2), VLLN: torch.zeros(96)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointFormatError, match=rf"a {version.strip()} checkpoint"):
        weights.load_weights(nano(), tmp_path)


def test_a_config_of_another_version_is_named(tmp_path: Path) -> None:
    save_file({VLLN: torch.zeros(96)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "gr00t_n1_5"}')
    with pytest.raises(CheckpointFormatError, match=r"a GR00T N1\.5 checkpoint"):
        weights.load_weights(nano(), tmp_path)


def test_a_setting_that_no_shape_shows_is_refused(tensors: Tensors, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, tensors, {"config.json": {"action_horizon": 50}})
    with pytest.raises(CheckpointFormatError, match=r"action_horizon 50 instead of 16"):
        weights.load_weights(nano(), tmp_path)


def test_plain_pt_loads_and_a_pickled_object_is_refused(tensors: Tensors, tmp_path: Path) -> None:
    plain, evil = tmp_path / "plain.pt", tmp_path / "evil.pt"
    torch.save(tensors, plain)
    model = nano(dtype=torch.bfloat16)
    weights.load_weights(model, plain)
    assert_same_bits(dict(weights.export_tensors(model)), tensors)

    trace = tmp_path / "ran"
    evil.write_bytes(pickle.dumps(Evil(trace)))
    with pytest.raises(CheckpointFormatError, match="only if it holds nothing but tensors"):
        weights.load_weights(model, evil)
    assert not trace.exists()


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


def lfs_pointer(folder: Path) -> None:
    shard = next(folder.glob("*.safetensors"))
    shard.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def truncated(folder: Path) -> None:
    shard = next(folder.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-100])


def shard_lost(folder: Path) -> None:
    next(folder.glob("*.safetensors")).unlink()


def index_broken(folder: Path) -> None:
    (folder / INDEX_NAME).write_text("{")


def emptied(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lfs_pointer, "Git-LFS pointer"),
        (truncated, "weights are whole safetensors files"),
        (shard_lost, r"no model-0000\d-of-0000\d\.safetensors"),
        (index_broken, "the file holds one JSON object"),
        (emptied, "a folder with nothing"),
    ],
)
def test_damaged_files_are_refused_by_name(
    folder: Path, harm: Callable[[Path], None], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    harm(folder)
    with pytest.raises(CheckpointFormatError, match=says):
        weights.load_weights(nano(), folder)
    assert weights.main(["check", str(folder)]) == 2
    assert "While" in capsys.readouterr().err


def test_check_says_loadable_and_which_size(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert weights.main(["check", str(folder)]) == 0
    assert "a loadable GR00T N1.6 checkpoint of size nano" in capsys.readouterr().out


@pytest.mark.slow
def test_check_with_data_asks_the_trainer(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = weights.batch_check_command(folder, "3b", ["data.path=DIR", "data.embodiment=gr1"])
    assert command[1:5] == ["-m", "lf_ray.train", "--check-weights", str(folder)]
    assert command[5:] == ["model=3b", "data.path=DIR", "data.embodiment=gr1"]
    assert "model=3b" not in weights.batch_check_command(folder, "3b", ["model=nano"])
    assert weights.main(["check", str(folder), "data=nowhere"]) == 2
    said = capfd.readouterr()
    assert "loadable" in said.out
    assert "nowhere" in said.err
    assert "Traceback" not in said.err


def test_check_of_a_missing_path_is_a_refusal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert weights.main(["check", str(tmp_path / "absent")]) == 2
    assert "a path that does not exist" in capsys.readouterr().err


def test_shards_stay_within_the_limit_in_key_order() -> None:
    sizes = {"a": 6, "b": 3, "c": 4, "d": 20, "e": 1}
    assert shard_keys(sizes, 10) == [["a", "b"], ["c"], ["d"], ["e"]]


def test_the_public_size_makes_two_shards() -> None:
    shapes = weights.checkpoint_shapes(GrootConfig.public_3b())
    sizes = {key: 2 * torch.Size(shape).numel() for key, shape in shapes.items()}
    shards = shard_keys(sizes, 5_000_000_000)
    assert len(shards) == 2
    assert sum(sizes.values()) == 2 * 3_286_608_832
