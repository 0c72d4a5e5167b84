"""From a task's words to the token arrays of a batch. numpy only, cheap to import in data workers.

The template is the public one: text first, then for each view a marker and its image tokens. The
prompt is padded on the right to one fixed length for all tasks; it is never cut, because what would
be lost are image tokens.
Letters: P prompts, L columns, N image tokens (all views), X columns that are not image tokens.
"""

import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from models.groot_n1_6.config import GrootConfig

Arrays = dict[str, NDArray[Any]]

IMAGE_TOKEN = "<IMG_CONTEXT>"
HEAD = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
TAIL = "<|im_end|>\n"
PUNCTUATION = re.compile(r"[^\w\s]")


class PromptError(ValueError):
    """A prompt that can't be built, or a tokenizer that is not the model's; four-part message."""


class Tokenizer(Protocol):
    """What a prompt needs of a tokenizer."""

    pad_id: int

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text with special tokens in it."""
        ...


class BuiltinTokenizer:
    """A tokenizer without files: special tokens by number, words by hash. For nano and speed runs.

    The same word is always the same id; two words may share one.
    """

    FIRST_WORD = 16
    SPECIAL = ("<|im_start|>", "<|im_end|>", "<img>", "</img>")
    PIECES = re.compile(r"<\|im_start\|>|<\|im_end\|>|<img>|</img>|<IMG_CONTEXT>|<image \d+>|\w+")

    def __init__(self, config: GrootConfig) -> None:
        self.pad_id = 0
        self._image_id = config.language.image_token_id
        self._num_words = config.language.vocab_size - self.FIRST_WORD
        free = (number for number in range(1, self.FIRST_WORD) if number != self._image_id)
        self._special = dict(zip(self.SPECIAL, free))
        self._special[IMAGE_TOKEN] = self._image_id

    def encode(self, text: str) -> list[int]:
        """Returns an id for each special token, view marker and word."""
        return [self._id(piece) for piece in self.PIECES.findall(text)]

    def _id(self, piece: str) -> int:
        known = self._special.get(piece)
        if known is not None:
            return known
        word = self.FIRST_WORD + zlib.crc32(piece.encode()) % self._num_words
        return word if word != self._image_id else self.FIRST_WORD


class FolderTokenizer:
    """The tokenizer files of the public checkpoint, read by transformers without remote code."""

    def __init__(self, folder: Path | str, config: GrootConfig) -> None:
        self._tokenizer = _load_tokenizer(Path(folder))
        self.pad_id = int(self._tokenizer.pad_token_id)
        image_id = self._tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)
        language = config.language
        if image_id != language.image_token_id or len(self._tokenizer) > language.vocab_size:
            raise PromptError(
                f"While loading the tokenizer {folder}: {IMAGE_TOKEN} is id "
                f"{language.image_token_id} of at most {language.vocab_size} in model size "
                f"{config.size}. Got id {image_id} of {len(self._tokenizer)}. "
                "Give the tokenizer folder that belongs to this checkpoint (model.tokenizer)."
            )

    def encode(self, text: str) -> list[int]:
        """Returns the ids of the text as it stands."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids


def load_tokenizer(config: GrootConfig, folder: Path | str | None) -> Tokenizer:
    """Returns the tokenizer in a folder, or the built-in one where none is given."""
    return BuiltinTokenizer(config) if folder is None else FolderTokenizer(folder, config)


