"""Prompts: the public template and ids, index tensors, one length that never cuts an image."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from models.groot_n1_6.config import GrootConfig
from models.groot_n1_6.prompt import (
    Arrays,
    BuiltinTokenizer,
    FolderTokenizer,
    PromptBuilder,
    PromptError,
    fixed_length,
    load_tokenizer,
    render,
)

PUBLIC = GrootConfig.public_3b()
NANO = GrootConfig.nano()
FOLDER = Path(__file__).resolve().parents[4] / "shared" / "data" / "eagle_tokenizer"
LIBERO_TASKS = (
    "turn on the stove",
    "open the middle drawer of the cabinet",
    "put both the alphabet soup and the cream cheese box in the basket",
    "pick up the black bowl between the plate and the ramekin and place it on the plate",
)


@pytest.fixture(scope="module")
def public_tokenizer() -> FolderTokenizer:
    if not FOLDER.is_dir():
        pytest.skip("needs eagle_tokenizer in ../shared/data beside the project")
    return FolderTokenizer(FOLDER, PUBLIC)


def check_arrays(arrays: Arrays, image_id: int, row: int) -> None:
    """Checks that every valid column is an image or a text column, once."""
    ids = arrays["input_ids_L"][row]
    valid = int(arrays["valid_len"][row])
    image = arrays["image_index_N"][row]
    text = arrays["text_index_X"][row][arrays["text_valid_X"][row]]
    assert (ids[image] == image_id).all()
    assert (ids[text] != image_id).all()
    assert sorted([*image, *text]) == list(range(valid))
    assert (np.diff(image) > 0).all()
    assert (ids[valid:] != image_id).all()


def test_template_is_the_public_one() -> None:
    text = render("Turn ON the stove!", [2, 1])
    assert text == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nturn on the stove"
        "<image 1><img><IMG_CONTEXT><IMG_CONTEXT></img>"
        "<image 2><img><IMG_CONTEXT></img><|im_end|>\n"
    )


def test_public_ids(public_tokenizer: FolderTokenizer) -> None:
    ids = PromptBuilder(PUBLIC, public_tokenizer).token_ids("turn on the stove", [2, 1])
    assert public_tokenizer.pad_id == 151643
    assert ids[0] == 151644
    assert ids.count(151644) == 2
    assert ids.count(151645) == 2
    assert ids.count(151669) == 3
    first = ids.index(151670)
    assert ids[first : first + 4] == [151670, 151669, 151669, 151671]
    assert max(ids) < PUBLIC.language.vocab_size


def test_libero_prompts_are_196_to_211_columns_and_share_220(
    public_tokenizer: FolderTokenizer,
) -> None:
    builder = PromptBuilder(PUBLIC, public_tokenizer)
    lengths = [int(builder.build(task, num_views=2)["valid_len"]) for task in LIBERO_TASKS]
    assert (min(lengths), max(lengths)) == (196, 211)
    assert builder.build(LIBERO_TASKS[1], num_views=1)["valid_len"] == 111
    assert fixed_length(builder, LIBERO_TASKS, [81, 81]) == 220


@pytest.mark.parametrize("task", ["Pick up the (red) cup.", "pick up the red cup"])
def test_case_and_punctuation_do_not_matter(task: str) -> None:
    builder = PromptBuilder(NANO)
    assert builder.token_ids(task, [4]) == builder.token_ids("pick up the red cup", [4])


def test_index_arrays_cover_every_valid_column_once(public_tokenizer: FolderTokenizer) -> None:
    builder = PromptBuilder(PUBLIC, public_tokenizer, length=220)
    arrays = builder.build_all(LIBERO_TASKS, [81, 81])
    assert arrays["input_ids_L"].shape == (4, 220)
    assert arrays["image_index_N"].shape == (4, 162)
    assert arrays["text_index_X"].shape == arrays["text_valid_X"].shape == (4, 58)
    for row in range(4):
        check_arrays(arrays, 151669, row)


@pytest.mark.parametrize("view_tokens", [[4], [4, 4], [4, 6]])
def test_builtin_index_arrays(view_tokens: list[int]) -> None:
    builder = PromptBuilder(NANO)
    arrays = builder.build_all(["lift", "put the box on the shelf"], view_tokens)
    for row in range(2):
        check_arrays(arrays, NANO.language.image_token_id, row)


def test_build_returns_one_samples_arrays() -> None:
    arrays = PromptBuilder(NANO, length=40).build("put the box on the shelf", num_views=2)
    assert {name: (array.shape, str(array.dtype)) for name, array in arrays.items()} == {
        "input_ids_L": ((40,), "int64"),
        "valid_len": ((), "int64"),
        "image_index_N": ((8,), "int64"),
        "text_index_X": ((32,), "int64"),
        "text_valid_X": ((32,), "bool"),
    }


def test_a_prompt_that_is_too_long_is_refused_not_cut() -> None:
    builder = PromptBuilder(NANO, length=24)
    with pytest.raises(PromptError, match=r"Got 30 columns, 8 of them image tokens.*30 or more"):
        builder.build("put the box on shelf", num_views=2)


def test_a_task_with_image_tokens_in_it_is_refused() -> None:
    class Lenient(BuiltinTokenizer):
        def encode(self, text: str) -> list[int]:
            return [*super().encode(text), NANO.language.image_token_id]

    with pytest.raises(PromptError, match="Got 5 of 4"):
        PromptBuilder(NANO, Lenient(NANO)).build("lift", num_views=1)


def test_builtin_tokens_are_stable_and_in_range() -> None:
    tokenizer = BuiltinTokenizer(NANO)
    assert tokenizer.encode("<|im_start|>lift<img><IMG_CONTEXT></img>") == [1, 188, 4, 3, 5]
    words = [tokenizer.encode(f"word{number}")[0] for number in range(2000)]
    assert min(words) >= 16
    assert max(words) < NANO.language.vocab_size
    assert NANO.language.image_token_id not in words


def test_builtin_tokens_fit_the_public_size_too() -> None:
    ids = PromptBuilder(PUBLIC).token_ids("turn on the stove", [81, 81])
    assert ids.count(PUBLIC.language.image_token_id) == 162
    assert max(ids) < PUBLIC.language.vocab_size


def test_no_folder_means_the_builtin_tokenizer() -> None:
    assert isinstance(load_tokenizer(NANO, None), BuiltinTokenizer)


def test_a_tokenizer_of_another_model_is_refused(public_tokenizer: FolderTokenizer) -> None:
    with pytest.raises(PromptError, match=r"id 3 of at most 512.*Got id 151669 of 151680"):
        FolderTokenizer(FOLDER, NANO)


def test_a_missing_or_empty_tokenizer_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"no folder.*model\.tokenizer"):
        load_tokenizer(PUBLIC, tmp_path / "absent")
    with pytest.raises(PromptError, match=r"tokenizer_config\.json"):
        load_tokenizer(PUBLIC, tmp_path)


def test_importing_prompts_does_not_import_torch() -> None:
    code = "import sys, models.groot_n1_6.prompt; sys.exit('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
