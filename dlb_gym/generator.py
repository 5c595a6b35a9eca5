"""Scenario families: scenarios drawn at random, the same for the same key.

To add one, write a function that draws a `Scenario` from a generator of random numbers and list it
in `FAMILIES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from dlb_gym.messages import shown
from dlb_gym.network import REGIONS, rtt_s
from dlb_gym.scenario import Cell, Network, Root, Scenario
from dlb_gym.scenario_checks import nearest_key
from dlb_gym.scenario_source import ScenarioError, override
from dlb_gym.streams import Stream, random_stream

MIN_CELLS, MAX_CELLS = 2, 10
MEAN_SERVERS = 10
PREFILL_S_PER_TOKEN = 2e-4
DECODE_S_PER_TOKEN = 5e-3
TOKEN_TIME_SIGMA = math.sqrt(math.log(1.04))
"""Of the log-normal: a standard deviation of 20 % of the mean."""
NEIGHBOUR_RTT_S = (1e-3, 6e-3)
"""Round trip between two cells of one region: uniform between these, per pair."""


@dataclass(frozen=True)
class Family:
    """A distribution of scenarios.

    Attributes:
        name: The name by which it is asked for.
        description: What it draws, in a paragraph.
        max_cells: The most cells, and roots, that a scenario of it can have.
        draw: Draws a scenario.
    """

    name: str
    description: str
    max_cells: int
    draw: Callable[[np.random.Generator], Scenario]


def sample(
    family: str, seed: int, episode: int, changes: Mapping[str, Any] | None = None
) -> Scenario:
    """A scenario of a family.

    Args:
        family: Name of the family.
        seed: Seed, >= 0.
        episode: Number of the episode since the seed was set, >= 0.
        changes: Dotted keys and values that override what was drawn (see
            `scenario_source.override`), disturbances among them.

    Raises:
        ScenarioError: The family is unknown or a change is not valid.
    """
    if family not in tuple(FAMILIES):  # whatever it is, a list among others
        raise ScenarioError(
            f"family {shown(family)} is unknown{nearest_key(str(family), FAMILIES)}; "
            f"families: {', '.join(FAMILIES)}"
        )
    drawn = FAMILIES[family].draw(random_stream(seed, episode, Stream.FAMILY))
    return override(drawn, changes) if changes else drawn


def _appendix_b(rng: np.random.Generator) -> Scenario:
    """The generative process of the paper's Appendix B.1, with the design's defaults.

    2 to 10 cells (uniform) lie in 2 or more regions (uniform up to the number of cells): every
    region chosen has a cell, the others fall into the regions at random, so cells share regions.
    Each cell has a root of the same name. Servers: max(1, Poisson(10)). Seconds per token: per cell
    and stage log-normal, mean as in the defaults, 20 % standard deviation. Demand: uniform on the
    simplex, at 80 % utilisation. Round trips: the model of `network`, from a root to its own cell
    the region's own, and between cells that share a region 1 to 6 ms per pair.
    """
    count = int(rng.integers(MIN_CELLS, MAX_CELLS + 1))
    regions = _cell_regions(rng, count)
    servers = np.maximum(1, rng.poisson(MEAN_SERVERS, count))
    spread = np.exp(rng.normal(-(TOKEN_TIME_SIGMA**2) / 2, TOKEN_TIME_SIGMA, (count, 2)))
    demand = rng.dirichlet(np.ones(count))
    names = [f"{region}-{regions[:i].count(region)}" for i, region in enumerate(regions)]
    cells = tuple(
        Cell(
            name=names[i],
            region=regions[i],
            servers=int(servers[i]),
            prefill_s_per_token=float(PREFILL_S_PER_TOKEN * spread[i, 0]),
            decode_s_per_token=float(DECODE_S_PER_TOKEN * spread[i, 1]),
        )
        for i in range(count)
    )
    roots = tuple(
        Root(name=names[i], region=regions[i], demand=float(demand[i])) for i in range(count)
    )
    network = Network(rtt_s=_round_trips_s(rng, regions))
    return Scenario(name="appendix_b", cells=cells, roots=roots, network=network)


def _cell_regions(rng: np.random.Generator, count: int) -> list[str]:
    """Regions of the cells, sorted, so that cells of one region follow each other."""
    names = sorted(REGIONS)
    num_regions = int(rng.integers(2, min(count, len(names)) + 1))
    chosen = rng.choice(len(names), num_regions, replace=False)
    further = rng.choice(chosen, count - num_regions)
    return sorted(names[i] for i in (*chosen, *further))


def _round_trips_s(rng: np.random.Generator, regions: list[str]) -> tuple[tuple[float, ...], ...]:
    """Round trips between the roots and the cells in these regions, symmetric, seconds."""
    count = len(regions)
    drawn = rng.uniform(*NEIGHBOUR_RTT_S, (count, count)).tolist()
    return tuple(
        tuple(
            drawn[min(i, j)][max(i, j)]
            if i != j and regions[i] == regions[j]
            else rtt_s(regions[i], regions[j])
            for j in range(count)
        )
        for i in range(count)
    )


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "appendix_b": Family(
            name="appendix_b",
            description=_appendix_b.__doc__ or "",
            max_cells=MAX_CELLS,
            draw=_appendix_b,
        )
    }
)
