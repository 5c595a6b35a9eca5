"""Rates and times that follow from a scenario: what it could serve, offers, and must travel.

With E[P], E[D] the mean prompt and output tokens, t_p, t_d the seconds per token of cell j, k_j its
servers and s the decode slots of one server (paper B.1, "theoretical request processing rate"):

    nominal rate    k_j / max(E[P] t_p, E[D] t_d / s)
    zero-load time  E[P] t_p + E[D] t_d
    offered rate    utilisation * sum of the nominal rates

Those are of disaggregated servers; `batching_rates` derives what continuously batching ones do.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dlb_gym.batching_rates import TokenMoments, batching_rate_rps, batching_zero_load_s
from dlb_gym.network import rescaled_to_mean, rtt_matrix_s
from dlb_gym.reductions import ordered_sum
from dlb_gym.scenario import Scenario, Tokens, Trace
from dlb_gym.scenario_source import ScenarioError
from dlb_gym.server_design import BatchingServer, ContinuousBatching, check_design
from dlb_gym.sessions import Sessions, mean_prompt_tokens
from dlb_gym.trace import load_trace


def mean_tokens(scenario: Scenario) -> tuple[float, float]:
    """Mean prompt and output tokens of a request: the trace's if there is one.

    A prompt of a session includes its context, as if no server had kept any of it.

    Raises:
        TraceError: The trace cannot be used.
    """
    demand = scenario.demand
    if demand.trace is not None:
        return load_trace(demand.trace).mean_tokens
    new, output = scenario.tokens.prompt.mean_tokens, scenario.tokens.output.mean_tokens
    return mean_prompt_tokens(demand.sessions, new, output), output


def token_moments(tokens: Tokens, sessions: Sessions | None, trace: Trace | None) -> TokenMoments:
    """Moments of a request's tokens: the trace's if there is one.

    Rounding is left out. The context of a session varies apart from the outputs that follow it:
    E[P D] = E[P] E[D].

    Raises:
        TraceError: The trace cannot be used.
    """
    if trace is not None:
        return TokenMoments(*load_trace(trace).mean_tokens, *_second_moments(trace))
    output = tokens.output.mean_tokens
    prompt = mean_prompt_tokens(sessions, tokens.prompt.mean_tokens, output)
    variance = (output - tokens.output.loc_tokens) ** 2 / tokens.output.shape
    return TokenMoments(prompt, output, prompt * output, output**2 + variance)


def batching_servers(scenario: Scenario, design: ContinuousBatching) -> tuple[BatchingServer, ...]:
    """Each cell's servers in numbers.

    Raises:
        ScenarioError: A KV cache could not hold a request of mean length.
        TraceError: The trace cannot be used.
    """
    presets = [cell.hardware for cell in scenario.cells]
    try:
        check_design(design, *mean_tokens(scenario), presets)
    except ValueError as error:
        raise ScenarioError(str(error)) from None
    return tuple(design.on(preset) for preset in presets)


def nominal_rates_rps(scenario: Scenario) -> NDArray[np.float64]:
    """The most requests per second each cell can serve with all its servers, shape (cells,)."""
    servers = np.array([cell.servers for cell in scenario.cells], dtype=np.float64)
    design = scenario.server
    if isinstance(design, ContinuousBatching):
        moments = _moments(scenario)
        batching = batching_servers(scenario, design)
        per_server = np.array([batching_rate_rps(each, moments) for each in batching])
        return np.asarray(servers * per_server)
    prefill_s, decode_s = _stage_times_s(scenario)
    slots = design.decode_slots
    rates_rps: NDArray[np.float64] = servers / np.maximum(prefill_s, decode_s / slots)
    return rates_rps


def zero_load_times_s(scenario: Scenario) -> NDArray[np.float64]:
    """Mean serving latency in each cell when it is empty, seconds, shape (cells,)."""
    design = scenario.server
    if isinstance(design, ContinuousBatching):
        moments = _moments(scenario)
        batching = batching_servers(scenario, design)
        return np.array([batching_zero_load_s(each, moments) for each in batching])
    prefill_s, decode_s = _stage_times_s(scenario)
    return prefill_s + decode_s


def zero_load_time_s(scenario: Scenario) -> float:
    """Zero-load time of the fleet, seconds: the cells' mean, weighted by nominal rate."""
    rates_rps = nominal_rates_rps(scenario)
    weighted = ordered_sum(rates_rps * zero_load_times_s(scenario))
    return float(weighted / ordered_sum(rates_rps))


def offered_rate_rps(scenario: Scenario) -> float:
    """Mean rate of all roots together, without bursts, requests per second."""
    return scenario.demand.utilisation * float(ordered_sum(nominal_rates_rps(scenario)))


def demand_shares(scenario: Scenario) -> NDArray[np.float64]:
    """Each root's share of the offered rate, shape (roots,), adding up to 1."""
    demand = np.array([root.demand for root in scenario.roots], dtype=np.float64)
    shares: NDArray[np.float64] = demand / ordered_sum(demand)
    return shares


def root_rates_rps(scenario: Scenario) -> NDArray[np.float64]:
    """lambda_i, each root's mean rate without bursts, requests per second, shape (roots,)."""
    return offered_rate_rps(scenario) * demand_shares(scenario)


def one_way_s(scenario: Scenario) -> NDArray[np.float64]:
    """Tau of every (root, cell), shape (R, C): half the round trip; NaN where there is no arc."""
    if scenario.network.rtt_s is not None:
        rtt_s = np.array(scenario.network.rtt_s, dtype=np.float64)
    else:
        rtt_s = rtt_matrix_s([r.region for r in scenario.roots], [c.region for c in scenario.cells])
    if scenario.network.mean_rtt_s is not None:
        apart = np.array([[r.name != c.name for c in scenario.cells] for r in scenario.roots])
        rtt_s = rescaled_to_mean(rtt_s, scenario.network.mean_rtt_s, apart)
    reachable = np.array(
        [
            [root.reachable is None or cell.name in root.reachable for cell in scenario.cells]
            for root in scenario.roots
        ]
    )
    return np.where(reachable, rtt_s / 2.0, np.nan)


def _moments(scenario: Scenario) -> TokenMoments:
    demand = scenario.demand
    return token_moments(scenario.tokens, demand.sessions, demand.trace)


def _stage_times_s(scenario: Scenario) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean work of a request in prefill and in decode, seconds, shape (cells,) each."""
    prompt_tokens, output_tokens = mean_tokens(scenario)
    prefill = np.array([cell.prefill_s_per_token for cell in scenario.cells], dtype=np.float64)
    decode = np.array([cell.decode_s_per_token for cell in scenario.cells], dtype=np.float64)
    return prompt_tokens * prefill, output_tokens * decode


@lru_cache(maxsize=16)
def _second_moments(trace: Trace) -> tuple[float, float]:
    """Means of prompt x output tokens and of output tokens squared."""
    columns = load_trace(trace)
    prompts, outputs = columns.prompt_tokens, columns.output_tokens
    count = len(outputs)
    return (
        math.fsum((prompts * outputs).tolist()) / count,
        math.fsum((outputs * outputs).tolist()) / count,
    )
