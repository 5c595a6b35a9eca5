"""Bursts and outages made concrete, against hand computation."""

from __future__ import annotations

from typing import Any

import pytest

from dlb_gym.disturbances import resolve
from dlb_gym.rates import nominal_rates_rps, offered_rate_rps
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import ScenarioError, load_scenario
from tests.scenarios_by_hand import two_cells

FULL = ((0.0, 10),), ((0.0, 4),)
UNTOUCHED = (1.0, 0.0, False, None)  # speed, errors, crash, leaf replica


def disturbed(*disturbances: dict[str, Any], **changes: Any) -> Scenario:
    return two_cells(disturbances=disturbances, **changes)


def test_a_quiet_scenario_keeps_all_servers_and_has_no_burst() -> None:
    quiet = resolve(two_cells(), 0, 0)
    assert quiet.live_servers == FULL
    assert {change[2:] for changes in quiet.changes for change in changes} == {UNTOUCHED}
    assert quiet._replace(changes=()) == ((), (), (), (), ())


def test_a_burst_adds_what_lifts_the_fleet_to_its_utilisation() -> None:
    scenario = disturbed(
        {"kind": "burst", "root": "west", "to_utilisation": 0.8, "start": 0.25, "end": 0.5},
        warmup_s=20.0,
        settle_s=10.0,
        horizon_s=40.0,
    )
    resolved = resolve(scenario, 0, 0)
    bursts = resolved.bursts
    assert len(bursts) == 1
    assert bursts[0] == pytest.approx((1, 40.0, 50.0, (0.8 - 0.5) * 112))
    assert resolved.live_servers == FULL


def test_an_open_bursts_root_comes_from_the_seed_and_offers_requests() -> None:
    scenario = load_scenario("burst")
    silent = scenario.model_copy(
        update={
            "roots": (scenario.roots[0].model_copy(update={"demand": 0.0}), *scenario.roots[1:])
        }
    )
    drawn = [resolve(silent, seed, 0).bursts[0].root for seed in range(200)]
    assert set(drawn) == {1, 2, 3, 4, 5}
    assert drawn == [resolve(silent, seed, 0).bursts[0].root for seed in range(200)]
    assert drawn != [resolve(silent, seed, 1).bursts[0].root for seed in range(200)]


def test_two_open_bursts_draw_their_roots_apart() -> None:
    scenario = disturbed({"kind": "burst"}, {"kind": "burst"})
    roots = {tuple(b.root for b in resolve(scenario, seed, 0).bursts) for seed in range(40)}
    assert roots == {(0, 0), (0, 1), (1, 0), (1, 1)}


@pytest.mark.parametrize("to_utilisation", [0.4, 0.5])
def test_a_burst_that_would_add_nothing_is_an_error(to_utilisation: float) -> None:
    scenario = disturbed({"kind": "burst", "to_utilisation": to_utilisation})
    with pytest.raises(ScenarioError, match=r"disturbances\.0\.to_utilisation = 0\.\d must exceed"):
        resolve(scenario, 0, 0)


def test_a_named_outage_takes_its_cells_down_and_back() -> None:
    scenario = disturbed({"kind": "outage", "cells": ["east"], "servers_left": 3})
    # Horizon of 60 s after 20 s of warm-up: 0.3 and 0.7 of it are 38 and 62 s.
    assert resolve(scenario, 0, 0).live_servers == (((0.0, 10), (38.0, 3), (62.0, 10)), FULL[1])


def test_an_outage_to_the_end_of_the_horizon_ends_there() -> None:
    scenario = disturbed({"kind": "outage", "cells": ["west"], "start": 0.0, "end": 1.0})
    assert resolve(scenario, 0, 0).live_servers[1] == ((0.0, 4), (20.0, 1), (80.0, 4))


def test_an_outage_at_clock_zero_is_the_first_count() -> None:
    outage = {"kind": "outage", "cells": ["west"], "start": 0.0, "end": 0.5}
    scenario = disturbed(outage, warmup_s=0.0)
    assert resolve(scenario, 0, 0).live_servers[1] == ((0.0, 1), (30.0, 4))


def test_where_outages_overlap_the_fewest_servers_count() -> None:
    scenario = disturbed(
        {"kind": "outage", "cells": ["east"], "servers_left": 2, "start": 0.1, "end": 0.4},
        {"kind": "outage", "cells": ["east"], "servers_left": 6, "start": 0.2, "end": 0.8},
        warmup_s=0.0,
        horizon_s=100.0,
    )
    east = resolve(scenario, 0, 0).live_servers[0]
    assert east == ((0.0, 10), (10.0, 2), (40.0, 6), (80.0, 10))


def test_an_outage_never_adds_servers() -> None:
    scenario = disturbed({"kind": "outage", "cells": ["west"], "servers_left": 9})
    assert resolve(scenario, 0, 0).live_servers == FULL


@pytest.mark.parametrize("seed", range(20))
def test_an_open_outage_stops_at_the_first_cell_that_overloads_the_fleet(seed: int) -> None:
    scenario = load_scenario("outage")
    live = resolve(scenario, seed, 0).live_servers
    fallen = [index for index, changes in enumerate(live) if len(changes) == 3]
    assert all(live[index][1][1] == 1 for index in fallen)
    rates_rps: list[float] = nominal_rates_rps(scenario).tolist()
    shrunk_rps = [rate / cell.servers for rate, cell in zip(rates_rps, scenario.cells, strict=True)]

    def load_without(cells: list[int]) -> float:
        left = [shrunk_rps[j] if j in cells else rates_rps[j] for j in range(6)]
        return offered_rate_rps(scenario) / sum(left)

    assert load_without(fallen) > 0.95
    assert any(load_without([j for j in fallen if j != last]) <= 0.95 for last in fallen)


def test_every_cell_fails_in_some_episode() -> None:
    scenario = load_scenario("outage")
    fallen = {
        index
        for episode in range(40)
        for index, changes in enumerate(resolve(scenario, 7, episode).live_servers)
        if len(changes) > 1
    }
    assert fallen == set(range(6))


def test_an_outage_below_the_present_load_is_an_error() -> None:
    told = (
        r"^disturbances\.0\.to_utilisation = 0\.4 is below demand\.utilisation = 0\.5, so no cell "
        "would fail; raise the one or lower the other, or name the outage's cells$"
    )
    with pytest.raises(ScenarioError, match=told):
        resolve(disturbed({"kind": "outage", "to_utilisation": 0.4}), 0, 0)


def test_an_outage_that_cannot_reach_its_load_is_an_error() -> None:
    scenario = disturbed({"kind": "outage", "to_utilisation": 4.0})
    # One server in each cell: 56 requests per second for 16.
    with pytest.raises(
        ScenarioError,
        match=r"out of reach: with every cell at 1 servers the utilisation is 3\.5; l",
    ):
        resolve(scenario, 0, 0)
