"""The requests a scenario offers, against the laws they are drawn from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dlb_gym.disturbances import resolve
from dlb_gym.rates import mean_tokens, nominal_rates_rps
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import ScenarioError, load_scenario, override, scenario_from_dict
from dlb_gym.trace import describe_trace, load_trace
from dlb_gym.trace_file import TraceError
from dlb_gym.workload import CHUNK_S, Workload
from tests.scenarios_by_hand import DATA, needs, two_cells

AZURE = DATA / "traces" / "azure_llm_2023_conv.csv"
EAST_RPS, WEST_RPS = 0.5 * 112 * 0.75, 0.5 * 112 * 0.25


def drawn(scenario: Scenario, chunks: int, seed: int = 11) -> list[NDArray[np.float64]]:
    """All requests of the first chunks, one array per root."""
    workload = Workload(scenario, seed, 0)
    parts = [workload.chunk(index) for index in range(chunks)]
    return [np.concatenate(rows) for rows in zip(*parts, strict=True)]


def within_999(count: int, expected: float) -> bool:
    low, high = stats.poisson.interval(0.999, expected)
    return bool(low <= count <= high)


def largest_distance(sample: NDArray[np.float64], mean: float, shape: float, loc: int) -> float:
    """Kolmogorov-Smirnov distance of tokens from loc + floor(Gamma + 0.5), at whole numbers."""
    whole = np.arange(loc, sample.max() + 1)
    empirical = np.searchsorted(np.sort(sample), whole, side="right") / sample.size
    gamma = stats.gamma(shape, scale=(mean - loc) / shape)
    return float(np.abs(empirical - gamma.cdf(whole - loc + 0.5)).max())


def test_arrivals_are_poisson_with_each_roots_share_of_the_offered_rate() -> None:
    east, west = drawn(two_cells(), 60)
    assert within_999(len(east), 600 * EAST_RPS)
    assert within_999(len(west), 600 * WEST_RPS)
    for rows, rate_rps in ((east, EAST_RPS), (west, WEST_RPS)):
        gaps_s = np.diff(rows[:, 0])
        assert stats.kstest(gaps_s, "expon", args=(0, 1 / rate_rps)).pvalue > 1e-3
        counts = np.histogram(rows[:, 0], bins=1_200, range=(0, 600))[0]
        # Variance over mean of Poisson counts: chi-square with 1,199 degrees of freedom.
        dispersion = 1_199 * counts.var(ddof=1) / counts.mean()
        assert 0.0005 < stats.chi2.cdf(dispersion, 1_199) < 0.9995
        chunks = np.histogram(rows[:, 0], bins=60, range=(0, 600))[0]
        assert 0.0005 < stats.chi2.cdf(59 * chunks.var(ddof=1) / chunks.mean(), 59) < 0.9995


def test_a_chunk_holds_its_ten_seconds_in_order() -> None:
    workload = Workload(load_scenario("global_six"), 3, 0)
    for index in (0, 1, 17):
        for rows in workload.chunk(index):
            assert rows.shape[1] == 5
            assert np.all(np.diff(rows[:, 0]) >= 0)
            assert rows[0, 0] >= CHUNK_S * index
            assert rows[-1, 0] < CHUNK_S * (index + 1)


def test_a_chunk_depends_on_its_key_alone() -> None:
    scenario = two_cells()
    forward, backward = Workload(scenario, 5, 2), Workload(scenario, 5, 2)
    first = [forward.chunk(index) for index in range(4)]
    second = [backward.chunk(index) for index in reversed(range(4))][::-1]
    for rows, again in zip(first, second, strict=True):
        assert [r.tobytes() for r in rows] == [a.tobytes() for a in again]
    others = [Workload(scenario, *key).chunk(1) for key in ((5, 2), (6, 2), (5, 3))]
    assert len({rows[0].tobytes() for rows in others}) == 3
    assert others[0][0].tobytes() == first[1][0].tobytes()


def test_the_roots_of_a_scenario_do_not_disturb_each_other() -> None:
    without = override(two_cells(), {"roots.0.demand": 0, "demand.utilisation": 0.5 * 0.25})
    west_alone = Workload(without, 5, 0).chunk(3)
    assert west_alone[0].shape == (0, 5)
    assert west_alone[1].tobytes() == Workload(two_cells(), 5, 0).chunk(3)[1].tobytes()


def test_equal_roots_draw_requests_of_their_own() -> None:
    equal = override(two_cells(), {"roots.0.demand": 0.5, "roots.1.demand": 0.5})
    first, second = Workload(equal, 5, 0).chunk(3)
    for column in (0, 3, 4):
        assert np.intersect1d(first[:, column], second[:, column]).size == 0


def test_uniforms_are_uniform_and_independent() -> None:
    rows = np.concatenate(drawn(two_cells(), 20))
    u_route, u_leaf = rows[:, 3], rows[:, 4]
    assert stats.kstest(u_route, "uniform").pvalue > 1e-3
    assert stats.kstest(u_leaf, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(u_route, u_leaf)[0, 1]) < 3.3 / np.sqrt(len(rows))
    assert rows[:, 3:].min() >= 0
    assert rows[:, 3:].max() < 1


def test_tokens_are_shifted_gammas_rounded_to_whole_numbers() -> None:
    rows = np.concatenate(drawn(two_cells(), 60))
    limit = 1.95 / np.sqrt(len(rows))
    assert np.array_equal(rows[:, 1:3], np.floor(rows[:, 1:3]))
    assert rows[:, 1].min() >= 20
    assert rows[:, 2].min() >= 10
    assert largest_distance(rows[:, 1], 500, 1.5, 20) < limit
    assert largest_distance(rows[:, 2], 200, 2.0, 10) < limit
    # Mean and deviation of the Gammas: 480 / sqrt(1.5) and 190 / sqrt(2).
    for column, mean, deviation in ((1, 500, 480 / 1.5**0.5), (2, 200, 190 / 2**0.5)):
        error = deviation / np.sqrt(len(rows))
        assert rows[:, column].mean() == pytest.approx(mean, abs=3.3 * error)
        assert rows[:, column].std() == pytest.approx(deviation, rel=0.03)
    assert abs(np.corrcoef(rows[:, 1], rows[:, 2])[0, 1]) < 3.3 / np.sqrt(len(rows))


def test_a_burst_adds_its_own_requests_and_leaves_the_others_as_they_were() -> None:
    quiet = two_cells(warmup_s=20.0, horizon_s=100.0)
    burst = {"kind": "burst", "root": "west", "to_utilisation": 0.9, "start": 0.15, "end": 0.85}
    east, west = drawn(override(quiet, {"disturbances": [burst]}), 12)
    quiet_east, quiet_west = drawn(quiet, 12)
    assert east.tobytes() == quiet_east.tobytes()
    assert np.all(np.diff(west[:, 0]) >= 0)
    own = {row.tobytes() for row in quiet_west}
    is_own = np.array([row.tobytes() in own for row in west])
    assert west[is_own].tobytes() == quiet_west.tobytes()
    extra_s = west[~is_own, 0]
    # 0.4 of 112 / s, from 35 to 105 s, between chunks as well as within them.
    assert within_999(len(extra_s), 70 * 0.4 * 112)
    assert stats.kstest(extra_s, "uniform", args=(35, 70)).pvalue > 1e-3


def test_two_bursts_at_one_root_are_different_requests() -> None:
    burst = {"kind": "burst", "root": "west", "start": 0.0, "end": 1.0}
    scenario = override(two_cells(warmup_s=0.0), {"disturbances": [burst, burst]})
    west = drawn(scenario, 3)[1]
    assert len(np.unique(west[:, 0])) == len(west)
    assert within_999(len(west), 30 * (WEST_RPS + 2 * 0.45 * 112))


def test_a_burst_that_cannot_be_is_refused_at_once() -> None:
    scenario = override(load_scenario("hot"), {"disturbances": [{"kind": "burst"}]})
    with pytest.raises(ScenarioError, match="must exceed"):
        Workload(scenario, 0, 0)


def test_a_varying_rate_is_followed_in_time() -> None:
    profile = {
        "day_s": 240.0,
        "diurnal_amplitude": 0.8,
        "peak_hour": 6.0,
        "synchronised_fraction": 0.2,
        "synchronised_period_s": 15.0,
        "synchronised_width_s": 0.5,
    }
    scenario = two_cells(demand={"utilisation": 0.5, "profile": profile})
    east, west = drawn(scenario, 48)
    assert within_999(len(east), 480 * EAST_RPS)
    assert within_999(len(west), 480 * WEST_RPS)
    # Expected counts by time of day, from the written-out rate: east is at UTC-5, west at UTC+1.
    time_s = (np.arange(240_000) + 0.5) / 1_000
    pulse = 0.8 + 0.2 * 15 / 0.5 * (time_s % 15 < 0.5)
    for rows, rate_rps, offset_h in ((east, EAST_RPS, -5), (west, WEST_RPS, 1)):
        daily = 1 + 0.8 * np.cos(2 * np.pi * (time_s / 240 + (offset_h - 6) / 24))
        expected = (2 * rate_rps * 1e-3 * daily * pulse).reshape(480, 500).sum(axis=1)
        counts = np.histogram(rows[:, 0] % 240, bins=480, range=(0, 240))[0]
        assert stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), 480) > 1e-3


def test_all_requests_can_wait_for_the_start_of_the_minute() -> None:
    profile = {"synchronised_fraction": 1.0, "synchronised_width_s": 0.2}
    east, _ = drawn(two_cells(demand={"utilisation": 0.5, "profile": profile}), 18)
    assert np.all(east[:, 0] % 60 < 0.2)
    assert within_999(len(east), 180 * EAST_RPS)


def test_unlisted_regions_need_no_time_zone_where_demand_is_steady() -> None:
    document = two_cells().model_dump()
    document["roots"][0]["region"] = "moon-base1"
    document["network"] = {"rtt_s": [[0.001, 0.1], [0.1, 0.001]]}
    elsewhere = Workload(scenario_from_dict(document), 1, 0).chunk(0)
    assert elsewhere[0].tobytes() == Workload(two_cells(), 1, 0).chunk(0)[0].tobytes()


def traced(path: Path, **changes: Any) -> Scenario:
    demand = {"utilisation": 0.5, "trace": describe_trace(path).model_dump()}
    return two_cells(demand=demand, **changes)


@pytest.fixture
def short_trace(tmp_path: Path) -> Path:
    path = tmp_path / "short.csv"
    rows = "".join(f"{k}000,{100 + k},{10 + k}\n" for k in range(50))
    path.write_text("timestamp,input_length,output_length\n" + rows)
    return path


def test_a_trace_offers_the_scenarios_utilisation_of_the_nominal_rate(short_trace: Path) -> None:
    scenario = traced(short_trace)
    assert mean_tokens(scenario) == (124.5, 34.5)
    total_rps = 14 / (124.5 * 2e-4)  # prefill binds: 34.5 * 5e-3 / 8 s is less
    assert nominal_rates_rps(scenario).sum() == pytest.approx(total_rps)
    east, west = drawn(scenario, 30)
    # Whole laps of 50 requests take 50 / rate each; ends may cut one.
    assert abs(len(east) + len(west) - 300 * 0.5 * total_rps) <= 50
    low, high = stats.binom.interval(0.999, len(east) + len(west), 0.75)
    assert low <= len(east) <= high
    pairs = {tuple(row) for row in np.concatenate((east, west))[:, 1:3].tolist()}
    assert pairs == {(100 + k, 10 + k) for k in range(50)}


def test_a_burst_over_a_trace_draws_its_tokens_from_it(short_trace: Path) -> None:
    burst = {"kind": "burst", "root": "west", "start": 0.0, "end": 1.0}
    scenario = traced(short_trace, disturbances=[burst], warmup_s=0.0)
    east, west = drawn(scenario, 6)
    quiet_east, quiet_west = drawn(traced(short_trace), 6)
    assert east.tobytes() == quiet_east.tobytes()
    extra_rps = resolve(scenario, 11, 0).bursts[0].extra_rps
    assert within_999(len(west) - len(quiet_west), 60 * extra_rps)
    assert set(west[:, 1] - west[:, 2]) == {90.0}


def test_a_workload_refuses_a_trace_that_changed(short_trace: Path) -> None:
    text = short_trace.read_text()
    short_trace.write_text(text.replace("0,100,10", "0,777,10"))
    scenario = traced(short_trace)
    short_trace.write_text(text)
    with pytest.raises(TraceError, match="has changed"):
        Workload(scenario, 0, 0)


@needs(AZURE)
def test_the_azure_trace_replays_its_hour_at_the_fleets_rate() -> None:
    described = describe_trace(AZURE)
    scenario = override(load_scenario("global_six"), {"demand.trace": described.model_dump()})
    # With 1,155 prompt tokens prefill binds everywhere: k / (1155 * seconds per prompt token).
    prompt_tokens = load_trace(described).mean_tokens[0]
    by_hand = sum(c.servers / (prompt_tokens * c.prefill_s_per_token) for c in scenario.cells)
    rows = np.concatenate(drawn(scenario, 6))
    lap_s = 19_366 / (0.8 * by_hand)
    assert 60 < lap_s < 120
    # The busiest minute of the hour holds half as much again as the mean one.
    assert len(rows) == pytest.approx(60 * 0.8 * by_hand, rel=0.3)
