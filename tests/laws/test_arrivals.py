"""Poisson arrivals whose rate varies, and what splitting them leaves.

A Poisson process of rate lam(t) has independent Poisson counts in disjoint bins; at the times
Lambda(t), the integral of its rate, it is a Poisson process of rate 1 (time rescaling; Brown et al.
2002). Split at random with probabilities x_j it becomes independent Poisson processes of rates
x_j lam(t) (Kingman 1993).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dlb_gym.engine import layout
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import override
from dlb_gym.simulator import Simulator
from dlb_gym.workload import CHUNK_S, Workload
from tests.laws.intervals import assert_counts, assert_distribution, assert_uncorrelated
from tests.laws.station import Service, drain, station

FloatArray = NDArray[np.float64]
RATE_RPS = 400.0
SPAN_S = 120.0
BINS_S = np.arange(0.0, SPAN_S + 0.25, 0.5)
DAY_S = 50.0
HOUR_S = DAY_S / 24.0
PROFILES: dict[str, dict[str, Any]] = {
    "constant": {},
    "daily": {
        "diurnal_amplitude": 0.9,
        "peak_hour": 9.0,
        "start_hour_utc": 3.0,
        "day_s": DAY_S,
    },
    "pulses": {
        "synchronised_fraction": 0.6,
        "synchronised_period_s": 4.0,
        "synchronised_width_s": 0.7,
    },
}


def expected_until(profile: str, time_s: FloatArray) -> FloatArray:
    """Lambda(t), what `DemandProfile` promises summed over milliseconds; Virginia is UTC - 5."""
    middle_s = np.arange(0.0005, SPAN_S, 0.001)
    relative = np.ones(len(middle_s))
    if profile == "daily":
        local_s = middle_s + (3.0 - 5.0) * HOUR_S
        relative += 0.9 * np.cos(2.0 * np.pi * (local_s - 9.0 * HOUR_S) / DAY_S)
    if profile == "pulses":
        relative = 0.4 + 0.6 * 4.0 / 0.7 * (middle_s % 4.0 < 0.7)
    grid = np.concatenate(([0.0], np.cumsum(RATE_RPS * 0.001 * relative)))
    return np.interp(time_s, np.arange(len(grid)) * 0.001, grid)


def offering(profile: str, **changes: Any) -> Scenario:
    scenario = station(
        RATE_RPS, prefill=Service(0.002), servers=8, warmup_s=0.0, horizon_s=SPAN_S, **changes
    )
    return override(scenario, {f"demand.profile.{k}": v for k, v in PROFILES[profile].items()})


def arrivals_s(scenario: Scenario, seed: int, episode: int = 0, root: int = 0) -> FloatArray:
    workload = Workload(scenario, seed, episode)
    chunks = [workload.chunk(k)[root][:, 0] for k in range(round(SPAN_S / CHUNK_S))]
    return np.concatenate(chunks)


@pytest.mark.parametrize("profile", PROFILES)
def test_counts_in_bins_are_poisson_with_the_integral_of_the_rate(profile: str) -> None:
    """Chi-square of 240 half-second bins of eight seeds, and of whole chunks.

    Catches: a time zone, peak or week that is shifted, a rate of another mean, a chunk that is left
    out or drawn twice, more or less regular arrivals, seeds that are shared.
    """
    expected = np.diff(expected_until(profile, BINS_S))
    scenario = offering(profile)
    counts = [np.histogram(arrivals_s(scenario, seed), BINS_S)[0] for seed in range(8)]
    law = "arrivals: counts are Poisson"
    assert_counts(law, f"{profile}, half seconds", np.array(counts), np.tile(expected, (8, 1)))
    assert_counts(law, f"{profile}, sums of 8 seeds", np.sum(counts, axis=0), 8.0 * expected)
    chunks = (-1, round(CHUNK_S / 0.5))  # a number of arrivals that is fixed shows here
    by_chunk = np.reshape(counts, (8, *chunks)).sum(axis=2)
    expected_by_chunk = np.tile(expected.reshape(chunks).sum(axis=1), (8, 1))
    assert_counts(law, f"{profile}, whole chunks", by_chunk, expected_by_chunk)


@pytest.mark.parametrize("profile", PROFILES)
def test_rescaled_arrivals_are_a_poisson_process_of_rate_one(profile: str) -> None:
    """Gaps of Lambda(t_k) are independent and exponential: KS and the correlation of neighbours.

    Catches: what bins cannot see: arrivals that lie too evenly or bunch within half a second.
    """
    times = expected_until(profile, arrivals_s(offering(profile), 11))
    gaps = np.diff(times)
    law = "arrivals, rescaled: "
    assert_distribution(f"{law}exponential gaps", profile, gaps, "expon")
    whole = expected_until(profile, np.array([SPAN_S]))
    assert_distribution(f"{law}uniform times", profile, times / whole, "uniform")
    assert_uncorrelated(f"{law}independent gaps", profile, gaps[1:] - 1.0, gaps[:-1] - 1.0)


def test_streams_of_seeds_episodes_roots_and_chunks_are_independent() -> None:
    """Counts of the same bins are uncorrelated, and no time comes twice.

    Catches: a seed that rows, episodes, roots or chunks share, or one that replaces another.
    """
    roots = [{"name": name, "region": "us-east4", "demand": 1.0} for name in ("cell", "other")]
    scenario = offering("constant", roots=roots, network={"rtt_s": [[0.0], [0.0]]})
    streams = {key: arrivals_s(scenario, *key) for key in np.ndindex(3, 3, 2)}
    mean = RATE_RPS / 2 * 0.5
    counts = {
        key: (np.histogram(times, BINS_S)[0] - mean) / np.sqrt(mean)
        for key, times in streams.items()
    }
    law = "arrivals: streams are independent"
    for key, own in counts.items():
        assert_uncorrelated(law, "chunks", own[20:], own[:-20])
        for other in counts:
            if other > key:
                assert_uncorrelated(law, "seeds, episodes, roots", own, counts[other])
    everything = np.concatenate([times % CHUNK_S for times in streams.values()])
    assert len(np.unique(np.round(everything, 12))) == len(everything)


@pytest.mark.parametrize("profile", ["constant", "daily"])
def test_a_random_split_leaves_independent_poisson_processes(profile: str) -> None:
    """Cells get Poisson(x_j Lambda) in every bin, x = (0.5, 0.3, 0.2, 0), uncorrelated.

    Catches: a biased routing draw, one uniform for several requests or also for the leaf's choice,
    a cell that gets what belongs to its neighbour, a request for a cell of probability 0.
    """
    weights = np.array([0.5, 0.3, 0.2, 0.0])
    cells = [
        {"name": f"cell-{j}", "region": "us-east4", "servers": 8, "prefill_s_per_token": 1e-8}
        for j in range(4)
    ]
    demand = {"utilisation": RATE_RPS * 0.001 / 32}  # 32 servers of a millisecond a request
    scenario = offering(profile, cells=cells, network={"rtt_s": [[0.0] * 4]}, demand=demand)
    simulator = Simulator(1, 1, 4, log=True)
    simulator.reset_row(0, scenario, 7, 0)
    simulator.set_routing(weights[None, None], np.array([layout.SAMPLE]))
    simulator.advance(np.array([scenario.intervals(SPAN_S)]))
    log = drain(simulator).request_log(0)
    expected = np.diff(expected_until(profile, BINS_S)) * weights[:, None]
    counts = np.array(
        [np.histogram(log["arrival_s"][log["cell"] == j], BINS_S)[0] for j in range(4)]
    )
    assert not counts[3].any()
    law = "arrivals, split: counts are Poisson"
    assert_counts(law, f"{profile}, half seconds", counts[:3], expected[:3])
    assert_counts(law, f"{profile}, cells", counts[:3].sum(axis=1), expected[:3].sum(axis=1))
    deviations = (counts[:3] - expected[:3]) / np.sqrt(expected[:3])
    for j in range(3):
        other = deviations[(j + 1) % 3]
        assert_uncorrelated("arrivals, split: cells are independent", profile, deviations[j], other)
