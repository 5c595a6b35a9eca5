"""Steps of scenarios against closed forms at equilibria that are worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq

from dlb_gym.latency_model import STEP_MAX, LatencyModel
from dlb_gym.rates import offered_rate_rps, one_way_s
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import load_scenario, scenario_from_dict
from dlb_gym.service_curves import COSTS, Cost, SoftplusCells
from dlb_gym.stability import equal_delay_gain
from dlb_gym.step_sizes import recommended_step_size


def one_root(cells: int, **changes: Any) -> Scenario:
    """Equal cells of ten servers, all 0.2 s there and back."""
    cell = {"region": "x", "servers": 10, "prefill_s_per_token": 2e-4, "decode_s_per_token": 5e-3}
    return scenario_from_dict(
        {
            "name": "one",
            "cells": [{"name": name, **cell} for name in "abc"[:cells]],
            "roots": [{"name": "r", "region": "x", "demand": 1.0}],
            "network": {"rtt_s": [[0.2] * cells]},
            "router_delay_s": 0.03,
            "probe_interval_s": 0.04,
            "control_interval_s": 0.1,
            **changes,
        }
    )


def by_differences(model: LatencyModel, cost: Cost, rate_rps: float) -> tuple[float, float]:
    """mu'(N) and f'(N) of ten servers that serve so many requests a second."""

    def rate(rif: float) -> float:
        return rif / float(model.at(rif / 10.0).latency)

    def slope(rif: float, step: float) -> float:
        return (rate(rif + step) - rate(rif - step)) / (2.0 * step)

    def height(rif: float) -> float:
        latency_s = float(model.at(rif / 10.0).latency)
        return {"rif": rif / 10.0, "latency": latency_s, "gradient": 1.0 / slope(rif, 1e-3)}[cost]

    rif = brentq(lambda n: rate(n) - rate_rps, 0.0, 1e4, xtol=1e-12)
    return slope(rif, 1e-3), (height(rif + 1e-2) - height(rif - 1e-2)) / 2e-2


@pytest.mark.parametrize("cost", COSTS)
def test_two_equal_cells_have_the_closed_form(cost: Cost, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = one_root(2)
    rate_rps = offered_rate_rps(scenario)
    assert rate_rps == pytest.approx(128.0)  # 6.4 a server, of 1 / 0.12 = 8.3
    model = LatencyModel(1.1, 0.12, 8.0, 1.0)
    both = LatencyModel(*(np.full(2, value) for value in (1.1, 0.12, 8.0, 1.0)))
    curves = SoftplusCells(np.full(2, 10.0), both)
    monkeypatch.setattr("dlb_gym.step_sizes.service_curves_of", lambda scenario: curves)
    a, b = by_differences(model, cost, 0.5 * rate_rps)
    loop_s = 0.2 + 0.03 + 0.5 * (0.04 + 0.1)
    critical = equal_delay_gain(a, loop_s) / (rate_rps * b)
    found = recommended_step_size(scenario, cost)
    assert found.recommended == pytest.approx([0.5 * critical], rel=1e-4)
    assert found.sufficient == pytest.approx([a**2 / ((1.0 + a * loop_s) * rate_rps * b)], rel=1e-4)
    # The rule knows nothing of the router's delay.
    assert found.working == pytest.approx([0.5 * a / ((loop_s - 0.03) * rate_rps * b)], rel=1e-4)
    assert found.margin == pytest.approx(critical / found.working[0], rel=1e-4)


def test_where_there_is_no_choice_the_step_is_as_large_as_steps_are() -> None:
    found = recommended_step_size(one_root(1), "gradient")
    assert found.recommended.tolist() == [STEP_MAX]
    assert found.sufficient.tolist() == [STEP_MAX]
    assert found.margin == np.inf
    assert found.working[0] < STEP_MAX


def test_roots_share_the_gain_by_their_loop_delays() -> None:
    scenario = load_scenario("residency")
    found = recommended_step_size(scenario, "gradient")
    sampled_s = 0.5 * (scenario.probe_interval_s + scenario.control_interval_s)
    loop_s = np.nanmean(2.0 * one_way_s(scenario), axis=1) + scenario.router_delay_s + sampled_s
    for each in (found.recommended, found.sufficient):
        assert each * loop_s == pytest.approx(each[0] * loop_s[0])
    assert (found.sufficient < found.recommended).all()
    assert found.margin > 1.0  # the rule is stable
