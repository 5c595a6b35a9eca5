"""Disturbances made concrete: which root, which cells, when, and how much.

Paper B.3: in a burst one root's demand rises until the fleet's utilisation is `to_utilisation`,

    extra rate = (to_utilisation - utilisation) * sum of the nominal rates,

and in an outage randomly chosen cells fall to `servers_left` servers, one after the other, until

    offered rate / (sum of the live nominal rates) > to_utilisation.

Other disturbances concern cells, roots or the arcs between them; the ones a scenario does not name
are drawn from the episode's seed.

Times count from clock 0, the start of warm-up; fractions refer to the horizon, which starts after
warm-up and settling.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from dlb_gym.disturbance_models import (
    BlackHole,
    Burst,
    Disturbance,
    LatencyShift,
    LeafCrash,
    Outage,
    Partition,
    RootCrash,
    ServerCrash,
    SlowCell,
)
from dlb_gym.rates import nominal_rates_rps, offered_rate_rps
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import ScenarioError
from dlb_gym.streams import Stream, random_stream


class ActiveBurst(NamedTuple):
    """Additional requests at one root during [start_s, end_s)."""

    root: int
    start_s: float
    end_s: float
    extra_rps: float


class Change(NamedTuple):
    """What holds in a cell from `time_s` on, and what happens then.

    Attributes:
        time_s: Clock time.
        live: Servers.
        speed: Factor on their speed.
        error_fraction: Share of the requests that fail at once.
        crash: Whether the servers that stop now fail what they have.
        leaf: Leaf replica that stops now, or None.
    """

    time_s: float
    live: int
    speed: float = 1.0
    error_fraction: float = 0.0
    crash: bool = False
    leaf: int | None = None


class Window(NamedTuple):
    """A span in which an arc is longer, or cut where `extra_s` is infinite."""

    root: int
    cell: int
    start_s: float
    end_s: float
    extra_s: float


class Down(NamedTuple):
    """Replicas 0 to `replicas` - 1 of a place (a cell's leaf routers, a root) that are down."""

    place: int
    start_s: float
    end_s: float
    replicas: int


class Disturbances(NamedTuple):
    """What an episode's disturbances do.

    Attributes:
        bursts: In the scenario's order.
        changes: Of each cell, times ascending, the first at 0. Where disturbances of a kind
            overlap, the fewest servers, the slowest speed and the most errors count.
        windows: Arcs that are cut or longer.
        leaves_down: Per cell at most one.
        roots_down: Per root at most one.
    """

    bursts: tuple[ActiveBurst, ...]
    changes: tuple[tuple[Change, ...], ...]
    windows: tuple[Window, ...]
    leaves_down: tuple[Down, ...]
    roots_down: tuple[Down, ...]

    @property
    def live_servers(self) -> tuple[tuple[tuple[float, int], ...], ...]:
        """Of each cell, (time, servers live from then on)."""
        return tuple(
            tuple((change.time_s, change.live) for change in changes) for changes in self.changes
        )


class _Active(NamedTuple):
    """A disturbance of cells."""

    what: Disturbance
    cells: frozenset[int]
    start_s: float
    end_s: float


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
    active: list[_Active] = []
    roots_down: list[Down] = []
    for index, disturbance in enumerate(scenario.disturbances):
        if isinstance(disturbance, Burst):
            bursts.append(_burst(scenario, disturbance, index, seed, episode))
        elif isinstance(disturbance, RootCrash):
            root = _places(
                disturbance.roots, [r.name for r in scenario.roots], Stream.CRASHED_ROOT,
                (seed, episode, index),
            )  # fmt: skip
            span_s = _window_s(scenario, disturbance)
            roots_down += [Down(i, *span_s, disturbance.replicas) for i in sorted(root)]
        else:
            cells = _cells(scenario, disturbance, index, seed, episode)
            active.append(_Active(disturbance, cells, *_window_s(scenario, disturbance)))
    return Disturbances(
        bursts=tuple(bursts),
        changes=tuple(
            _changes(cell.servers, [each for each in active if index in each.cells])
            for index, cell in enumerate(scenario.cells)
        ),
        windows=tuple(window for each in active for window in _windows(scenario, each)),
        leaves_down=tuple(
            Down(j, each.start_s, each.end_s, each.what.replicas)
            for each in active
            if isinstance(each.what, LeafCrash)
            for j in sorted(each.cells)
        ),
        roots_down=tuple(roots_down),
    )


def _window_s(scenario: Scenario, disturbance: Disturbance) -> tuple[float, float]:
    origin_s = scenario.warmup_s + scenario.settle_s
    return (
        origin_s + disturbance.start * scenario.horizon_s,
        origin_s + disturbance.end * scenario.horizon_s,
    )


def _places(
    names: tuple[str, ...] | None, known: list[str], stream: Stream, key: tuple[int, int, int]
) -> frozenset[int]:
    """The places of these names; without names one, drawn from the seed."""
    if names is not None:
        return frozenset(known.index(name) for name in names)
    seed, episode, index = key
    return frozenset({int(random_stream(seed, episode, stream, index).integers(len(known)))})


def _cells(
    scenario: Scenario,
    disturbance: Outage | ServerCrash | BlackHole | SlowCell | LeafCrash | Partition | LatencyShift,
    index: int,
    seed: int,
    episode: int,
) -> frozenset[int]:
    if isinstance(disturbance, Outage) and disturbance.cells is None:
        return _failing_cells(scenario, disturbance, index, seed, episode)
    names = [cell.name for cell in scenario.cells]
    return _places(disturbance.cells, names, Stream.DISTURBED_CELL, (seed, episode, index))


def _windows(scenario: Scenario, active: _Active) -> list[Window]:
    """Arcs of a partition or a latency shift."""
    what = active.what
    if not isinstance(what, Partition | LatencyShift):
        return []
    extra_s = what.extra_s if isinstance(what, LatencyShift) else math.inf
    return [
        Window(i, j, active.start_s, active.end_s, extra_s)
        for j in sorted(active.cells)
        for i, root in enumerate(scenario.roots)
        if (
            root.name in what.roots
            if what.roots is not None
            else root.name != scenario.cells[j].name
        )
    ]


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


def _changes(servers: int, active: list[_Active]) -> tuple[Change, ...]:
    """The schedule of one cell, given the disturbances that concern it."""
    times_s = {0.0}.union(*((each.start_s, each.end_s) for each in active))
    changes: list[Change] = []
    for time_s in sorted(times_s):
        now = [each for each in active if each.start_s <= time_s < each.end_s]
        starting = [each.what for each in now if each.start_s == time_s]
        change = Change(
            time_s=time_s,
            live=min([servers, *(_servers_left(each.what, servers) for each in now)]),
            speed=min([1.0, *(e.what.speed for e in now if isinstance(e.what, SlowCell))]),
            error_fraction=max(
                [0.0, *(e.what.error_fraction for e in now if isinstance(e.what, BlackHole))]
            ),
            crash=any(isinstance(what, ServerCrash) for what in starting),
        )
        lost = [what.replicas for what in starting if isinstance(what, LeafCrash)]
        rows = [change._replace(leaf=leaf) for leaf in range(max(lost, default=0))] or [change]
        if lost or not changes or changes[-1]._replace(time_s=time_s, crash=False) != change:
            changes += rows
    return tuple(changes)


def _servers_left(what: Disturbance, servers: int) -> int:
    if isinstance(what, Outage):
        return what.servers_left
    if isinstance(what, ServerCrash):
        return max(servers - what.servers, 1)
    return servers
