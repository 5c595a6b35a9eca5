"""Sessions: conversations whose prompts grow, and what follows from their description.

A session is T requests (turns) of one root. Turn k, from 0, brings n_k new prompt tokens and has
o_k output tokens, drawn as `tokens.prompt` and `tokens.output` say; its context is all that came
before, and its prompt holds both:

    context_k = sum over m < k of (n_m + o_m),     prompt_k = context_k + n_k.

The first `prefix_fraction` of the context stands unchanged at the start of the prompt: a server
that kept the previous turn need not compute it again. The rest was edited, summarised or dropped
(reasoning, retrieved passages), or is laid out anew.

T = min(G, max_turns), G geometric on 1, 2, ... with mean `mean_turns`, so with q = 1 - 1/mean_turns

    E[T] = sum over k < max_turns of q^k,     E[T (T - 1) / 2] = sum over k < max_turns of k q^k.

A hot session (a share `hot_fraction` of them) has `hot_factor` times the turns, and gaps that are
as many times shorter: it lasts as long as another, at `hot_factor` times the rate. Of all requests,
then, with E[n], E[o] the mean new and output tokens,

    mean prompt       E[P] = E[n] + (E[n] + E[o]) E[T (T - 1) / 2] / E[T]
    eligible share    1 - 1 / E[T]: those that have a context
    saved by a cache  prefix_fraction (E[P] - E[n]) / E[P] of the prompt tokens, at most

The defaults are ours: 66 % of the requests are eligible and 47 % of the prompt tokens are
prefix, within what the paper reports (3.5: 60-70 % and 40-50 %) and does not describe further.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from dlb_gym.strict import Fraction, PositiveSeconds, Seconds, Strict

MAX_TURNS = 10_000
"""Most turns of a hot session."""


class Sessions(Strict):
    """Requests come in sessions; see the module's text. The paper gives none of these numbers.

    A workload cannot know when a request will be answered, so time between turns is counted from
    arrival to arrival: `least_gap_s` (to read an answer and write) plus an exponential time, with
    mean `gap_s` together. A turn may still overtake the answer to the one before.

    Attributes:
        mean_turns: Mean of the geometric number of turns, before it is cut at `max_turns`.
        max_turns: Most turns of a session that is not hot.
        gap_s: Mean time from a turn to the next.
        least_gap_s: Least time from a turn to the next.
        prefix_fraction: Part of a turn's context that is an unchanged prefix of its prompt.
        hot_fraction: Share of the sessions that are hot.
        hot_factor: How many times the turns, and the rate, a hot session has.
        hash_values: Number of different scheduling hashes; None: every session has its own.
    """

    mean_turns: Annotated[float, Field(ge=1)] = 3.0
    max_turns: Annotated[int, Field(ge=1, le=MAX_TURNS)] = 12
    gap_s: PositiveSeconds = 10.0
    least_gap_s: Seconds = 2.0
    prefix_fraction: Fraction = 0.65
    hot_fraction: Fraction = 0.0
    hot_factor: Annotated[int, Field(ge=1, le=MAX_TURNS)] = 10
    hash_values: Annotated[int, Field(ge=1, le=2**53)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.least_gap_s >= self.gap_s:
            raise ValueError(
                f"least_gap_s = {self.least_gap_s} must be less than the mean, gap_s = {self.gap_s}"
            )
        if self.mean_turns > self.max_turns:
            raise ValueError(
                f"mean_turns = {self.mean_turns} must not exceed max_turns = {self.max_turns}"
            )
        if self.hot_fraction > 0 and self.hot_factor * self.max_turns > MAX_TURNS:
            raise ValueError(
                f"hot_factor = {self.hot_factor} x max_turns = {self.max_turns} turns of a hot "
                f"session exceed {MAX_TURNS:,}; lower one of them"
            )
        return self


class TurnMoments(NamedTuple):
    """E[T] and E[T (T - 1) / 2] over all sessions, hot ones among them."""

    turns: float
    pairs: float


def turn_moments(sessions: Sessions) -> TurnMoments:
    """Mean number of turns, and of pairs of turns, in a session."""
    q = 1.0 - 1.0 / sessions.mean_turns
    turns = math.fsum(q**k for k in range(sessions.max_turns))
    pairs = math.fsum(k * q**k for k in range(sessions.max_turns))
    hot, factor = sessions.hot_fraction, sessions.hot_factor
    # f T (f T - 1) / 2 = f^2 (pairs + T / 2) - f T / 2
    hot_pairs = factor**2 * (pairs + turns / 2) - factor * turns / 2
    return TurnMoments(
        turns=(1 - hot) * turns + hot * factor * turns,
        pairs=(1 - hot) * pairs + hot * hot_pairs,
    )


def mean_context_tokens(sessions: Sessions, new_tokens: float, output_tokens: float) -> float:
    """Mean context of a request.

    Args:
        sessions: The sessions.
        new_tokens: Mean new prompt tokens of a turn.
        output_tokens: Mean output tokens of a turn.
    """
    moments = turn_moments(sessions)
    return (new_tokens + output_tokens) * moments.pairs / moments.turns


def mean_prompt_tokens(sessions: Sessions | None, new_tokens: float, output_tokens: float) -> float:
    """Mean prompt of a request, its context included; without sessions there is none.

    Args:
        sessions: The sessions, if any.
        new_tokens: Mean new prompt tokens of a turn.
        output_tokens: Mean output tokens of a turn.
    """
    if sessions is None:
        return new_tokens
    return new_tokens + mean_context_tokens(sessions, new_tokens, output_tokens)


def eligible_share(sessions: Sessions) -> float:
    """Share of the requests that follow another one of their session."""
    return 1.0 - 1.0 / turn_moments(sessions).turns
