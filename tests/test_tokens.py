"""Token counts against the distributions they are drawn from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dlb_gym.scenario import TokenDistribution, Tokens
from dlb_gym.tokens import token_source
from dlb_gym.trace import describe_trace

COUNT = 20_000
KS_LIMIT = 1.95 / np.sqrt(COUNT)
"""The 99.9 % point of the Kolmogorov-Smirnov distance; conservative for whole numbers."""


def largest_distance(sample: NDArray[np.float64], law: TokenDistribution) -> float:
    """Distance of tokens from loc + floor(Gamma + 0.5), taken at whole numbers."""
    loc = law.loc_tokens
    whole = np.arange(loc, sample.max() + 1)
    empirical = np.searchsorted(np.sort(sample), whole, side="right") / sample.size
    gamma = stats.gamma(law.shape, scale=(law.mean_tokens - loc) / law.shape)
    return float(np.abs(empirical - gamma.cdf(whole - loc + 0.5)).max())


@pytest.mark.parametrize(
    "tokens",
    [
        Tokens(),
        Tokens(
            prompt=TokenDistribution(loc_tokens=0, shape=0.5, mean_tokens=9.0),
            output=TokenDistribution(loc_tokens=300, shape=40.0, mean_tokens=301.5),
        ),
    ],
)
def test_tokens_are_shifted_gammas_rounded_to_whole_numbers(tokens: Tokens) -> None:
    prompt, output = token_source(tokens, None).draw(np.random.default_rng(1), COUNT)
    assert largest_distance(prompt, tokens.prompt) < KS_LIMIT
    assert largest_distance(output, tokens.output) < KS_LIMIT
    assert abs(np.corrcoef(prompt, output)[0, 1]) < 3.3 / np.sqrt(COUNT)


def test_a_traces_rows_are_drawn_whole_and_equally_often(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = "".join(f"{k},{100 + k},{10 + k}\n" for k in range(50))
    path.write_text("timestamp,input_length,output_length\n" + rows)
    source = token_source(Tokens(), describe_trace(path))
    prompt, output = source.draw(np.random.default_rng(2), COUNT)
    assert set((prompt - output).tolist()) == {90.0}
    assert stats.chisquare(np.bincount((output - 10).astype(int), minlength=50)).pvalue > 1e-3
