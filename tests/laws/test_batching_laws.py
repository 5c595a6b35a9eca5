"""Continuously batching servers where a closed form exists.

A batch of one is M/G/1 with S = base + per_sequence + per_prompt P + (D - 1) (base + per_sequence):
one iteration brings the prompt and the first token, each other one a token.

Without a limit, requests of one token and iterations of constant time b make a server that takes
all who wait at once. Iterations follow each other while any came during the last, which has
probability 1 - exp(-lam b); else the server idles for 1 / lam. Per iteration lam b requests come in
it, at a uniform instant of it, and exp(-lam b) to the idle server (renewal theory), so

    E[T] = b + (lam b) (b / 2) / (lam b + exp(-lam b)).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dlb_gym.scenario import Scenario
from tests.laws.intervals import assert_ratio
from tests.laws.station import played, station

ROWS = 32
STEP_S = 0.01
"""Of an iteration: 0.007 s and 0.003 s for the one request in it."""
PROMPT_S = 0.03
PROMPT_TOKENS = 10_000


def batching(
    utilisation: float, tokens: dict[str, Any], horizon_s: float = 200.0, **server: Any
) -> Scenario:
    """One such server; its KV cache and its budget of prompt tokens hold everything.

    At a batch of one the nominal rate is 1 / E[S], so `utilisation` is lam E[S].
    """
    design = {
        "kind": "continuous_batching",
        "max_batch": 1,
        "kv_tokens": 1_000_000_000,
        "prefill_budget_tokens": 1_000_000,
        "queue_limit": 4_096,
        "base_s": 0.7 * STEP_S,
        "per_sequence_s": 0.3 * STEP_S,
        "per_context_token_s": 0.0,
        "prefill_s_per_token": 0.0,
    }
    changes = {
        "tokens": {"prompt": EXACTLY[0], "output": EXACTLY[1]} | tokens,
        "server": design | server,
        "demand": {"utilisation": utilisation},
    }
    return station(1.0, warmup_s=10.0, horizon_s=horizon_s, **changes)


EXACTLY = [{"loc_tokens": n, "shape": 1.0, "mean_tokens": n + 1e-6} for n in range(2)]
"""No token, and one."""
PROMPTS = {
    "M/D/1": {"loc_tokens": PROMPT_TOKENS, "shape": 1.0, "mean_tokens": PROMPT_TOKENS + 1e-6},
    "exponential": {"loc_tokens": 0, "shape": 1.0, "mean_tokens": PROMPT_TOKENS},
}


def sojourn_s(rate_rps: float, mean_s: float, second_s2: float) -> float:
    """Pollaczek and Khinchine."""
    return mean_s + rate_rps * second_s2 / (2.0 * (1.0 - rate_rps * mean_s))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_batch_of_one_is_a_single_server_of_prompts(prompt: str) -> None:
    """S = iteration + p P, D = 1: E[S^2] = E[S]^2 + Var(p P), at rho = 0.6.

    Catches: an iteration too many or too few, an idle server that waits for a tick, a second
    request in a batch of one, prompts read twice, a request's own seconds left out.
    """
    scenario = batching(
        0.6, {"prompt": PROMPTS[prompt]}, prefill_s_per_token=PROMPT_S / PROMPT_TOKENS
    )
    mean_s = STEP_S + PROMPT_S
    second_s2 = mean_s**2 + (0.0 if prompt == "M/D/1" else PROMPT_S**2)
    found = played(scenario, ROWS).measurements()
    expected_s = sojourn_s(0.6 / mean_s, mean_s, second_s2)
    law, case = "batch of one, M/G/1: E[T], s", f"rho = 0.6, {prompt} prompts"
    assert_ratio(law, case, found.latency_sum_s, found.arrived, expected_s, 0.05)


def test_a_batch_of_one_is_a_single_server_of_tokens() -> None:
    """S = iteration x D for D = 1 + floor(G + 1/2), G of shape 2 and mean 6, at rho = 0.6.

    Catches: a last token that takes no iteration, a first one that takes two.
    """
    law = {"loc_tokens": 1, "shape": 2.0, "mean_tokens": 7.0}
    tokens = np.arange(1, 200)
    cumulative = stats.gamma(2.0, scale=3.0).cdf(tokens - 0.5)
    weights = np.diff(cumulative, prepend=0.0)
    mean, second = float(weights @ tokens), float(weights @ tokens**2)
    rate_rps = 0.6 / (7.0 * STEP_S)  # nominal rates leave rounding out
    expected_s = sojourn_s(rate_rps, mean * STEP_S, second * STEP_S**2)
    found = played(batching(0.6, {"output": law}), ROWS).measurements()
    law, case = "batch of one, M/G/1: E[T], s", "rho = 0.6, mean 7 tokens"
    assert_ratio(law, case, found.latency_sum_s, found.arrived, expected_s, 0.06)


@pytest.mark.parametrize("mean_batch", [0.3, 1.0, 5.0])
def test_a_batch_without_limit_takes_all_who_wait(mean_batch: float) -> None:
    """E[T] = b + (lam b) (b / 2) / (lam b + exp(-lam b)), lam b requests an iteration.

    Catches: admission that takes one at a time, an iteration that starts when nothing waits, one
    that lets in who comes while it runs, a request that is served in two iterations.
    """
    size, step_s = 1_000, STEP_S
    scenario = batching(mean_batch / size, {}, max_batch=size, base_s=step_s, per_sequence_s=0.0)
    expected_s = step_s * (1.0 + mean_batch / 2.0 / (mean_batch + math.exp(-mean_batch)))
    found = played(scenario, ROWS).measurements()
    law, case = "gated batches: E[T], s", f"{mean_batch:g} requests an iteration"
    assert_ratio(law, case, found.latency_sum_s, found.arrived, expected_s, 0.01)


def test_drafts_make_the_tokens_of_renewal_theory() -> None:
    """An iteration makes T = 1 + K tokens, P(K >= k) = a^k for k <= g; E[iterations] for D - 1 is

        (D - 1 + (E[T^2] - E[T]) / (2 E[T])) / E[T]          (mean excess; exact for large D).

    At rho = 0.02 a request waits rho / (2 (1 - rho)) of E[S], if that hardly varies (it does by a
    tenth: Pollaczek and Khinchine, a bias below 0.0002).
    Catches: a draft too many or too few, an acceptance that is the rejection, one uniform for all
    iterations of a request.
    """
    drafts, acceptance, length = 3, 0.7, 60
    likelihoods = acceptance ** np.arange(drafts + 1)  # P(T > k)
    mean = float(likelihoods.sum())
    second = float(((2 * np.arange(drafts + 1) + 1) * likelihoods).sum())
    iterations = 1.0 + (length - 1 + (second - mean) / (2.0 * mean)) / mean
    law = {"loc_tokens": length, "shape": 1.0, "mean_tokens": length + 1e-6}
    scenario = batching(
        0.02, {"output": law}, draft_tokens=drafts, acceptance=acceptance, horizon_s=4_000.0
    )
    found = played(scenario, ROWS).measurements()
    expected_s = iterations * STEP_S * (1.0 + 0.02 / (2.0 * 0.98))
    law, case = "speculative decoding: E[T], s", "rho = 0.02, 3 drafts, 70 % accepted"
    bias_s = 0.0002 * expected_s
    assert_ratio(law, case, found.latency_sum_s, found.arrived, expected_s, 0.01, bias_s)
