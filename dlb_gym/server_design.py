"""What a server is: disaggregated (the paper's) or continuously batching.

A document without `kind` means a disaggregated server. Both designs may say how long clients wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from dlb_gym.hardware import PRESETS, PresetName
from dlb_gym.strict import Fraction, PositiveSeconds, Seconds, Strict

QueueLimit = Annotated[int, Field(ge=1, le=100_000)]


class Disaggregated(Strict):
    """Disaggregated inference server (paper B.1): 1 prefill engine, decode engines with slots.

    Attributes:
        queue_limit: Requests waiting or running on a server at which it is full.
        max_wait_s: Clients give up when their work has not started that long after it reached the
            leaf, an error; None: they wait.
    """

    kind: Literal["disaggregated"] = "disaggregated"
    decode_engines: Annotated[int, Field(ge=1, le=64)] = 2
    slots_per_engine: Annotated[int, Field(ge=1, le=256)] = 4
    queue_limit: QueueLimit = 32
    max_wait_s: PositiveSeconds | None = None

    @property
    def decode_slots(self) -> int:
        """Decode slots of a server, all engines pooled."""
        return self.decode_engines * self.slots_per_engine


class ContinuousBatching(Strict):
    """Continuously batching server: rules in `engine/batching.py`, presets in `hardware.py`.

    What is None comes from the preset; a cell may name another one. The other defaults are ours:
    the largest batch is the largest that Splitwise measured, prefill is chunked as Sarathi-Serve
    (Agrawal et al., OSDI 2024) does where latency matters. Drafts cost nothing here: whoever knows
    what a draft model costs states a longer `base_s`.

    Attributes:
        preset: Hardware.
        max_batch: Requests that run at once at most.
        prefill_budget_tokens: Prompt tokens of an iteration at most.
        queue_limit: Requests waiting or running on a server at which it is full.
        kv_tokens: Tokens that the KV cache holds; a longer request is an error.
        base_s: Time of an iteration without the terms that follow.
        per_sequence_s: For every running request.
        per_context_token_s: For every token in the KV cache.
        prefill_s_per_token: For every prompt token of the iteration.
        draft_tokens: Tokens that a draft model proposes each time; 0: no speculative decoding.
        acceptance: Probability of a proposed token to be accepted after all before it were.
        max_wait_s: Clients give up if their request has not been admitted that long after it
            reached the leaf, an error at the end of an iteration; None: they wait.
    """

    kind: Literal["continuous_batching"] = "continuous_batching"
    preset: PresetName = "h100"
    max_batch: Annotated[int, Field(ge=1, le=4_096)] = 64
    prefill_budget_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    queue_limit: QueueLimit = 128
    kv_tokens: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    base_s: PositiveSeconds | None = None
    per_sequence_s: Seconds | None = None
    per_context_token_s: Seconds | None = None
    prefill_s_per_token: Seconds | None = None
    draft_tokens: Annotated[int, Field(ge=0, le=64)] = 0
    acceptance: Fraction = 0.0
    max_wait_s: PositiveSeconds | None = None

    @model_validator(mode="after")
    def _batch_can_fill(self) -> Self:
        if self.queue_limit < self.max_batch:
            raise ValueError(
                f"queue_limit = {self.queue_limit} is below max_batch = {self.max_batch}, so a "
                "batch could never fill: raise queue_limit or lower max_batch"
            )
        return self

    @model_validator(mode="after")
    def _drafts_and_acceptance(self) -> Self:
        if (self.draft_tokens > 0) != (self.acceptance > 0.0):
            raise ValueError(
                f"draft_tokens = {self.draft_tokens} and acceptance = {self.acceptance} contradict "
                "each other: speculative decoding needs both above 0, and without it both are 0"
            )
        return self

    def on(self, hardware: PresetName | None = None) -> BatchingServer:
        """The server in numbers: stated keys, and the preset's for the others.

        Args:
            hardware: Preset of a cell that has its own.
        """
        preset = PRESETS[hardware or self.preset]
        return BatchingServer(
            max_batch=self.max_batch,
            kv_tokens=preset.kv_tokens if self.kv_tokens is None else self.kv_tokens,
            prefill_budget_tokens=self.prefill_budget_tokens,
            draft_tokens=self.draft_tokens,
            base_s=_stated(self.base_s, preset.base_s),
            per_sequence_s=_stated(self.per_sequence_s, preset.per_sequence_s),
            per_context_token_s=_stated(self.per_context_token_s, preset.per_context_token_s),
            prefill_s_per_token=_stated(self.prefill_s_per_token, preset.prefill_s_per_token),
            acceptance=self.acceptance,
            max_wait_s=_stated(self.max_wait_s, math.inf),
            queue_limit=self.queue_limit,
        )


@dataclass(frozen=True)
class BatchingServer:
    """A batching server in numbers, nothing left open; see `ContinuousBatching`."""

    max_batch: int
    kv_tokens: int
    prefill_budget_tokens: int
    draft_tokens: int
    base_s: float
    per_sequence_s: float
    per_context_token_s: float
    prefill_s_per_token: float
    acceptance: float
    max_wait_s: float
    queue_limit: int

    @property
    def limits(self) -> tuple[int, int, int, int]:
        """In the order of the engine's `Batches.limits`."""
        return self.max_batch, self.kv_tokens, self.prefill_budget_tokens, self.draft_tokens

    @property
    def timing(self) -> tuple[float, float, float, float, float, float]:
        """In the order of the engine's `Batches.timing`."""
        return (
            self.base_s,
            self.per_sequence_s,
            self.per_context_token_s,
            self.prefill_s_per_token,
            self.acceptance,
            self.max_wait_s,
        )


def _kind_of(design: Any) -> Any:
    if isinstance(design, dict):
        return design.get("kind", "disaggregated")
    return getattr(design, "kind", None)


ServerDesign = Annotated[
    Annotated[Disaggregated, Tag("disaggregated")]
    | Annotated[ContinuousBatching, Tag("continuous_batching")],
    Discriminator(
        _kind_of,
        custom_error_type="server_kind",
        custom_error_message="kind must be 'disaggregated' or 'continuous_batching'",
    ),
]


def check_design(
    design: Disaggregated | ContinuousBatching,
    prompt_tokens: float,
    output_tokens: float,
    hardware: Iterable[PresetName | None] = (None,),
) -> None:
    """Refuses servers that could not hold a request of mean length.

    Args:
        design: The servers.
        prompt_tokens: Of a request, on average.
        output_tokens: Of a request, on average.
        hardware: The cells' own presets; None for a cell without.

    Raises:
        ValueError: The KV cache is too small; names the key.
    """
    if isinstance(design, Disaggregated):
        return
    for preset in hardware:
        kv_tokens = design.on(preset).kv_tokens
        if kv_tokens < prompt_tokens + output_tokens:
            held = "" if design.kv_tokens is not None else f" (preset {preset or design.preset!r})"
            raise ValueError(
                f"server.kv_tokens = {kv_tokens:,}{held} is below a mean request of "
                f"{prompt_tokens:,.6g} prompt and {output_tokens:,.6g} output tokens: raise "
                "kv_tokens or shorten the requests"
            )


def _stated(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
