"""Sizes of a view on its way to the tower, by the public rule. Pure integers, no torch.

Shortest side to `shortest_edge_px`, crop of `crop_frac` on each side, shortest side again, then
each side to the nearest multiple of one image token. A square 256 px view ends at 252 px.
"""

import math
from typing import NamedTuple

from models.groot_n1_6.config import GrootConfig

MIN_VIEW_TOKENS = 4
MAX_VIEW_TOKENS = 4096


class Size(NamedTuple):
    """Height and width in pixels."""

    height: int
    width: int


class ViewGeometry(NamedTuple):
    """The sizes that a view passes through."""

    source: Size
    resized: Size
    cropped: Size
    enlarged: Size
    final: Size

    def num_tokens(self, token_px: int) -> int:
        """Returns the image tokens of the view."""
        return (self.final.height // token_px) * (self.final.width // token_px)


def view_geometry(config: GrootConfig, height: int, width: int) -> ViewGeometry:
    """Returns the sizes of a view that is decoded as height x width."""
    source = Size(height, width)
    resized = _with_shortest(source, config.shortest_edge_px)
    cropped = Size(
        max(1, int(resized.height * config.crop_frac)),
        max(1, int(resized.width * config.crop_frac)),
    )
    enlarged = _with_shortest(cropped, config.shortest_edge_px)
    return ViewGeometry(source, resized, cropped, enlarged, _on_grid(enlarged, config.token_px))


def view_tokens(config: GrootConfig, height: int, width: int) -> int:
    """Returns the image tokens of a view that is decoded as height x width."""
    return view_geometry(config, height, width).num_tokens(config.token_px)


def _with_shortest(size: Size, edge_px: int) -> Size:
    scale = edge_px / min(size)
    return Size(round(size.height * scale), round(size.width * scale))


def _on_grid(size: Size, token_px: int) -> Size:
    rows, columns = (max(1, round(side / token_px)) for side in size)
    if rows * columns > MAX_VIEW_TOKENS:
        shrink = math.sqrt(rows * columns / MAX_VIEW_TOKENS)
        rows, columns = math.floor(rows / shrink), math.floor(columns / shrink)
    elif rows * columns < MIN_VIEW_TOKENS:
        grow = math.sqrt(MIN_VIEW_TOKENS * token_px**2 / (size.height * size.width))
        rows, columns = (math.ceil(side * grow / token_px) for side in size)
    return Size(rows * token_px, columns * token_px)
