"""SB3's actor and critic around `networks.ArcNetwork`; training alone uses it."""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

from agents.networks import ArcNetwork


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
