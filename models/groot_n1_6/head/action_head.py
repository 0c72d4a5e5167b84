"""The trainable head: state and noisy actions to a velocity, by flow matching.

Letters: B batch, T action horizon, A action width, W state width, D width, S sequence of the
language model, C its width, N image tokens, X text tokens.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.groot_n1_6.config import GrootConfig
from models.groot_n1_6.embedding import embedding
from models.groot_n1_6.head.dit import AlternateVLDiT, Keys
from models.groot_n1_6.head.embodiment import ActionEncoder, CategorySpecificMlp


class ActionHead(nn.Module):
    """Encoders, DiT and decoder."""

    def __init__(self, config: GrootConfig) -> None:
        super().__init__()
        self.config = config
        dit, slots = config.dit, config.num_slots
        self.model = AlternateVLDiT(dit, config.language.width)
        self.state_encoder = CategorySpecificMlp(
            slots, (config.max_state_dim, config.hidden_width, dit.width)
        )
        self.action_encoder = ActionEncoder(slots, config.max_action_dim, dit.width)
        self.action_decoder = CategorySpecificMlp(
            slots, (dit.output_width, config.hidden_width, config.max_action_dim)
        )
        self.vlln = nn.LayerNorm(config.language.width, eps=1e-5)
        self.position_embedding = embedding(dit.max_positions, dit.width)
        self.mask_token = (
            nn.Parameter(torch.empty(1, 1, dit.width)) if config.state_dropout_prob > 0 else None
        )

    def encode_state(
        self, state_B1W: Tensor, row_B: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Returns the state token [B, 1, D]; in training some samples' state is hidden."""
        state_B1D: Tensor = self.state_encoder(state_B1W, row_B)
        if self.mask_token is None or not self.training:
            return state_B1D
        draw = torch.rand(len(state_B1D), 1, 1, device=state_B1D.device, generator=generator)
        hidden = draw < self.config.state_dropout_prob
        return torch.where(hidden, self.mask_token.float(), state_B1D)

    def norm_features(self, vl_BSC: Tensor) -> Tensor:
        """Returns the language model's output as the DiT's keys want it."""
        out: Tensor = self.vlln(vl_BSC.to(self.vlln.weight.dtype))
        return out.to(self.model.proj_out_2.weight.dtype)

    def velocity(
        self,
        state_B1D: Tensor,
        noisy_BTA: Tensor,
        bucket_B: Tensor,
        row_B: Tensor,
        keys: tuple[Keys, Keys],
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Returns the predicted velocity [B, T, A] float32; `keys` are text and image."""
        num_steps = noisy_BTA.shape[1]
        action_BTD = self.action_encoder(noisy_BTA, bucket_B, row_B)
        action_BTD = action_BTD + self.position_embedding.weight[:num_steps].float()
        tokens = torch.cat((state_B1D, action_BTD), dim=1)
        text, image = keys
        out = self.model(tokens, bucket_B, text, image, generator)
        velocity_BTA: Tensor = self.action_decoder(out[:, -num_steps:], row_B)
        return velocity_BTA


def noisy_actions(action_BTA: Tensor, noise_BTA: Tensor, time_B: Tensor) -> Tensor:
    """Returns the point at `time_B` on the straight line from noise to actions."""
    return torch.lerp(noise_BTA, action_BTA, time_B[:, None, None])


def flow_loss(predicted_BTA: Tensor, target_BTA: Tensor, mask_BTA: Tensor) -> Tensor:
    """Returns the mean squared error over all masked cells of the local batch."""
    error_BTA = functional.mse_loss(predicted_BTA.float(), target_BTA, reduction="none")
    return (error_BTA * mask_BTA).sum() / (mask_BTA.sum() + 1e-6)
