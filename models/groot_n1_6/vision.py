"""The SigLIP2 tower: patches of normalised pixels to one feature vector a patch.

Views are never mixed: a batch of views is a batch of images. The pooling head is part of the public
checkpoint and held only to be written back; nothing runs it.
Letters: V views of all samples, P patches of a view, C width, H heads, E head width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.groot_n1_6.config import VisionConfig
from models.groot_n1_6.embedding import embedding
from models.groot_n1_6.views.resampling import resize_matrix, triangle


class VisionAttention(nn.Module):
    """Full attention among the patches of one view."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.q_proj = nn.Linear(config.width, config.width)
        self.k_proj = nn.Linear(config.width, config.width)
        self.v_proj = nn.Linear(config.width, config.width)
        self.out_proj = nn.Linear(config.width, config.width)

    def forward(self, x_VPC: Tensor) -> Tensor:
        """Returns the mixed patches."""
        q_VHPE, k_VHPE, v_VHPE = (
            proj(x_VPC).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed_VHPE = functional.scaled_dot_product_attention(q_VHPE, k_VHPE, v_VHPE)
        out_VPC: Tensor = self.out_proj(mixed_VHPE.transpose(1, 2).flatten(2))
        return out_VPC


class VisionMlp(nn.Module):
    """Two linear layers around a tanh-GELU."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.width, config.mlp_width)
        self.fc2 = nn.Linear(config.mlp_width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the transformed patches."""
        out: Tensor = self.fc2(functional.gelu(self.fc1(x), approximate="tanh"))
        return out


class VisionLayer(nn.Module):
    """One pre-norm layer."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(config.width, eps=config.eps)
        self.self_attn = VisionAttention(config)
        self.layer_norm2 = nn.LayerNorm(config.width, eps=config.eps)
        self.mlp = VisionMlp(config)

    def forward(self, x_VPC: Tensor) -> Tensor:
        """Returns the residual stream after this layer."""
        x_VPC = x_VPC + self.self_attn(self.layer_norm1(x_VPC))
        out_VPC: Tensor = x_VPC + self.mlp(self.layer_norm2(x_VPC))
        return out_VPC


class VisionEmbeddings(nn.Module):
    """Patch projection plus a table of positions, resized to the view's grid."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.table_side = config.table_side
        self.patch_embedding = nn.Linear(config.patch_width, config.width)
        self.position_embedding = embedding(config.table_side**2, config.width)

    def forward(self, patches_VPD: Tensor, grid: tuple[int, int]) -> Tensor:
        """Returns the embedded patches of views that are `grid` = (rows, columns) patches."""
        patches_VPD = patches_VPD.to(self.patch_embedding.weight.dtype)
        out_VPC: Tensor = self.patch_embedding(patches_VPD) + self._positions(grid)
        return out_VPC

    def _positions(self, grid: tuple[int, int]) -> Tensor:
        table_NC = self.position_embedding.weight
        side = self.table_side
        if grid == (side, side):
            return table_NC
        rows_OI, columns_OI = (
            resize_matrix(num_out, side, triangle, table_NC.device) for num_out in grid
        )
        table_IIC = table_NC.float().reshape(side, side, -1)
        resized = torch.einsum("yi,xj,ijc->yxc", rows_OI, columns_OI, table_IIC)
        return resized.flatten(0, 1).to(table_NC.dtype)


class PoolingHead(nn.Module):
    """The checkpoint's attention pooling: parameters only."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.empty(1, 1, config.width))
        self.attention = nn.MultiheadAttention(config.width, config.num_heads, batch_first=True)
        self.layernorm = nn.LayerNorm(config.width, eps=config.eps)
        self.mlp = VisionMlp(config)


class VisionEncoder(nn.Module):
    """The stack of layers."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(VisionLayer(config) for _ in range(config.num_layers))


class VisionTransformer(nn.Module):
    """The whole tower."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.embeddings = VisionEmbeddings(config)
        self.encoder = VisionEncoder(config)
        self.post_layernorm = nn.LayerNorm(config.width, eps=config.eps)
        self.head = PoolingHead(config)

    def forward(self, patches_VPD: Tensor, grid: tuple[int, int]) -> Tensor:
        """Returns one vector a patch, as [V, P, C]."""
        x_VPC = self.embeddings(patches_VPD, grid)
        for layer in self.encoder.layers:
            x_VPC = layer(x_VPC)
        out_VPC: Tensor = self.post_layernorm(x_VPC)
        return out_VPC


def patchify(pixels_VCHW: Tensor, patch_px: int) -> Tensor:
    """Returns row-major patches [V, P, D] with D index (dy * patch + dx) * 3 + channel."""
    num_views, _, height, width = pixels_VCHW.shape
    rows, columns = height // patch_px, width // patch_px
    split = pixels_VCHW.reshape(num_views, 3, rows, patch_px, columns, patch_px)
    return split.permute(0, 2, 4, 3, 5, 1).reshape(num_views, rows * columns, -1)