class PromptBuilder:
    """Builds prompts of one model.

    `length` fixes the columns of every prompt; None makes each as long as it needs to be.
    """

    def __init__(
        self, config: GrootConfig, tokenizer: Tokenizer | None = None, length: int | None = None
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer or BuiltinTokenizer(config)
        self.length = length

    def token_ids(self, task: str, view_tokens: Sequence[int]) -> list[int]:
        """Returns the ids of one prompt, unpadded."""
        ids = self.tokenizer.encode(render(task, view_tokens))
        found = ids.count(self.config.language.image_token_id)
        if found != sum(view_tokens):
            raise PromptError(
                f"While building the prompt of {task!r}: the text holds only the views' image "
                f"tokens. Got {found} of {sum(view_tokens)}. Take special tokens out of the task."
            )
        return ids

    def build(self, task: str, num_views: int) -> Arrays:
        """Returns the arrays of one sample with square views.

        They are input_ids_L, valid_len, image_index_N, text_index_X and text_valid_X.
        """
        view_tokens = [self.config.square_view_tokens] * num_views
        stacked = self.build_all([task], view_tokens)
        return {name: array[0] for name, array in stacked.items()}

    def build_all(self, tasks: Sequence[str], view_tokens: Sequence[int]) -> Arrays:
        """Returns the arrays of `build` for all tasks, stacked, at one length.

        Raises:
            PromptError: a prompt is longer than the fixed length.
        """
        prompts = [self.token_ids(task, view_tokens) for task in tasks]
        longest = max(map(len, prompts))
        length = longest if self.length is None else self.length
        if longest > length:
            worst = tasks[[len(ids) for ids in prompts].index(longest)]
            raise PromptError(
                f"While building prompts of {length} columns: a prompt is never cut, since its "
                f"image tokens come last. Got {longest} columns, {sum(view_tokens)} of them image "
                f"tokens, for {worst!r}. Set the prompt length to {longest} or more, "
                "shorten the task, or use fewer or smaller views."
            )
        return _stack(prompts, length, self.config.language.image_token_id, self.tokenizer.pad_id)


def fixed_length(builder: PromptBuilder, tasks: Sequence[str], view_tokens: Sequence[int]) -> int:
    """Returns the length for all tasks: the longest prompt, rounded up to `prompt_step`.

    The step lets task suites of one kind share a length: 220 for LIBERO's 196-211.
    """
    step = builder.config.prompt_step
    longest = max(len(builder.token_ids(task, view_tokens)) for task in tasks)
    return -(-longest // step) * step


def render(task: str, view_tokens: Sequence[int]) -> str:
    """Returns the prompt's text: the task lower-cased without punctuation, then the views."""
    words = PUNCTUATION.sub("", task.lower())
    views = (
        f"<image {number}><img>{IMAGE_TOKEN * count}</img>"
        for number, count in enumerate(view_tokens, start=1)
    )
    return f"{HEAD}{words}{''.join(views)}{TAIL}"


def _stack(prompts: list[list[int]], length: int, image_id: int, pad_id: int) -> Arrays:
    num_image = prompts[0].count(image_id)
    size, num_text = len(prompts), length - num_image
    arrays: Arrays = {
        "input_ids_L": np.full((size, length), pad_id, np.int64),
        "valid_len": np.array([len(ids) for ids in prompts], np.int64),
        "image_index_N": np.zeros((size, num_image), np.int64),
        "text_index_X": np.zeros((size, num_text), np.int64),
        "text_valid_X": np.zeros((size, num_text), np.bool_),
    }
    for row, ids in enumerate(prompts):
        is_image = np.array(ids) == image_id
        text = np.flatnonzero(~is_image)
        arrays["input_ids_L"][row, : len(ids)] = ids
        arrays["image_index_N"][row] = np.flatnonzero(is_image)
        arrays["text_index_X"][row, : len(text)] = text
        arrays["text_valid_X"][row, : len(text)] = True
    return arrays


def _load_tokenizer(folder: Path) -> Any:
    """Returns transformers' tokenizer; imported here, since the built-in one needs no library."""
    problem = None if folder.is_dir() else "no folder"
    if problem is None:
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError) as error:
            problem = f"{type(error).__name__}: {error}"
    raise PromptError(
        f"While loading the tokenizer {folder}: it is a folder with tokenizer_config.json, vocab "
        f"and merges. Got {problem}. Give the folder of the public tokenizer (model.tokenizer)."
    )
