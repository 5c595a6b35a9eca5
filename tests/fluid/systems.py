"""Fluid systems that the tests share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dlb_gym.fluid import FluidSystem
from dlb_gym.textbook_curves import HyperbolicCells, PooledSlots

NAN = float("nan")


def tensor(values: object) -> torch.Tensor:
    return torch.tensor(np.asarray(values, dtype=float), dtype=torch.float64)


def hyperbolic(largest: object, half: object, servers: object = None) -> HyperbolicCells:
    largest = tensor(largest)
    servers = torch.ones_like(largest) if servers is None else tensor(servers)
    return HyperbolicCells(largest, tensor(half), servers, torch)


def two_cells(tau_s: float, rate: float = 12.0) -> FluidSystem:
    """theory.md 3a: mu = 10 N / (N + 10), one root, equal delays."""
    curves = hyperbolic([[10.0, 10.0]], [[10.0, 10.0]])
    return FluidSystem.from_arrays(tensor([[rate]]), tensor([[[tau_s, tau_s]]]), curves)


def pooled(rate: float, tau_s: float, slots: float = 100.0, service_s: float = 2.0) -> FluidSystem:
    """One root, one cell."""
    curves = PooledSlots(tensor([[slots]]), tensor([[service_s]]), torch)
    return FluidSystem.from_arrays(tensor([[rate]]), tensor([[[tau_s]]]), curves)


def random_network(
    seed: int, roots: int = 3, cells: int = 4, longest_s: float = 0.3, half: float = 10.0
) -> FluidSystem:
    """Hyperbolic cells at 70 % of what they can serve, unequal delays, some arcs missing."""
    rng = np.random.default_rng(seed)
    largest = rng.uniform(5.0, 15.0, cells)
    tau_s = rng.uniform(0.01, longest_s, (roots, cells))
    missing = rng.random((roots, cells)) < 0.2
    missing[np.arange(roots), np.arange(roots)] = False
    missing[:, -1] = False
    tau_s[missing] = NAN
    rates = 0.7 * largest.sum() * rng.dirichlet(np.full(roots, 8.0))
    curves = hyperbolic([largest], [half * rng.uniform(0.5, 1.5, cells)])
    return FluidSystem.from_arrays(tensor([rates]), tensor([tau_s]), curves)


def joined(systems: Sequence[FluidSystem]) -> FluidSystem:
    """Systems of hyperbolic cells and of one shape as rows."""
    return FluidSystem.from_arrays(
        torch.cat([each.rates_rps for each in systems]),
        torch.cat([each.one_way_s for each in systems]),
        HyperbolicCells(
            *(
                torch.cat([getattr(each.curves, key) for each in systems])
                for key in ("largest_rps", "half_rif", "servers")
            ),
            torch,
        ),
    )
