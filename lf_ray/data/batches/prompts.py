"""Token arrays of every task text, made once; a batch takes rows of them.

Letters: P prompts, L sequence, N image tokens, X text tokens.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.groot_n1_6.config import GrootConfig


@dataclass(frozen=True)
class PromptArrays:
    """All prompts, padded on the right to the longest: [P, L], [P], [P, N], [P, X], [P, X]."""

    ids: NDArray[np.int64]
    valid_len: NDArray[np.int64]
    image_index: NDArray[np.int64]
    text_index: NDArray[np.int64]
    text_valid: NDArray[np.bool_]

    def fields(self, prompt_B: NDArray[np.int64]) -> dict[str, NDArray[np.generic]]:
        """Returns the batch's fields for these prompts."""
        return {
            "input_ids_BL": self.ids[prompt_B],
            "valid_len_B": self.valid_len[prompt_B],
            "image_index_BN": self.image_index[prompt_B],
            "text_index_BX": self.text_index[prompt_B],
            "text_valid_BX": self.text_valid[prompt_B],
        }


def prompt_arrays(
    texts: Sequence[str], view_tokens: Sequence[int], config: GrootConfig, tokenizer: str | None
) -> PromptArrays:
    """Returns the token arrays of task texts."""
    image_id = config.language.image_token_id
    rows = []
    for text in texts:
        ids = [_word_id(word, config) for word in text.lower().split()]
        for view, count in enumerate(view_tokens):
            ids += [_word_id(f"view {view}", config), *[image_id] * count]
        rows.append([*ids, _word_id("end", config)])
    return stacked_prompts(rows, image_id, pad_id=0)


def _word_id(word: str, config: GrootConfig) -> int:
    first = config.language.image_token_id + 1
    return first + zlib.crc32(word.encode()) % (config.language.vocab_size - first)


def stacked_prompts(rows: Sequence[Sequence[int]], image_id: int, pad_id: int) -> PromptArrays:
    """Returns id sequences as padded arrays with the columns of image and text tokens."""
    lengths = np.array([len(row) for row in rows], np.int64)
    ids_PL = np.full((len(rows), int(lengths.max())), pad_id, np.int64)
    for place, row in enumerate(rows):
        ids_PL[place, : len(row)] = row
    is_image = [np.array(row) == image_id for row in rows]
    num_text = max(int((~mask).sum()) for mask in is_image)
    text_PX = np.zeros((len(rows), num_text), np.int64)
    valid_PX = np.zeros((len(rows), num_text), bool)
    for place, mask in enumerate(is_image):
        columns = np.flatnonzero(~mask)
        text_PX[place, : len(columns)] = columns
        valid_PX[place, : len(columns)] = True
    image_PN = np.stack([np.flatnonzero(mask) for mask in is_image]).astype(np.int64)
    return PromptArrays(ids_PL, lengths, image_PN, text_PX, valid_PX)
