"""Tokens and the times that they become: shifted Gammas, rounded to whole numbers.

loc + floor(G + 1/2) has the distribution function F(k) = F_G(k - loc + 1/2) at whole k. Where
nothing waits, a stage takes its tokens times its seconds per token.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dlb_gym.scenario import Scenario, TokenDistribution
from dlb_gym.scenario_source import override
from dlb_gym.workload import Workload
from tests.laws.intervals import (
    assert_distance,
    assert_distribution,
    assert_mean,
    assert_uncorrelated,
)
from tests.laws.station import Service, played, station

FloatArray = NDArray[np.float64]
DECODE_S, PREFILL_S = 2e-4, 1e-9
REQUESTS = 20_000
PROMPT = TokenDistribution(loc_tokens=20, shape=1.5, mean_tokens=90.0)
OUTPUTS = {
    "few": TokenDistribution(loc_tokens=0, shape=0.5, mean_tokens=3.0),
    "default shape": TokenDistribution(loc_tokens=10, shape=2.0, mean_tokens=200.0),
    "shifted": TokenDistribution(loc_tokens=300, shape=40.0, mean_tokens=340.0),
}


def unhurried(output: TokenDistribution) -> Scenario:
    """Poisson arrivals at a server of 64 slots, of which about six are taken."""
    decode_s = output.mean_tokens * DECODE_S
    scenario = station(
        6.0 / decode_s,
        decode=Service(decode_s),
        slots=64,
        warmup_s=0.0,
        horizon_s=math.ceil(REQUESTS / 6.0 * decode_s),
        tokens={"prompt": PROMPT.model_dump(), "output": output.model_dump()},
    )
    rates = {"prefill_s_per_token": PREFILL_S, "decode_s_per_token": DECODE_S}
    return override(scenario, {f"cells.0.{key}": value for key, value in rates.items()})


def assert_law(column: str, tokens: FloatArray, law: TokenDistribution) -> None:
    """Kolmogorov and Smirnov at whole numbers, where the limit is conservative; and the mean."""
    gamma = stats.gamma(law.shape, scale=(law.mean_tokens - law.loc_tokens) / law.shape)
    whole = np.arange(law.loc_tokens, tokens.max() + 1)
    found = np.searchsorted(np.sort(tokens), whole, side="right") / tokens.size
    distance = float(np.abs(found - gamma.cdf(whole - law.loc_tokens + 0.5)).max())
    case = f"shape {law.shape:g}, mean {law.mean_tokens:g}"
    assert_distance(f"tokens: shifted Gamma ({column})", case, tokens.size, distance)
    beyond = np.arange(0.5, gamma.ppf(1.0 - 1e-12))
    expected = law.loc_tokens + float(gamma.sf(beyond).sum())
    assert_mean(f"tokens: mean ({column})", case, tokens, expected, 0.1)


@pytest.mark.parametrize("name", OUTPUTS)
def test_decode_times_follow_the_law_of_output_tokens(name: str) -> None:
    """Through the whole engine: (done - first token) / seconds per token, against scipy's Gamma.

    Catches: tokens cut instead of rounded, shape and scale confused, a shift that is left out or
    added twice, prompts that are taken for outputs, seconds per token of the wrong stage.
    """
    scenario = unhurried(OUTPUTS[name])
    log = played(scenario, 1, log=True).request_log(0)
    tokens = (log["done_s"] - log["first_token_s"]) / DECODE_S
    whole = np.round(tokens)
    np.testing.assert_allclose(tokens, whole, atol=1e-5)
    assert_law("output", whole, OUTPUTS[name])


@lru_cache
def drawn() -> FloatArray:
    """Twelve chunks of requests: arrival, prompt, output, choice of the cell, of the server."""
    workload = Workload(unhurried(OUTPUTS["default shape"]), 3, 0)
    return np.concatenate([workload.chunk(k)[0] for k in range(12)])


def test_prompts_and_outputs_are_drawn_from_their_laws() -> None:
    """Against scipy's Gamma.

    Catches: prompts and outputs that are taken for each other, a shape or a mean of the other.
    """
    assert_law("prompt", drawn()[:, 1], PROMPT)
    assert_law("output, as drawn", drawn()[:, 2], OUTPUTS["default shape"])


def test_choices_are_uniform_and_nothing_of_a_request_depends_on_the_rest() -> None:
    """Prompt, output, both uniforms, and all of the next request: uncorrelated ranks.

    Catches: one stream that serves two columns, a column that repeats itself.
    """
    table = drawn()
    for column, choice in ((3, "cell"), (4, "server")):
        assert_distribution("choices: uniform", choice, table[:, column], "uniform")
    ranks = stats.rankdata(table[:, 1:], axis=0)
    standard = (ranks - ranks.mean(axis=0)) / ranks.std(axis=0)
    law = "columns of requests: independent"
    for a in range(4):
        for b in range(a + 1, 4):
            assert_uncorrelated(law, "one request", standard[:, a], standard[:, b])
        for b in range(4):
            assert_uncorrelated(law, "the next", standard[1:, a], standard[:-1, b])
