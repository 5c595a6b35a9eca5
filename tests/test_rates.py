"""Rates and times that follow from a scenario, against hand computation."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlb_gym.rates import (
    demand_shares,
    mean_tokens,
    nominal_rates_rps,
    offered_rate_rps,
    zero_load_time_s,
    zero_load_times_s,
)
from dlb_gym.scenario_source import override
from dlb_gym.trace import describe_trace
from tests.scenarios_by_hand import two_cells


def test_the_slower_stage_sets_the_nominal_rate() -> None:
    decode_bound = two_cells()
    assert nominal_rates_rps(decode_bound).tolist() == pytest.approx([80.0, 32.0])
    prefill_bound = override(decode_bound, {"cells.1.prefill_s_per_token": 5e-4})
    assert nominal_rates_rps(prefill_bound).tolist() == pytest.approx([80.0, 4 / 0.25])


def test_decode_slots_raise_the_nominal_rate_until_prefill_binds() -> None:
    scenario = override(two_cells(), {"server.decode_engines": 4})
    assert nominal_rates_rps(scenario).tolist() == pytest.approx([10 / 0.1, 4 / 0.1])


def test_the_zero_load_time_weighs_cells_by_their_nominal_rate() -> None:
    scenario = override(two_cells(), {"cells.1.decode_s_per_token": 1e-2})
    assert zero_load_times_s(scenario).tolist() == pytest.approx([1.1, 2.1])
    assert zero_load_time_s(scenario) == pytest.approx((80 * 1.1 + 16 * 2.1) / 96)


def test_the_offered_rate_is_the_utilisation_of_the_fleet() -> None:
    assert offered_rate_rps(two_cells()) == pytest.approx(0.5 * 112)
    assert demand_shares(two_cells()).tolist() == [0.75, 0.25]


def test_a_trace_brings_its_own_mean_tokens(tmp_path: Path) -> None:
    path = tmp_path / "three.csv"
    path.write_text("timestamp,input_length,output_length\n0,100,10\n1000,200,20\n2000,600,90\n")
    scenario = two_cells(demand={"utilisation": 0.5, "trace": describe_trace(path).model_dump()})
    assert mean_tokens(scenario) == (300.0, 40.0)
    # 300 tokens of prefill take 0.06 s, 40 of decode 0.2 / 8 s.
    assert nominal_rates_rps(scenario).tolist() == pytest.approx([10 / 0.06, 4 / 0.06])
