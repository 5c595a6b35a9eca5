"""Prompt and output tokens of requests."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dlb_gym.scenario import TokenDistribution, Tokens, Trace
from dlb_gym.trace import TraceColumns, load_trace

TokenColumns = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Prompt and output tokens, whole numbers of shape (requests,)."""


class TokenSource(Protocol):
    """Where tokens come from."""

    def draw(self, rng: np.random.Generator, count: int) -> TokenColumns:
        """Tokens of `count` independent requests."""


class GammaTokens:
    """Shifted Gammas, prompt and output independent (paper B.1).

    loc + floor(G + 0.5), where the Gamma G has mean (mean_tokens - loc) and the given shape.
    """

    def __init__(self, prompt: TokenDistribution, output: TokenDistribution) -> None:
        self._prompt = prompt
        self._output = output

    def draw(self, rng: np.random.Generator, count: int) -> TokenColumns:
        """Tokens of `count` independent requests."""
        return _shifted_gamma(rng, count, self._prompt), _shifted_gamma(rng, count, self._output)


class RecordedTokens:
    """Requests of a trace, drawn with replacement; prompt and output stay together."""

    def __init__(self, trace: TraceColumns) -> None:
        self._trace = trace

    def draw(self, rng: np.random.Generator, count: int) -> TokenColumns:
        """Tokens of `count` independent requests."""
        row = rng.integers(self._trace.time_s.size, size=count)
        return self._trace.prompt_tokens[row], self._trace.output_tokens[row]


def token_source(tokens: Tokens, trace: Trace | None) -> TokenSource:
    """The trace's tokens if there is a trace, else the Gammas.

    Raises:
        TraceError: The trace cannot be used.
    """
    if trace is not None:
        return RecordedTokens(load_trace(trace))
    return GammaTokens(tokens.prompt, tokens.output)


def _shifted_gamma(
    rng: np.random.Generator, count: int, distribution: TokenDistribution
) -> NDArray[np.float64]:
    loc = distribution.loc_tokens
    tokens = rng.standard_gamma(distribution.shape, count)
    tokens *= (distribution.mean_tokens - loc) / distribution.shape
    tokens += 0.5
    np.floor(tokens, out=tokens)
    tokens += loc
    return tokens
