"""Disturbances made concrete: which root, which cells, when, and how much.

Paper B.3: in a burst one root's demand rises until the fleet's utilisation is `to_utilisation`,

    extra rate = (to_utilisation - utilisation) * sum of the nominal rates,

and in an outage randomly chosen cells fall to `servers_left` servers, one after the other, until

    offered rate / (sum of the live nominal rates) > to_utilisation.

Times count from clock 0, the start of warm-up; fractions refer to the horizon, which starts after
warm-up and settling.
"""

from __future__ import annotations

from typing import NamedTuple

from dlb_gym.rates import nominal_rates_rps, offered_rate_rps
from dlb_gym.scenario import Burst, Outage, Scenario
from dlb_gym.scenario_source import ScenarioError
from dlb_gym.streams import Stream, random_stream


class ActiveBurst(NamedTuple):
    """Additional requests at one root during [start_s, end_s)."""

    root: int
    start_s: float
    end_s: float
    extra_rps: float


class Disturbances(NamedTuple):
    """What an episode's disturbances do.

    Attributes:
        bursts: In the scenario's order.
        live_servers: Per cell, (time in seconds, servers live from then on), times ascending, the
            first at 0. Where outages overlap the fewest servers count.
    """

    bursts: tuple[ActiveBurst, ...]
    live_servers: tuple[tuple[tuple[float, int], ...], ...]


class _ActiveOutage(NamedTuple):
    cells: frozenset[int]
    start_s: float
    end_s: float
    servers_left: int


def resolve(scenario: Scenario, seed: int, episode: int) -> Disturbances:
    """The disturbances of an episode; what the scenario leaves open comes from the seed.

    Args:
        scenario: The scenario.
        seed: Seed, >= 0.
        episode: Number of the episode since the seed was set, >= 0.

    Raises:
        ScenarioError: A disturbance cannot bring about its `to_utilisation`.
        TraceError: The scenario's trace cannot be used.
    """
    bursts: list[ActiveBurst] = []
    outages: list[_ActiveOutage] = []
    for index, disturbance in enumerate(scenario.disturbances):
        if isinstance(disturbance, Burst):
            bursts.append(_burst(scenario, disturbance, index, seed, episode))
        else:
            outages.append(_outage(scenario, disturbance, index, seed, episode))
    live = tuple(
        _live_servers(cell.servers, [outage for outage in outages if index in outage.cells])
        for index, cell in enumerate(scenario.cells)
    )
    return Disturbances(tuple(bursts), live)


def _window_s(scenario: Scenario, disturbance: Burst | Outage) -> tuple[float, float]:
    origin_s = scenario.warmup_s + scenario.settle_s
    return (
        origin_s + disturbance.start * scenario.horizon_s,
        origin_s + disturbance.end * scenario.horizon_s,
    )


def _burst(scenario: Scenario, burst: Burst, index: int, seed: int, episode: int) -> ActiveBurst:
    utilisation = scenario.demand.utilisation
    if burst.to_utilisation <= utilisation:
        raise ScenarioError(
            f"disturbances.{index}.to_utilisation = {burst.to_utilisation} must exceed "
            f"demand.utilisation = {utilisation}; a burst adds demand: raise the one or lower the "
            "other"
        )
    names = [root.name for root in scenario.roots]
    if burst.root is None:
        rng = random_stream(seed, episode, Stream.BURST_ROOT, index)
        offering = [i for i, root in enumerate(scenario.roots) if root.demand > 0]
        root = offering[int(rng.integers(len(offering)))]
    else:
        root = names.index(burst.root)
    extra_rps = (burst.to_utilisation - utilisation) * sum(nominal_rates_rps(scenario).tolist())
    return ActiveBurst(root, *_window_s(scenario, burst), extra_rps)


def _outage(
    scenario: Scenario, outage: Outage, index: int, seed: int, episode: int
) -> _ActiveOutage:
    if outage.cells is None:
        cells = _failing_cells(scenario, outage, index, seed, episode)
    else:
        cells = frozenset(i for i, cell in enumerate(scenario.cells) if cell.name in outage.cells)
    return _ActiveOutage(cells, *_window_s(scenario, outage), outage.servers_left)


def _failing_cells(
    scenario: Scenario, outage: Outage, index: int, seed: int, episode: int
) -> frozenset[int]:
    """Cells in seeded order until the live fleet's utilisation exceeds the outage's."""
    key = f"disturbances.{index}.to_utilisation = {outage.to_utilisation}"
    offered_rps = offered_rate_rps(scenario)
    live_rps: list[float] = nominal_rates_rps(scenario).tolist()
    if scenario.demand.utilisation > outage.to_utilisation:
        raise ScenarioError(
            f"{key} is below demand.utilisation = {scenario.demand.utilisation}, so no cell would "
            "fail; raise the one or lower the other, or name the outage's cells"
        )
    rng = random_stream(seed, episode, Stream.OUTAGE_ORDER, index)
    failing: list[int] = []
    for cell in rng.permutation(len(live_rps)).tolist():
        servers = scenario.cells[cell].servers
        live_rps[cell] *= min(outage.servers_left, servers) / servers
        failing.append(cell)
        if offered_rps / sum(live_rps) > outage.to_utilisation:
            return frozenset(failing)
    raise ScenarioError(
        f"{key} is out of reach: with every cell at {outage.servers_left} servers the utilisation "
        f"is {offered_rps / sum(live_rps):.4g}; lower it or servers_left, or name the outage's "
        "cells"
    )


def _live_servers(servers: int, outages: list[_ActiveOutage]) -> tuple[tuple[float, int], ...]:
    """The changes of one cell's live count, given the outages that concern it."""
    times_s = {0.0}.union(*((outage.start_s, outage.end_s) for outage in outages))
    changes: list[tuple[float, int]] = []
    for time_s in sorted(times_s):
        left = [o.servers_left for o in outages if o.start_s <= time_s < o.end_s]
        live = min([servers, *left])
        if not changes or changes[-1][1] != live:
            changes.append((time_s, live))
    return tuple(changes)
