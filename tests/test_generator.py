"""Scenario families against the laws they are drawn from."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dlb_gym.disturbances import resolve
from dlb_gym.generator import FAMILIES, sample
from dlb_gym.network import SAME_REGION_RTT_S, rtt_s
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import ScenarioError


@pytest.fixture(scope="module")
def scenarios() -> list[Scenario]:
    return [sample("appendix_b", seed, 0) for seed in range(400)]


def test_a_key_names_one_scenario() -> None:
    assert sample("appendix_b", 3, 1) == sample("appendix_b", 3, 1)
    digests = {sample("appendix_b", s, e).digest() for s in range(3) for e in range(3)}
    assert len(digests) == 9


def test_there_are_two_to_ten_cells_equally_often(scenarios: list[Scenario]) -> None:
    counts = np.bincount([len(s.cells) for s in scenarios], minlength=11)
    assert counts[:2].sum() == 0
    assert stats.chisquare(counts[2:]).pvalue > 1e-3
    assert FAMILIES["appendix_b"].max_cells == 10


def test_cells_share_regions_but_never_all_one(scenarios: list[Scenario]) -> None:
    num_regions = [len({cell.region for cell in s.cells}) for s in scenarios]
    assert min(num_regions) == 2
    shared = [n < len(s.cells) for n, s in zip(num_regions, scenarios, strict=True)]
    # Given c cells, all lie apart when the number of regions, uniform on 2 .. c, is c.
    expected = np.mean([1 - 1 / (c - 1) for c in range(2, 11)])
    assert np.mean(shared) == pytest.approx(expected, abs=3.3 * 0.45 / 20)


def test_every_cell_has_a_root_of_its_own_name_and_region(scenarios: list[Scenario]) -> None:
    for scenario in scenarios:
        places = [(cell.name, cell.region) for cell in scenario.cells]
        assert places == [(root.name, root.region) for root in scenario.roots]


def test_servers_are_poisson_and_at_least_one(scenarios: list[Scenario]) -> None:
    servers = np.array([cell.servers for s in scenarios for cell in s.cells])
    assert servers.min() >= 1
    low, high = stats.poisson.interval(0.999, 10 * servers.size)
    assert low <= servers.sum() <= high
    assert servers.var() == pytest.approx(10, rel=0.1)


@pytest.mark.parametrize(
    ("stage", "mean_s"), [("prefill_s_per_token", 2e-4), ("decode_s_per_token", 5e-3)]
)
def test_token_times_are_log_normal_with_a_fifth_of_the_mean_as_deviation(
    scenarios: list[Scenario], stage: str, mean_s: float
) -> None:
    times_s = np.array([getattr(cell, stage) for s in scenarios for cell in s.cells])
    sigma = np.sqrt(np.log(1.04))
    law = stats.lognorm(sigma, scale=mean_s * np.exp(-(sigma**2) / 2))
    assert law.mean() == pytest.approx(mean_s)
    assert law.std() == pytest.approx(0.2 * mean_s)
    assert stats.kstest(times_s, law.cdf).pvalue > 1e-3


def test_demand_is_uniform_on_the_simplex(scenarios: list[Scenario]) -> None:
    # The first of n uniform shares is Beta(1, n - 1): 1 - (1 - share)^(n - 1) is uniform.
    levels = []
    for scenario in scenarios:
        demand = [root.demand for root in scenario.roots]
        assert sum(demand) == pytest.approx(1)
        levels.append(1 - (1 - demand[0]) ** (len(demand) - 1))
    assert stats.kstest(levels, "uniform").pvalue > 1e-3
    assert {s.demand.utilisation for s in scenarios} == {0.8}


def test_round_trips_follow_the_model_and_neighbours_have_one_to_six_ms(
    scenarios: list[Scenario],
) -> None:
    neighbours_s = []
    for scenario in scenarios:
        assert scenario.network.rtt_s is not None
        matrix_s = np.array(scenario.network.rtt_s)
        assert np.array_equal(matrix_s, matrix_s.T)
        for i, a in enumerate(scenario.roots):
            for j, b in enumerate(scenario.cells):
                if i == j:
                    assert matrix_s[i, j] == SAME_REGION_RTT_S
                elif a.region != b.region:
                    assert matrix_s[i, j] == rtt_s(a.region, b.region)
                elif i < j:
                    neighbours_s.append(matrix_s[i, j])
    assert stats.kstest(neighbours_s, "uniform", args=(1e-3, 5e-3)).pvalue > 1e-3


def test_a_family_takes_any_disturbance_and_change() -> None:
    changes = {
        "disturbances": [{"kind": "burst"}, {"kind": "outage"}],
        "demand.utilisation": 0.7,
        "control_interval_s": 0.02,
        "network.mean_rtt_s": 0.025,
    }
    scenario = sample("appendix_b", 5, 0, changes)
    plain = sample("appendix_b", 5, 0)
    assert (scenario.cells, scenario.roots) == (plain.cells, plain.roots)
    assert (scenario.demand.utilisation, scenario.control_interval_s) == (0.7, 0.02)
    assert scenario.network.rtt_s == plain.network.rtt_s
    happening = resolve(scenario, 5, 0)
    assert len(happening.bursts) == 1
    assert any(len(changes) == 3 for changes in happening.live_servers)


def test_an_unknown_family_names_the_nearest() -> None:
    with pytest.raises(ScenarioError, match=r"'apendix_b' is unknown; nearest .* 'appendix_b'"):
        sample("apendix_b", 0, 0)


def test_an_unknown_change_is_an_error() -> None:
    with pytest.raises(ScenarioError, match="'utilisation'"):
        sample("appendix_b", 0, 0, {"demand.utilization": 0.5})
