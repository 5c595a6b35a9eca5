"""Rewards: what an interval was worth, from the truth, as named terms that add up.

For an interval of length h, with Z the zero-load time, `rate` the mean offered rate (constants of
the scenario) and every error of the interval charged when its leaf refuses it:

    latency        -(mean requests in system) / (rate Z)                     - errors'
    ttft           -(sum of the times to first token of its answers) / (rate h Z) - errors'
    tail(q)        -(V_q now - V_q before) / (rate h Z)                      - errors'
    goodput(slo_s)  (answers within slo_s) / (rate h)

    errors' = error_penalty * errors / (rate h)

`latency` is the default: by Little's law the mean of its first term is the mean latency, in
zero-load times. `ttft` is the same for the first token, charged when the answer is complete.

V_q is the sum over the slowest share 1 - q of the answers so far, divided by that share:

    V_q = n CVaR_q = min_c sum_k (c + max(l_k - c, 0) / (1 - q))

(Rockafellar and Uryasev 2000; the best c is the q-quantile). So an answer below the quantile costs
about the quantile, one above it its excess 1/(1 - q) times more, and the terms of an episode add up
to exactly -n CVaR_q / (rate h Z): n answers, each at the mean latency of the slowest ones.

An error is no answer within the SLO, so `goodput` does not charge it again: per interval it is the
share of the mean offered requests that met the SLO, and no more than that.

`tail` and `goodput` go by the measured latencies: of requests that arrived after warm-up and
settling, in bins of 1.6 %, of which `goodput` divides the one that holds the SLO linearly. What is
under way when the episode ends is charged by `latency` alone.
"""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dlb_gym.measurements import slowest_sum_s, within
from dlb_gym.simulator import Simulator
from dlb_gym.views import Truth

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Reward = Callable[["RewardFacts", Truth], dict[str, FloatArray]]

SLO_RANGE_S = (1e-6, 1e6)
"""The histograms' bins reach a little further, on both sides."""


class RewardFacts(NamedTuple):
    """Constants of each row's episode that rewards refer to, (n,) each."""

    rate_rps: FloatArray
    zero_load_time_s: FloatArray
    control_interval_s: FloatArray
    error_penalty: FloatArray


class EpisodeReward(Protocol):
    """A reward in use: a batch's, with whatever it keeps of the rows' episodes."""

    def restart(self, row: int) -> None:
        """An episode starts in the row."""

    def terms(self, facts: RewardFacts, simulator: Simulator) -> dict[str, FloatArray]:
        """Named terms, (n,) each, of the interval that just ended; called once an interval."""


def latency_reward(facts: RewardFacts, truth: Truth) -> dict[str, FloatArray]:
    """The default reward's terms: see the module's docstring."""
    in_system = truth.in_system_s / facts.control_interval_s
    return {
        "in_system": -in_system / (facts.rate_rps * facts.zero_load_time_s),
        "errors": _errors(facts, truth),
    }


def ttft_reward(facts: RewardFacts, truth: Truth) -> dict[str, FloatArray]:
    """The terms of `ttft`: see the module's docstring."""
    mean_waiting = truth.first_token_sum_s / facts.control_interval_s
    return {
        "ttft": -mean_waiting / (facts.rate_rps * facts.zero_load_time_s),
        "errors": _errors(facts, truth),
    }


def _errors(facts: RewardFacts, truth: Truth) -> FloatArray:
    errors_rps = truth.rejected / facts.control_interval_s
    return -facts.error_penalty * errors_rps / facts.rate_rps


class OfInterval:
    """A function (facts, truth) -> terms, which needs nothing of earlier intervals."""

    def __init__(self, function: Reward) -> None:
        self.function = function

    def restart(self, row: int) -> None:
        """Nothing is kept."""

    def terms(self, facts: RewardFacts, simulator: Simulator) -> dict[str, FloatArray]:
        """What the function says of the truth."""
        return self.function(facts, simulator.truth())


