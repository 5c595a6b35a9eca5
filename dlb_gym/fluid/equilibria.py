"""Equilibria of a fluid model's rows, as tensors beside its states."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from dlb_gym.equilibrium import equilibrium_of
from dlb_gym.fluid.model import FluidModel
from dlb_gym.fluid.system import to_numpy
from dlb_gym.service_curves import Cost

Tensor = torch.Tensor


class FluidEquilibrium(NamedTuple):
    """Of every row; see `dlb_gym.equilibrium.Equilibrium`.

    Attributes:
        routing: x*, (rows, roots, cells).
        rif: N*, (rows, cells).
        least_cost: c_i, (rows, roots).
        latency_s: (rows,), the way through the router included.
        residual: (rows,), complementary slackness.
    """

    routing: Tensor
    rif: Tensor
    least_cost: Tensor
    latency_s: Tensor
    residual: Tensor


def equilibrium(model: FluidModel, cost: Cost) -> FluidEquilibrium:
    """The equilibria under mean demand and the cells of the start, to 1e-9.

    Args:
        model: Its curves must increase.
        cost: `rif`, `latency` or `gradient`; the last one's is the best fixed routing.

    Raises:
        ValueError: A curve stops to increase (names the point), or the solver stopped short.
    """
    system = model.system
    shape = system.one_way_s.shape
    found = FluidEquilibrium(
        *(torch.zeros(size, dtype=torch.float64) for size in (shape, (shape[0], shape[2]))),
        *(torch.zeros(size, dtype=torch.float64) for size in (shape[:2], shape[:1], shape[:1])),
    )
    for row in range(shape[0]):
        roots, cells, names, arrays = system.row(row)
        terms = None
        if system.arc_cost is not None:
            terms = to_numpy(system.arc_cost[row])[np.ix_(roots, cells)]
        own = equilibrium_of(*arrays, cost, terms, names)
        found.routing[row, roots[:, None], cells] = torch.from_numpy(own.routing)
        found.rif[row, cells] = torch.from_numpy(own.rif)
        found.least_cost[row, roots] = torch.from_numpy(own.least_cost)
        found.latency_s[row], found.residual[row] = own.latency_s, own.residual
    router_s = torch.nan_to_num(system.request_delay_s - system.one_way_s).amax(dim=(1, 2))
    found = found._replace(latency_s=found.latency_s + router_s.double().cpu())
    return FluidEquilibrium(*(each.to(system.rates_rps) for each in found))
