"""Token arrays of every task text, made once; a batch takes rows of them.

Letters: P prompts, B samples, L sequence, N image tokens, X text tokens.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lf_ray.errors import DataError
from models.groot_n1_6.config import GrootConfig
from models.groot_n1_6.prompt import PromptBuilder, PromptError, fixed_length, load_tokenizer

_FIELDS = {
    "input_ids_L": "input_ids_BL",
    "valid_len": "valid_len_B",
    "image_index_N": "image_index_BN",
    "text_index_X": "text_index_BX",
    "text_valid_X": "text_valid_BX",
}


class PromptTable:
    """The prompts of all tasks, padded on the right to one length."""

    def __init__(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        self._arrays = {field: arrays[name] for name, field in _FIELDS.items()}

    @property
    def length(self) -> int:
        """Returns the columns of every prompt."""
        return int(self._arrays["input_ids_BL"].shape[1])

    def fields(self, prompt_B: NDArray[np.int64]) -> dict[str, NDArray[np.generic]]:
        """Returns the batch's fields for these prompts."""
        return {field: array[prompt_B] for field, array in self._arrays.items()}


def prompt_table(
    texts: Sequence[str], view_tokens: Sequence[int], config: GrootConfig, tokenizer: str | None
) -> PromptTable:
    """Returns the prompts of task texts for views of these many image tokens.

    Raises:
        DataError: the tokenizer is not the model's, or a text holds special tokens.
    """
    folder = None if tokenizer is None else Path(tokenizer).expanduser()
    try:
        builder = PromptBuilder(config, load_tokenizer(config, folder))
        builder.length = fixed_length(builder, texts, view_tokens)
        return PromptTable(builder.build_all(texts, view_tokens))
    except PromptError as error:
        raise DataError(str(error)) from error
