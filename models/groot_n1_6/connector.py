"""From patches to image tokens: 2 x 2 patches become one token of the language model's width.

Letters: V views, P patches, C vision width, N image tokens of a view, D language width.
"""

from torch import Tensor, nn


def pixel_unshuffle(x_VPC: Tensor, grid: tuple[int, int]) -> Tensor:
    """Returns [V, P/4, 4C]: row-major over the halved grid, feature index c * 4 + dy * 2 + dx."""
    rows, columns = grid
    num_views, _, width = x_VPC.shape
    split = x_VPC.reshape(num_views, rows // 2, 2, columns // 2, 2, width)
    return split.permute(0, 1, 3, 5, 2, 4).flatten(3).flatten(1, 2)


class Connector(nn.Sequential):
    """LayerNorm, linear, GELU (erf), linear."""

    def __init__(self, vision_width: int, language_width: int) -> None:
        super().__init__(
            nn.LayerNorm(4 * vision_width, eps=1e-5),
            nn.Linear(4 * vision_width, language_width),
            nn.GELU(),
            nn.Linear(language_width, language_width),
        )

    def encode(self, x_VPC: Tensor, grid: tuple[int, int]) -> Tensor:
        """Returns image tokens [V, N, D] of views whose patches form `grid`."""
        out_VND: Tensor = self(pixel_unshuffle(x_VPC, grid))
        return out_VND
