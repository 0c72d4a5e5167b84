"""Single samples of opened data as a model sees them when it acts: no augmentation, no order.

Letters: B samples, T action horizon, A action width.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lf_ray.data.batches.lookahead import Lookahead
from lf_ray.data.batches.opening import open_training_set
from lf_ray.data.batches.training_set import TrainingSet
from lf_ray.data.frames.pool import DecoderPool
from lf_ray.data.stream import Picks
from lf_ray.errors import DataError, four_parts
from lf_ray.settings import SweepConfig

Batch = dict[str, Tensor]


def open_whole(config: SweepConfig) -> TrainingSet:
    """Returns the data with the episodes that a training leaves out."""
    return open_training_set(replace(config.data, holdout_episodes=0), config.model)


def read_batch(source: TrainingSet, part: int, samples: Sequence[int]) -> Batch:
    """Returns samples of one data set as a batch on the host.

    Raises:
        DataError: a frame can't be decoded.
    """
    picks = Picks(
        np.full(len(samples), part, np.int64),
        np.asarray(samples, np.int64),
        np.zeros(len(samples), np.int64),
    )
    pool = DecoderPool(0, 1)
    try:
        lookahead = Lookahead(source, lambda *_: picks, lambda size: size)
        pictures = lookahead.again(picks, pool)
    finally:
        pool.close()
    images = np.empty(source.image_shape(len(samples)), np.uint8)
    fields, bad = source.arrays(picks, 0, pictures, images)
    if bad:
        frame = next(iter(bad.values()))
        raise DataError(
            four_parts(
                "decoding an observation",
                "its frames must be decodable",
                f"frame {frame.frame} of {frame.path}: {frame.reason}",
                "Take another frame, or restore the file.",
            )
        )
    fields = {name: values for name, values in fields.items() if name != "augment_BD"}
    batch = {name: torch.from_numpy(np.ascontiguousarray(item)) for name, item in fields.items()}
    return {"images_BKHWC": torch.from_numpy(images), **batch}


@torch.no_grad()
def sampled_actions(model: Any, batch: Batch, seed: int) -> Tensor:
    """Returns normalised actions [B, T, A] on the host; the noise follows from the seed alone."""
    device = model.action_head.vlln.weight.device
    placed = {name: tensor.to(device) for name, tensor in batch.items()}
    shape = model.draw_shapes(len(batch["state_B1W"]))["noise_BTA"]
    noise_BTA = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)
    was_training = model.training
    model.eval()
    try:
        actions_BTA: Tensor = model.sample_actions(model.prefix(placed), placed, noise_BTA)
    finally:
        model.train(was_training)
    return actions_BTA.float().cpu()
