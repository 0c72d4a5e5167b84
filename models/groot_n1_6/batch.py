"""What a batch is made of: the fields that data writes, the runtime carries and the model reads.

Letters: B batch, K views, H x W decoded frame, L sequence, N image tokens (all views), X text
tokens, W state width, T action horizon, A action width, D augmentation draw.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.groot_n1_6.config import GrootConfig
from models.groot_n1_6.views.augmentation import AUGMENT_WIDTH, draw_augment
from models.groot_n1_6.views.geometry import view_tokens

Batch = dict[str, Tensor]
Draws = dict[str, Tensor]

PREFIX_FIELDS = ("images_BKHWC", "augment_BD", "input_ids_BL", "image_index_BN")
HEAD_FIELDS = (
    "image_index_BN",
    "text_index_BX",
    "text_valid_BX",
    "state_B1W",
    "action_BTA",
    "action_mask_BTA",
    "embodiment_B",
)
MAX_TIME = 0.999


@dataclass(frozen=True, kw_only=True)
class BatchShape:
    """The sizes of a batch that the model's configuration does not fix.

    Attributes:
        num_text: columns of the prompt that are not image tokens, in the longest prompt.
    """

    batch_size: int
    num_views: int = 2
    frame_height: int = 256
    frame_width: int = 256
    num_text: int = 58

    def num_image(self, config: GrootConfig) -> int:
        """Returns the image tokens of a sample."""
        return self.num_views * view_tokens(config, self.frame_height, self.frame_width)


def field_shapes(
    config: GrootConfig, shape: BatchShape
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Returns shape and dtype of every field of a batch."""
    size, image = shape.batch_size, shape.num_image(config)
    frames = (size, shape.num_views, shape.frame_height, shape.frame_width, 3)
    action = (size, config.action_horizon, config.max_action_dim)
    return {
        "images_BKHWC": (frames, torch.uint8),
        "augment_BD": ((size, AUGMENT_WIDTH), torch.float32),
        "input_ids_BL": ((size, shape.num_text + image), torch.int64),
        "valid_len_B": ((size,), torch.int64),
        "image_index_BN": ((size, image), torch.int64),
        "text_index_BX": ((size, shape.num_text), torch.int64),
        "text_valid_BX": ((size, shape.num_text), torch.bool),
        "state_B1W": ((size, 1, config.max_state_dim), torch.float32),
        "action_BTA": (action, torch.float32),
        "action_mask_BTA": (action, torch.float32),
        "embodiment_B": ((size,), torch.int64),
    }


def check_batch(batch: Mapping[str, Tensor], config: GrootConfig, shape: BatchShape) -> None:
    """Checks field names, shapes and dtypes.

    Raises:
        ValueError: naming the field, what it should be and what it is.
    """
    for name, (size, dtype) in field_shapes(config, shape).items():
        if name not in batch:
            raise ValueError(f"a batch has the field {name}, but got {', '.join(sorted(batch))}")
        tensor = batch[name]
        if tuple(tensor.shape) != size or tensor.dtype != dtype:
            raise ValueError(
                f"batch field {name} is {dtype} {list(size)}, "
                f"but got {tensor.dtype} {list(tensor.shape)}"
            )


def synthetic_batch(
    config: GrootConfig, shape: BatchShape, *, seed: int = 0, slot: int | None = None
) -> Batch:
    """Returns a random batch on the host with prompts of different lengths.

    All samples are of one embodiment `slot`; None takes the first of the configuration.
    """
    rng = np.random.default_rng(seed)
    size, num_image, num_text = shape.batch_size, shape.num_image(config), shape.num_text
    frames = field_shapes(config, shape)["images_BKHWC"][0]
    action_shape = (size, config.action_horizon, config.max_action_dim)
    text_len_B = rng.integers(max(num_text * 3 // 4, 1), num_text, size, endpoint=True)
    ids_BL, image_BN, text_BX = _synthetic_prompts(config, rng, text_len_B, num_image, num_text)
    cells = np.zeros(action_shape, np.float32)
    cells[:, :16, :7] = 1.0
    arrays = {
        "images_BKHWC": rng.integers(0, 256, frames, dtype=np.uint8),
        "augment_BD": draw_augment(rng, size),
        "input_ids_BL": ids_BL,
        "valid_len_B": text_len_B + num_image,
        "image_index_BN": image_BN,
        "text_index_BX": text_BX,
        "text_valid_BX": np.arange(num_text)[None] < text_len_B[:, None],
        "state_B1W": rng.uniform(-1, 1, (size, 1, config.max_state_dim)).astype(np.float32),
        "action_BTA": rng.uniform(-1, 1, action_shape).astype(np.float32) * cells,
        "action_mask_BTA": cells,
        "embodiment_B": np.full(size, config.slots[0][1] if slot is None else slot),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def synthetic_draws(config: GrootConfig, batch_size: int, *, seed: int = 0) -> Draws:
    """Returns noise and times as the recipe draws them, on the host."""
    generator = torch.Generator().manual_seed(seed)
    action = (batch_size, config.action_horizon, config.max_action_dim)
    beta_B = torch.rand(batch_size, generator=generator) ** (1 / 1.5)
    return {
        "noise_BTA": torch.randn(action, generator=generator),
        "time_B": (1 - beta_B) * MAX_TIME,
    }


def _synthetic_prompts(
    config: GrootConfig,
    rng: np.random.Generator,
    text_len_B: np.ndarray,
    num_image: int,
    num_text: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns ids, image columns and text columns; two text tokens close every prompt."""
    size, image_id = len(text_len_B), config.language.image_token_id
    ids_BL = rng.integers(image_id + 1, config.language.vocab_size, (size, num_text + num_image))
    ids_BL = np.where(ids_BL == image_id, 0, ids_BL)
    first_B = np.maximum(text_len_B - 2, 0)
    image_BN = first_B[:, None] + np.arange(num_image)
    np.put_along_axis(ids_BL, image_BN, image_id, axis=1)
    column_X = np.arange(num_text)[None]
    after_image = column_X >= first_B[:, None]
    text_BX = np.where(after_image, column_X + num_image, column_X)
    text_BX = np.where(column_X < text_len_B[:, None], text_BX, 0)
    for row, length in enumerate(text_len_B + num_image):
        ids_BL[row, length:] = 0
    return ids_BL, image_BN, text_BX
