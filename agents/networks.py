"""A network that is the same for every arc.

The action of arc (i, j) is its logit over `actions.LOGIT_SCALE`:

    8 a_ij = log(c_j / max_k c_k) + w . x_ij + m(x_ij),   x_ij = (f_ij, mean over j of f_ij)

with c_j the capacity of the cell by root i's probe and f_ij the fields of the observation on a
logarithmic scale. w and the last layer of m start at zero, so an untrained network splits by
capacity, and training starts from a sensible policy. Weights are shared by all arcs: one decision
teaches all of them, and relabelling cells relabels the answer. Row i of the action reads row i of
the observation only. The value reads all rows; training alone uses it.
"""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

from dlb_gym.actions import LOGIT_SCALE
from dlb_gym.observation import FIELD_NAMES, FIELDS

WIDTH = 32
DIRECT_GAIN = 5.0
"""Of the linear part: good routing turns round trips into several logits."""
TINY = 1e-6

SCALE = {
    "rtt": 10.0,
    "probe_age": 10.0,
    "servers": 10.0,
    "error_rate": 10.0,
    "outstanding": 3.0,
    "unseen": 10.0,
    "arrival_load": 10.0,
    "capacity_load": 10.0,
    "control_interval": 10.0,
}
"""Brings fields that are small in use to about 1 before log(1 + .); all others stay as they are."""


class ArcNetwork(nn.Module):
    """Means of the actions, (n, roots * cells), and what the value is read from, (n, WIDTH).

    Args:
        num_roots: Roots of the observation.
        num_cells: Cells of the observation.
    """

    scale: torch.Tensor

    def __init__(self, num_roots: int, num_cells: int) -> None:
        super().__init__()
        self._shape = (num_roots, num_cells, len(FIELDS))
        self.latent_dim_pi = num_roots * num_cells
        self.latent_dim_vf = WIDTH
        scale = torch.tensor([SCALE.get(name, 1.0) for name in FIELD_NAMES])
        self.register_buffer("scale", scale)
        width = 2 * len(FIELDS)
        self.direct = nn.Linear(width, 1)
        self.arc = nn.Sequential(
            nn.Linear(width, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()
        )
        self.correction = nn.Linear(WIDTH, 1)
        self.value = nn.Sequential(nn.Linear(width, WIDTH), nn.Tanh())
        self.fleet = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def start_at_capacity(self) -> None:
        """Makes the correction zero."""
        for layer in (self.direct, self.correction):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both outputs of observations (n, size)."""
        return self.forward_actor(observation), self.forward_critic(observation)

    def forward_actor(self, observation: torch.Tensor) -> torch.Tensor:
        """Means of the actions."""
        cube, arcs, x = self._inputs(observation)
        capacity = cube[..., FIELD_NAMES.index("capacity_load")]
        largest = capacity.amax(dim=-1, keepdim=True)
        prior = torch.log((capacity + TINY) / (largest + TINY))
        correction = (DIRECT_GAIN * self.direct(x) + self.correction(self.arc(x)))[..., 0]
        return torch.where(arcs, (prior + correction) / LOGIT_SCALE, 0.0).flatten(1)

    def forward_critic(self, observation: torch.Tensor) -> torch.Tensor:
        """What the value is read from: a mean over all arcs."""
        _, arcs, x = self._inputs(observation)
        weight = arcs[..., None].to(x.dtype)
        mean = (self.value(x) * weight).sum(dim=(1, 2)) / weight.sum(dim=(1, 2)).clamp(min=1.0)
        return torch.as_tensor(self.fleet(mean))

    def _inputs(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        cube = observation.reshape(-1, *self._shape)
        arcs = cube[..., FIELD_NAMES.index("admissible")] > 0.0
        fields = torch.log1p(cube * self.scale)
        count = arcs.sum(dim=-1, keepdim=True).clamp(min=1)[..., None]
        row_mean = (fields.sum(dim=-2, keepdim=True) / count).expand_as(fields)
        return cube, arcs, torch.cat((fields - row_mean, row_mean), dim=-1)


class ArcPolicy(ActorCriticPolicy):
    """SB3's actor and critic around `ArcNetwork`; the observation reaches it as it is."""

    def _build_mlp_extractor(self) -> None:
        roots, cells = self.action_space.shape or (0, 0)
        self.mlp_extractor = ArcNetwork(roots, cells)  # type: ignore[assignment]

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.action_net = nn.Identity()
        if self.use_sde:
            first = float(self.log_std_init)
            self.log_std = nn.Parameter(torch.full((1, self.mlp_extractor.latent_dim_pi), first))
            self.reset_noise()
        self.mlp_extractor.start_at_capacity()  # type: ignore[operator]  # after SB3's own init
        settings = {"lr": lr_schedule(1), **self.optimizer_kwargs}
        self.optimizer = self.optimizer_class(self.parameters(), **settings)

    def _get_action_dist_from_latent(self, latent_pi: torch.Tensor) -> Distribution:
        if not self.use_sde:
            return super()._get_action_dist_from_latent(latent_pi)
        constant = torch.ones(len(latent_pi), 1)
        return self.action_dist.proba_distribution(latent_pi, self.log_std, constant)
