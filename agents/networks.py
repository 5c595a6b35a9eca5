"""The networks, in torch alone: one that is the same for every arc, and a plain one.

The action of arc (i, j) is its logit over `actions.LOGIT_SCALE`:

    8 a_ij = log(c_j / max_k c_k) + w . x_ij + m(x_ij),   x_ij = (f_ij, mean over j of f_ij)

with c_j the capacity of the cell by root i's probe and f_ij the fields of the observation on a
logarithmic scale. w and the last layer of m start at zero, so an untrained network splits by
capacity, and training starts from a sensible policy. Weights are shared by all arcs: one decision
teaches all of them, and relabelling cells relabels the answer. Row i of the action reads row i of
the observation only. The value reads all rows; training alone uses it, and only
the actor is exported.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from dlb_gym.actions import LOGIT_SCALE
from dlb_gym.observation import FIELD_NAMES, FIELDS

INPUTS = FIELD_NAMES[: FIELD_NAMES.index("tail_alpha")]
"""Fields that the networks per arc read: those before the tail's curve. Fields that are added later
come after, so what was learned keeps its inputs."""

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


class ArcActor(nn.Module):
    """Means of the actions, (n, roots * cells).

    Args:
        num_roots: Roots of the observation.
        num_cells: Cells of the observation.
        width: Of the hidden layers.
    """

    scale: torch.Tensor

    def __init__(self, num_roots: int, num_cells: int, width: int = WIDTH) -> None:
        super().__init__()
        self._shape = (num_roots, num_cells, len(FIELDS))
        scale = torch.tensor([SCALE.get(name, 1.0) for name in INPUTS])
        self.register_buffer("scale", scale)
        self._columns = [FIELD_NAMES.index(name) for name in INPUTS]
        inputs = 2 * len(INPUTS)
        self.direct = nn.Linear(inputs, 1)
        self.arc = nn.Sequential(
            nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        )
        self.correction = nn.Linear(width, 1)

    def start_at_capacity(self) -> None:
        """Makes the correction zero."""
        for layer in (self.direct, self.correction):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward_actor(self, observation: torch.Tensor) -> torch.Tensor:
        """Means of the actions."""
        cube, arcs, x = self._inputs(observation)
        capacity = cube[..., FIELD_NAMES.index("capacity_load")]
        largest = capacity.amax(dim=-1, keepdim=True)
        prior = torch.log((capacity + TINY) / (largest + TINY))
        correction = (DIRECT_GAIN * self.direct(x) + self.correction(self.arc(x)))[..., 0]
        return torch.where(arcs, (prior + correction) / LOGIT_SCALE, 0.0).flatten(1)

    def _inputs(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        cube = observation.reshape(-1, *self._shape)
        arcs = cube[..., FIELD_NAMES.index("admissible")] > 0.0
        fields = torch.log1p(cube[..., self._columns] * self.scale)
        count = arcs.sum(dim=-1, keepdim=True).clamp(min=1)[..., None]
        row_mean = (fields.sum(dim=-2, keepdim=True) / count).expand_as(fields)
        return cube, arcs, torch.cat((fields - row_mean, row_mean), dim=-1)


class ArcNetwork(ArcActor):
    """The actor, and what the value is read from, (n, WIDTH)."""

    def __init__(self, num_roots: int, num_cells: int) -> None:
        super().__init__(num_roots, num_cells)
        self.latent_dim_pi = num_roots * num_cells
        self.latent_dim_vf = WIDTH
        self.value = nn.Sequential(nn.Linear(2 * len(INPUTS), WIDTH), nn.Tanh())
        self.fleet = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def actor_state(self) -> dict[str, torch.Tensor]:
        """The tensors of `ArcActor` alone."""
        return {
            name: tensor
            for name, tensor in self.state_dict().items()
            if not name.startswith(("value.", "fleet."))
        }

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both outputs of observations (n, size)."""
        return self.forward_actor(observation), self.forward_critic(observation)

    def forward_critic(self, observation: torch.Tensor) -> torch.Tensor:
        """What the value is read from: a mean over all arcs."""
        _, arcs, x = self._inputs(observation)
        weight = arcs[..., None].to(x.dtype)
        mean = (self.value(x) * weight).sum(dim=(1, 2)) / weight.sum(dim=(1, 2)).clamp(min=1.0)
        return torch.as_tensor(self.fleet(mean))


class MlpActor(nn.Module):
    """Means of the actions, (n, outputs), of observations (n, inputs): tanh layers, then linear.

    Args:
        inputs: Length of an observation.
        hidden: Widths of the hidden layers.
        outputs: Length of an action.
    """

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = inputs
        for next_width in hidden:
            layers += [nn.Linear(width, next_width), nn.Tanh()]
            width = next_width
        self.hidden = nn.Sequential(*layers)
        self.action = nn.Linear(width, outputs)

    def forward_actor(self, observation: torch.Tensor) -> torch.Tensor:
        """Means of the actions."""
        return torch.as_tensor(self.action(self.hidden(observation)))