class _OfEpisode(ABC):
    """Pays what a total over the measured latencies of the episode has grown by."""

    def __init__(self, num_replications: int) -> None:
        self._before = np.zeros(num_replications)

    def restart(self, row: int) -> None:
        """No latency is measured yet."""
        self._before[row] = 0.0

    def _growth(self, simulator: Simulator) -> FloatArray:
        now = self._total(simulator.measurements().latency_histogram)
        growth = now - self._before
        self._before = now
        return growth

    @abstractmethod
    def _total(self, histogram: IntArray) -> FloatArray:
        """The total (n,) of histograms (n, bins)."""


class Tail(_OfEpisode):
    """`tail(q)`: see the module's docstring.

    Raises:
        ValueError: q is not between 0 and 1.
    """

    def __init__(self, quantile: float, num_replications: int) -> None:
        if not 0.0 < quantile < 1.0:
            raise ValueError(
                f"reward = 'tail({quantile:g})': q must lie between 0 and 1; tail(0.95) looks at "
                "the slowest 5 %"
            )
        super().__init__(num_replications)
        self._share = 1.0 - quantile

    def _total(self, histogram: IntArray) -> FloatArray:
        return slowest_sum_s(histogram, self._share) / self._share

    def terms(self, facts: RewardFacts, simulator: Simulator) -> dict[str, FloatArray]:
        """The latency tail's growth, and the errors."""
        per_s = self._growth(simulator) / facts.control_interval_s
        return {
            "tail": -per_s / (facts.rate_rps * facts.zero_load_time_s),
            "errors": _errors(facts, simulator.truth()),
        }


class Goodput(_OfEpisode):
    """`goodput(slo_s)`: see the module's docstring.

    Raises:
        ValueError: The SLO is out of the histograms' range.
    """

    def __init__(self, slo_s: float, num_replications: int) -> None:
        low_s, high_s = SLO_RANGE_S
        if not low_s <= slo_s <= high_s:
            raise ValueError(
                f"reward = 'goodput({slo_s:g})': the SLO must be {low_s:g} to {high_s:g} seconds; "
                "goodput(2.5) counts answers within 2.5 s"
            )
        super().__init__(num_replications)
        self._slo_s = slo_s

    def _total(self, histogram: IntArray) -> FloatArray:
        return within(histogram, self._slo_s)

    def terms(self, facts: RewardFacts, simulator: Simulator) -> dict[str, FloatArray]:
        """The answers within the SLO."""
        per_s = self._growth(simulator) / facts.control_interval_s
        return {"goodput": per_s / facts.rate_rps}


REWARDS: dict[str, Reward] = {"latency": latency_reward, "ttft": ttft_reward}
WITH_A_NUMBER: dict[str, type[Tail] | type[Goodput]] = {"tail": Tail, "goodput": Goodput}
_CHOICES = (
    'latency, ttft, tail(q) as in "tail(0.95)", goodput(slo_s) as in "goodput(2.5)", or name a '
    'function as "module:function"'
)
_NUMBER = re.compile(r"[0-9]*\.?[0-9]+(e[+-]?[0-9]+)?")


def make_reward(name: str, num_replications: int) -> EpisodeReward:
    """The reward of a batch, by name, such as "tail(0.95)", or by "module:function".

    Raises:
        ValueError: There is no such reward, or its number is not valid.
    """
    if not isinstance(name, str):
        raise ValueError(f"reward = {name!r} must be text; choose one of {_CHOICES}")
    if name in REWARDS:
        return OfInterval(REWARDS[name])
    word, bracket, number = name.partition("(")
    if word in WITH_A_NUMBER:
        if not bracket or not number.endswith(")") or not _NUMBER.fullmatch(number[:-1]):
            raise ValueError(
                f"reward = {name!r} must hold one positive number in brackets, as in "
                '"tail(0.95)" or "goodput(2.5)"'
            )
        return WITH_A_NUMBER[word](float(number[:-1]), num_replications)
    if bracket or ":" not in name:
        raise ValueError(f"reward = {name!r} is unknown; choose one of {_CHOICES}")
    return OfInterval(_imported(name))


def _imported(name: str) -> Reward:
    module, _, function = name.partition(":")
    try:
        reward: Reward = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"reward = {name!r} cannot be imported: {error}; choose one of {_CHOICES}"
        ) from error
    return reward
