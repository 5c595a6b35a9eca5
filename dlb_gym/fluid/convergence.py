"""How far a path is from its equilibrium: the terms of the paper's Theorem 1 (theory.md section 4).

With (N*, x*) an equilibrium, c_i the least costs there, and f_j, mu_j along the path,

    D   = sum_j (f_j(N_j) - f_j(N*_j)) (mu_j(N_j) - mu_j(N*_j))                       >= 0
    S   = sum_i lambda_i sum_j (c_ij(N*_j) - c_i) x_ij                                >= 0
    Phi = sum_j integral of f_j(s) - f_j(N*_j) over s from N*_j to N_j                >= 0
    V   = sum_i lambda_i / (2 eta_i) |x_i - x*_i|^2 + Phi                             (14)

At zero delay dV/dt <= -D - S. With delays, while |f_j(N_j) - f_j(N*_j)| <= F and costs of a root
differ by at most C, the mean of D + S over T is at most

    (V(0) + 3 F sum_ij lambda_i tau_ij) / T + 4 C F sum_ij lambda_i eta_i tau_ij.
"""

from __future__ import annotations

import numpy as np
import torch

from dlb_gym.fluid.equilibria import FluidEquilibrium
from dlb_gym.fluid.routing import route_cost
from dlb_gym.fluid.system import FluidSystem
from dlb_gym.service_curves import Cost, cell_cost

Tensor = torch.Tensor

PANELS, NODES = 16, 12
"""Of the quadrature of Phi: Gauss-Legendre on equal panels, fine enough for a softplus's bend."""


def workload_distance(
    system: FluidSystem, cost: Cost, rif: Tensor, rest: FluidEquilibrium
) -> Tensor:
    """D, (..., rows).

    Args:
        system: What flows.
        cost: Of the routers.
        rif: N, (..., rows, cells).
        rest: The equilibrium.
    """
    here, there = system.curves.at(rif), system.curves.at(rest.rif)
    servers = system.curves.servers
    costs = cell_cost(here, cost, servers) - cell_cost(there, cost, servers)
    distance: Tensor = (costs * (here.rate_rps - there.rate_rps)).sum(dim=-1)
    return distance


def routing_gap(system: FluidSystem, cost: Cost, routing: Tensor, rest: FluidEquilibrium) -> Tensor:
    """S, (..., rows); `routing` is x, (..., rows, roots, cells)."""
    cells = cell_cost(system.curves.at(rest.rif), cost, system.curves.servers)
    excess = route_cost(cost, system, cells[:, None]) - rest.least_cost[..., None]
    gap = torch.where(system.arcs, excess * routing, 0.0).sum(dim=-1)
    return (system.rates_rps * gap).sum(dim=-1)


def lyapunov(
    system: FluidSystem,
    cost: Cost,
    eta: Tensor | float,
    rif: Tensor,
    routing: Tensor,
    rest: FluidEquilibrium,
) -> Tensor:
    """V of (14), (..., rows)."""
    apart = ((routing - rest.routing) ** 2).sum(dim=-1)
    potential = (system.rates_rps / (2.0 * torch.as_tensor(eta)) * apart).sum(dim=-1)
    return potential + _workload_potential(system, cost, rif, rest)


def mean_bound(
    system: FluidSystem,
    eta: Tensor | float,
    start: Tensor,
    span_s: float,
    costs: tuple[Tensor, Tensor],
) -> Tensor:
    """Upper bound of the mean of D + S over a span from 0 on, (rows,).

    Args:
        system: What flows.
        eta: (rows, roots) or a number.
        start: V(0), (rows,).
        span_s: T.
        costs: F and C, (rows,) each.
    """
    largest, apart = costs
    delays_s = torch.nan_to_num(system.one_way_s).sum(dim=-1)
    sent = (system.rates_rps * delays_s).sum(dim=-1)
    moved = (system.rates_rps * torch.as_tensor(eta) * delays_s).sum(dim=-1)
    return (start + 3.0 * largest * sent) / span_s + 4.0 * apart * largest * moved


def _workload_potential(
    system: FluidSystem, cost: Cost, rif: Tensor, rest: FluidEquilibrium
) -> Tensor:
    """Phi."""
    nodes, weights = (rif.new_tensor(each) for each in np.polynomial.legendre.leggauss(NODES))
    servers = system.curves.servers
    at_rest = cell_cost(system.curves.at(rest.rif), cost, servers)
    width = (rif - rest.rif) / PANELS
    total = torch.zeros_like(rif)
    for panel in range(PANELS):
        for node, weight in zip(nodes, weights, strict=True):
            point = system.curves.at(rest.rif + width * (panel + 0.5 + 0.5 * node))
            total = total + 0.5 * weight * (cell_cost(point, cost, servers) - at_rest)
    return (width * total).sum(dim=-1)
