"""The networks, in torch alone: two that are the same for every arc, and a plain one.

The action of arc (i, j) is its logit over `actions.LOGIT_SCALE`. `ArcActor`'s is

    8 a_ij = log(c_j / max_k c_k) + w . x_ij + m(x_ij),   x_ij = (f_ij, mean over j of f_ij)

with c_j the capacity of the cell by root i's probe and f_ij the fields of the observation on a
logarithmic scale. w and the last layer of m start at zero, so an untrained network splits by
capacity, and training starts from a sensible policy. Weights are shared by all arcs: one decision
teaches all of them, and relabelling cells relabels the answer. Row i of the action reads row i of
the observation only. The value reads all rows; training alone uses it, and only the actor is
exported.

`DescentActor` moves the last routing x_ij against the gradient costs c_ij = 1/mu_j' + 2 tau_ij:

    8 a_ij = log x_ij - S tanh( h g_ij (c_ij - sum_k x_ik c_ik) / S ),
    g_ij   = m_j' / (2 m_j f_j' T_ij) exp( m(y_ij) ),

less the row's largest, h the control interval, m_j, m_j' and f_j' the rate, its slope and that of
the marginal latency by the probe's model, T_ij the loop's delay, S `LARGEST_STEP` and m a bounded
network of the numbers y_ij of an arc, 0 before training. A routing that stays has equal costs on
the arcs that it uses, whatever was learned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from dlb_gym.actions import LOGIT_SCALE
from dlb_gym.latency_model import LatencyModel
from dlb_gym.observation import FIELD_NAMES, FIELDS

INPUTS = FIELD_NAMES[: FIELD_NAMES.index("tail_alpha")]
"""Fields that the networks per arc read: those before the tail's curve. Fields that are added later
come after, so what was learned keeps its inputs."""

WIDTH = 32
DIRECT_GAIN = 5.0
"""Of the linear part: good routing turns round trips into several logits."""
TINY = 1e-6

DESCENT_INPUTS = (
    "rtt",
    "probe_age",
    "rif",
    "marginal_latency",
    "model_alpha",
    "model_beta",
    "model_knee",
    "model_smoothing",
    "routing",
    "arrival_load",
    "capacity_load",
    "control_interval",
)
"""Fields that `DescentActor` reads; `routing` is the last one, which who acts remembers."""

DESCENT_WIDTH = 8
NUMBERS = 9
"""What the gain follows from, per arc: y_ij."""
STEADY_KNEES = (0.9, 1.5)
"""Slopes are taken between these multiples of the knee. Below, costs hardly rise, and the gain that
they allow would fill a cell past its knee before a root sees it; beyond, slopes explode, and the
step would vanish just when traffic must leave (as in Flow)."""
LARGEST_STEP = 0.1
"""S: ratios of a row's shares change by a factor of e^0.2 at most, whatever a noisy probe says."""
LARGEST_FACTOR = math.log(1.6)
"""Bound on |m|: the gain stays below four fifths of the critical one, whatever was learned.
Training in fluids goes to the bound; with log 4, some held-out fluids oscillate."""

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


class DescentActor(nn.Module):
    """A step down the gradient costs from the last routing (see the module).

    Args:
        num_roots: Roots of the observation.
        num_cells: Cells of the observation.
        width: Of the hidden layer.
    """

    def __init__(self, num_roots: int, num_cells: int, width: int = DESCENT_WIDTH) -> None:
        super().__init__()
        self._shape = (num_roots, num_cells, len(FIELDS))
        self.inner = nn.Linear(NUMBERS, width)
        self.factor = nn.Linear(width, 1)
        nn.init.zeros_(self.factor.weight)
        nn.init.zeros_(self.factor.bias)

    def forward_actor(self, observation: torch.Tensor) -> torch.Tensor:
        """Actions, float32, whose rounding hides the order in which a batch was summed."""
        cube = observation.reshape(-1, *self._shape).to(self.factor.weight.dtype)
        names = ("admissible", *DESCENT_INPUTS)
        fields = {name: cube[..., FIELD_NAMES.index(name)] for name in names}
        return (self.logits(fields) / LOGIT_SCALE).flatten(1).to(torch.float32)

    def logits(self, fields: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Logits of the next routing, (n, roots, cells), from -8 to 0, the largest.

        So the least share is 1/3000 of the largest: a trickle that can grow again.

        Args:
            fields: `admissible` and `DESCENT_INPUTS`, of that shape, zero off the arcs.
        """
        arcs, share = fields["admissible"] > 0.0, fields["routing"]
        cost = fields["marginal_latency"] + fields["rtt"]
        step = fields["control_interval"] * self._gain(fields, arcs)
        step = step * (cost - _row_sum(share * cost))
        bounded = LARGEST_STEP * torch.tanh(step / LARGEST_STEP)
        moved = torch.log(share.clamp(min=TINY)) - bounded
        best = torch.where(arcs, moved, -math.inf).amax(dim=-1, keepdim=True)
        return torch.where(arcs, (moved - best).clamp(min=-LOGIT_SCALE), 0.0)

    def _gain(self, fields: Mapping[str, torch.Tensor], arcs: torch.Tensor) -> torch.Tensor:
        """g_ij, per zero-load time and unit of cost."""
        parts = {key: torch.where(arcs, fields[f"model_{key}"], 1.0) for key in _MODEL}
        model = LatencyModel(**{key: each.clamp(min=TINY) for key, each in parts.items()}, xp=torch)
        delay = 0.5 * fields["rtt"] + fields["probe_age"] + 0.5 * fields["control_interval"]
        delay = torch.where(arcs, delay, 1.0).clamp(min=TINY)
        knees = fields["rif"] / model.knee
        point = model.at(knees.clamp(*STEADY_KNEES) * model.knee)
        slope = point.rate_slope.clamp(min=TINY)
        natural = 0.5 * slope / (point.rate * point.marginal_slope * delay).clamp(min=TINY)
        loop = torch.log(slope * delay)
        per_arc = torch.stack((loop, knees, torch.log1p(fields["marginal_latency"])))
        mean = _row_sum(fields["routing"] * per_arc).expand_as(per_arc)
        load = fields["arrival_load"] / fields["capacity_load"].clamp(min=TINY)
        share = fields["routing"]
        own = torch.stack(
            (torch.log1p(100.0 * share), torch.log1p(share * load), torch.log1p(load))
        )
        y = torch.cat((per_arc, mean, own)).movedim(0, -1)
        factor = self.factor(torch.tanh(self.inner(y)))[..., 0]
        bounded = LARGEST_FACTOR * torch.tanh(factor / LARGEST_FACTOR)
        return torch.as_tensor(natural * torch.exp(bounded))


_MODEL = ("alpha", "beta", "knee", "smoothing")


def _row_sum(values: torch.Tensor) -> torch.Tensor:
    """Sum over cells from left to right: padding and batch size never change a bit."""
    return values.cumsum(dim=-1)[..., -1:]
