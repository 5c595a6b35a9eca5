"""GORGO: round trip, queue and cache in one cost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlb_gym.decision import Decision
from dlb_gym.policy import Information, Policy

RTT_WEIGHT, QUEUE_WEIGHT = 0.276, 0.5
"""What GORGO's tuning on its own traffic ended with: tokens per millisecond, and a number."""
PROMPT_TOKENS = 500.0


class Gorgo(Policy):
    """GORGO: argmin_j W_rtt RTT_ij + W_q queued tokens_j + uncached prompt tokens at j.

    RTT in milliseconds. Queued are the prompt tokens that this root sent to j and that are not
    answered, per server: own requests outstanding times a mean prompt. A request whose session the
    root last saw at j is taken to have its prefix there (`Decision.token_value`), which counts
    where sessions exist and the scenario's affinity is "none"; the other kinds choose the cell of
    such requests themselves.

    Source: Arcadia-Research-Team/GORGO, paper and policy. It tunes its weights with an evolution
    strategy on the 95th percentile of TTFT; here they are arguments.

    Args:
        rtt_weight: W_rtt, tokens per millisecond.
        queue_weight: W_q.
        prompt_tokens: Mean prompt of a request.

    Raises:
        ValueError: An argument is negative or not finite.
    """

    name = "gorgo"
    information: Information = "local"

    def __init__(
        self,
        rtt_weight: float = RTT_WEIGHT,
        queue_weight: float = QUEUE_WEIGHT,
        prompt_tokens: float = PROMPT_TOKENS,
    ) -> None:
        for key, value in (
            ("rtt_weight", rtt_weight),
            ("queue_weight", queue_weight),
            ("prompt_tokens", prompt_tokens),
        ):
            if not 0.0 <= value < np.inf:
                raise ValueError(f"{key} = {value} must be finite and at least 0; leave it out")
        self.rtt_weight, self.queue_weight = rtt_weight, queue_weight
        self.prompt_tokens = prompt_tokens

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """Tokens that a request waits for, but for its own."""
        fields = self.fields(observation)
        arcs = fields["admissible"] > 0.0
        rtt_ms = 1e3 * fields["rtt"].astype(np.float64) * fields["zero_load_time_s"]
        queued = self.queue_weight * self.prompt_tokens
        base = self.rtt_weight * rtt_ms + queued * fields["outstanding"].astype(np.float64)
        return Decision(
            base=np.where(arcs, base, 0.0),
            slope=np.where(arcs, queued * fields["request_weight"].astype(np.float64), 0.0),
            token_value=arcs.astype(np.float64),
        )
