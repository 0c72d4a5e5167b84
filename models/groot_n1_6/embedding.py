"""Tables that rows are looked up in."""

import torch
from torch import nn


def embedding(num_rows: int, width: int) -> nn.Embedding:
    """Returns a trainable table that `initialize` or a checkpoint is still to fill.

    nn.Embedding alone would draw it at once, here on the meta device, and for that torch imports
    its compiler: three seconds of a core at the start of each worker.
    """
    return nn.Embedding(num_rows, width, _weight=torch.empty(num_rows, width))
