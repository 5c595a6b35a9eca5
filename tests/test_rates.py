"""Rates and times that follow from a scenario, against hand computation."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlb_gym.batching_rates import (
    TokenMoments,
    batching_rate_rps,
    batching_zero_load_s,
    tokens_per_iteration,
)
from dlb_gym.rates import (
    demand_shares,
    mean_tokens,
    nominal_rates_rps,
    offered_rate_rps,
    token_moments,
    zero_load_time_s,
    zero_load_times_s,
)
from dlb_gym.scenario import Scenario, Tokens
from dlb_gym.scenario_source import ScenarioError, override
from dlb_gym.server_design import BatchingServer, ContinuousBatching
from dlb_gym.sessions import Sessions
from dlb_gym.tokens import token_source
from dlb_gym.trace import describe_trace
from tests.batching_kernel import random_jobs, serve_compiled
from tests.batching_model import Design, Job
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


def three_requests(folder: Path) -> Path:
    path = folder / "three.csv"
    path.write_text("timestamp,input_length,output_length\n0,100,10\n1000,200,20\n2000,600,90\n")
    return path


def test_a_trace_brings_its_own_mean_tokens(tmp_path: Path) -> None:
    trace = describe_trace(three_requests(tmp_path)).model_dump()
    scenario = two_cells(demand={"utilisation": 0.5, "trace": trace})
    assert mean_tokens(scenario) == (300.0, 40.0)
    # 300 tokens of prefill take 0.06 s, 40 of decode 0.2 / 8 s.
    assert nominal_rates_rps(scenario).tolist() == pytest.approx([10 / 0.06, 4 / 0.06])


def batching_scenario(**keys: Any) -> Scenario:
    return two_cells(server={"kind": "continuous_batching", **keys})


def by_hand(**keys: Any) -> BatchingServer:
    """One term at a time: everything costs nothing unless it is stated."""
    terms = {"per_sequence_s": 0.0, "per_context_token_s": 0.0, "prefill_s_per_token": 0.0}
    return ContinuousBatching(**(terms | {"kv_tokens": 10**6, "base_s": 0.01} | keys)).on()


FIXED = TokenMoments(prompt=100.0, output=21.0, product=2_100.0, output_square=441.0)


def test_a_full_batch_shares_the_base_and_pays_its_own_tokens() -> None:
    """21 iterations of 0.01 s, shared by 8; 1e-3 s each, 1e-4 s a prompt token, contexts."""
    base = batching_rate_rps(by_hand(max_batch=8), FIXED)
    assert base == pytest.approx(8 / (21 * 0.01))
    own = by_hand(max_batch=8, per_sequence_s=1e-3, prefill_s_per_token=1e-4)
    assert 1 / batching_rate_rps(own, FIXED) == pytest.approx(21 * 0.01 / 8 + 0.021 + 0.01)
    context = by_hand(max_batch=8, per_context_token_s=1e-6)
    tokens_read = sum(100 + made for made in range(1, 21))
    assert 1 / batching_rate_rps(context, FIXED) == pytest.approx(
        21 * 0.01 / 8 + 1e-6 * tokens_read
    )
    assert batching_zero_load_s(context, FIXED) == pytest.approx(0.21 + 1e-6 * tokens_read)


def test_the_kv_cache_and_the_prefill_budget_bound_the_rate() -> None:
    """605 tokens hold five requests of 121; 20 prompt tokens an iteration feed one in five."""
    small = by_hand(max_batch=8, kv_tokens=605)
    assert batching_rate_rps(small, FIXED) == pytest.approx(5 / (21 * 0.01))
    slow = by_hand(max_batch=64, prefill_budget_tokens=20)
    assert batching_rate_rps(slow, FIXED) == pytest.approx(0.2 / 0.01)


@pytest.mark.parametrize(("drafts", "acceptance"), [(0, 0.0), (1, 0.5), (4, 0.8), (3, 1.0)])
def test_tokens_per_iteration_are_leviathans(drafts: int, acceptance: float) -> None:
    mean = tokens_per_iteration(by_hand(draft_tokens=drafts, acceptance=acceptance))
    if acceptance < 1.0:
        assert mean == pytest.approx((1 - acceptance ** (drafts + 1)) / (1 - acceptance))
    else:
        assert mean == drafts + 1


def test_requests_without_output_or_prompt_have_finite_rates() -> None:
    prefill_only = TokenMoments(prompt=256.0, output=0.0, product=0.0, output_square=0.0)
    assert batching_rate_rps(by_hand(), prefill_only) == pytest.approx(2 / 0.01)
    assert batching_zero_load_s(by_hand(), prefill_only) == pytest.approx(0.01)
    decode_only = TokenMoments(prompt=0.0, output=21.0, product=0.0, output_square=441.0)
    assert batching_rate_rps(by_hand(max_batch=8), decode_only) == pytest.approx(8 / 0.21)


SERVERS: list[tuple[dict[str, Any], float, float, float]] = [
    ({}, 500, 200, 0.01),
    ({"preset": "a100"}, 500, 200, 0.01),
    ({"preset": "b200"}, 500, 200, 0.01),
    ({"max_batch": 4}, 500, 200, 0.01),
    ({"prefill_budget_tokens": 128}, 500, 200, 0.015),
    ({"draft_tokens": 4, "acceptance": 0.7}, 500, 200, 0.015),
    ({}, 4_000, 100, 0.015),
    ({"kv_tokens": 30_000}, 500, 200, 0.03),
]


@pytest.mark.parametrize(("keys", "prompt", "output", "tolerance"), SERVERS)
def test_saturated_and_lonely_servers_keep_to_the_closed_form(
    keys: dict[str, Any], prompt: float, output: float, tolerance: float
) -> None:
    """The middle half of 20,000 completions in overload; 2,000 requests far apart."""
    server = ContinuousBatching(**keys).on()
    fields = asdict(server) | {"queue_limit": 10**5}
    design = Design(prefill_budget=fields.pop("prefill_budget_tokens"), **fields)
    jobs = random_jobs(20_000, 2.0 * batching_rate_rps(server, FIXED), 3, prompt, output)
    moments = moments_of(jobs)
    rate_rps = batching_rate_rps(server, moments)
    crowded = [replace(job, leaf_s=k / (1.5 * rate_rps)) for k, job in enumerate(jobs)]
    done_s = np.sort(serve_compiled(design, crowded)[:, 2])
    measured_rps = 10_000 / (done_s[15_000] - done_s[5_000])
    assert measured_rps == pytest.approx(rate_rps, rel=tolerance + 0.01)
    lonely = [replace(job, leaf_s=1e4 * k) for k, job in enumerate(jobs[:2_000])]
    alone_s = serve_compiled(design, lonely)[:, 2] - 1e4 * np.arange(2_000)
    expected_s = batching_zero_load_s(server, moments_of(lonely))
    assert np.mean(alone_s) == pytest.approx(expected_s, rel=0.005)


def moments_of(jobs: list[Job]) -> TokenMoments:
    prompt, output = np.array([(job.prompt, job.output) for job in jobs], dtype=float).T
    return TokenMoments(
        prompt=float(prompt.mean()),
        output=float(output.mean()),
        product=float((prompt * output).mean()),
        output_square=float((output**2).mean()),
    )


def test_moments_of_gammas_are_those_of_a_large_sample() -> None:
    prompt, output = token_source(Tokens(), None).draw(np.random.default_rng(0), 400_000)
    moments = token_moments(Tokens(), None, None)
    assert moments.prompt == pytest.approx(prompt.mean(), rel=0.01)
    assert moments.output_square == pytest.approx((output**2).mean(), rel=0.01)
    assert moments.product == pytest.approx((prompt * output).mean(), rel=0.01)


def test_moments_of_a_trace_are_its_requests(tmp_path: Path) -> None:
    moments = token_moments(Tokens(), None, describe_trace(three_requests(tmp_path)))
    assert moments == TokenMoments(300.0, 40.0, (1_000 + 4_000 + 54_000) / 3, 8_600 / 3)


def test_cells_of_batching_servers_have_rates_of_their_hardware() -> None:
    scenario = override(batching_scenario(preset="a100"), {"cells.1.hardware": "b200"})
    moments = token_moments(Tokens(), None, None)
    old, new = ContinuousBatching(preset="a100").on(), ContinuousBatching(preset="b200").on()
    assert nominal_rates_rps(scenario).tolist() == [
        10 * batching_rate_rps(old, moments),
        4 * batching_rate_rps(new, moments),
    ]
    assert zero_load_times_s(scenario).tolist() == [
        batching_zero_load_s(old, moments),
        batching_zero_load_s(new, moments),
    ]
    assert offered_rate_rps(scenario) == pytest.approx(0.5 * nominal_rates_rps(scenario).sum())


def test_a_kv_cache_below_the_traces_mean_request_is_refused(tmp_path: Path) -> None:
    trace = describe_trace(three_requests(tmp_path))
    scenario = two_cells(
        server={"kind": "continuous_batching", "kv_tokens": 339, "preset": "h100"},
        tokens={"prompt": {"loc_tokens": 1, "shape": 1.0, "mean_tokens": 20.0},
                "output": {"loc_tokens": 1, "shape": 1.0, "mean_tokens": 20.0}},
        demand={"trace": trace.model_dump()},
    )  # fmt: skip
    with pytest.raises(ScenarioError, match=r"server.kv_tokens = 339 is below .* 300 prompt"):
        nominal_rates_rps(scenario)


def test_moments_of_sessions_count_the_context_apart_from_the_output() -> None:
    """Turns 1 to 3 with weights 1/2, 1/4, 1/4: 4/7 of a turn of 700 tokens before a request."""
    sessions = Sessions(mean_turns=2.0, max_turns=3)
    moments = token_moments(Tokens(), sessions, None)
    assert moments.prompt == pytest.approx(500 + 700 * 4 / 7)
    assert moments.product == pytest.approx(moments.prompt * 200)
    assert moments.output_square == token_moments(Tokens(), None, None).output_square
