"""Bounds of scenarios, by hand; and the policy that plays the best fixed routing."""

from __future__ import annotations

import numpy as np
import pytest

from baselines.optimum import StaticOptimum
from dlb_gym.bounds import best_routing, bounds
from dlb_gym.observation import Observation
from dlb_gym.policy import TaskSpec
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import load_scenario, override, scenario_from_dict


def two_cells(**changes: object) -> Scenario:
    """Ten servers each of 8 requests a second and 1.1 s; root a offers 102.4 of the 128 in all."""
    cell = {"region": "x", "servers": 10, "prefill_s_per_token": 2e-4, "decode_s_per_token": 5e-3}
    return scenario_from_dict(
        {
            "name": "two",
            "cells": [{"name": name, **cell} for name in "ab"],
            "roots": [{"name": n, "region": "x", "demand": d} for n, d in (("a", 0.8), ("b", 0.2))],
            "network": {"rtt_s": [[0.0, 0.1], [0.1, 0.0]]},
            "router_delay_s": 0.0,
            **changes,
        }
    )


def test_the_oracle_plays_on_where_nothing_can_serve_the_demand() -> None:
    """120 % of two equal cells: each gets half, whoever sends it."""
    crowded = two_cells(demand={"utilisation": 1.2})
    policy = StaticOptimum()
    policy.reset(TaskSpec(2, 2, Observation(2, 2)), 1, 0)
    policy.reveal([crowded])
    routing = policy.act(np.zeros((1, Observation(2, 2).size), np.float32)).routing
    assert routing is not None
    assert np.array([0.8, 0.2]) @ routing[0] == pytest.approx([0.5, 0.5])


def test_bounds_of_a_scenario_order_as_they_should() -> None:
    scenario = load_scenario("global_six")
    found = bounds(scenario)
    assert found.fluid_s is not None
    assert found.clairvoyant_s is not None
    assert (
        found.clairvoyant_s
        < found.fluid_s
        == pytest.approx(scenario.router_delay_s + best_routing(scenario).latency_s)
    )
    busier = bounds(override(scenario, {"demand.utilisation": 0.9}))
    assert busier.clairvoyant_s is not None
    assert busier.clairvoyant_s > found.clairvoyant_s  # cells are full: more must travel


def test_the_clairvoyant_bound_of_two_cells_by_hand() -> None:
    # 22.4 of root a's requests find no room at home and travel 0.1 s.
    assert bounds(two_cells()).clairvoyant_s == pytest.approx(1.1 + 0.1 * 22.4 / 128)
    # Where demand or capacity move, or come from a trace, only what never waits is certain.
    burst = two_cells(disturbances=[{"kind": "burst", "root": "a"}])
    assert bounds(burst) == (None, pytest.approx(1.1))


def test_the_clairvoyant_bound_is_the_luckiest_roots_where_shares_change() -> None:
    # Cell b takes 0.6 s: root a's requests do best there, in 0.7 s. A burst at b makes more of the
    # requests b's, and so do its hours.
    cells = [
        {"name": name, "region": "us-east4", "servers": 10, "prefill_s_per_token": 2e-4,
         "decode_s_per_token": decode_s}
        for name, decode_s in (("a", 5e-3), ("b", 2.5e-3))
    ]  # fmt: skip
    outage = two_cells(cells=cells, disturbances=[{"kind": "outage", "cells": ["a"]}])
    assert bounds(outage).clairvoyant_s == pytest.approx(0.8 * 0.7 + 0.2 * 0.6)
    burst = two_cells(cells=cells, disturbances=[{"kind": "burst", "root": "b"}])
    assert bounds(burst).clairvoyant_s == pytest.approx(0.6)
    roots = [{"name": name, "region": "us-east4", "demand": 1.0} for name in "ab"]
    for profile in ({"diurnal_amplitude": 0.5}, {"weekend_factor": 0.5}):
        daily = two_cells(cells=cells, roots=roots, demand={"profile": profile})
        assert bounds(daily).clairvoyant_s == pytest.approx(0.6)
    pulses = {"profile": {"synchronised_fraction": 0.5}}
    assert bounds(two_cells(cells=cells, demand=pulses)).clairvoyant_s == pytest.approx(0.68)


def test_systems_without_bounds_say_so() -> None:
    crowded = override(load_scenario("global_six"), {"demand.utilisation": 1.2})
    assert bounds(crowded) == (None, None)
    sessions = override(load_scenario("global_six"), {"demand.sessions": {}})
    assert bounds(sessions) == (None, None)
