"""Hardware presets of continuous batching: what an iteration costs and what the KV cache holds.

All are 8 GPUs that serve a dense model of 70e9 parameters by tensor parallelism, a published public
measurement fitted by

    iteration = base + per_sequence B + per_context_token W + prefill Q

with B requests, W tokens in the KV cache and Q prompt tokens (see `engine/batching.py`):

a100, h100
    Llama-2-70B in 16 bits. Splitwise's measurements (Patel et al., ISCA 2024; `perf_model.csv` of
    Mutinifni/splitwise-sim, MIT), fitted in relative error: a decode step as base + per_sequence B
    + per_context_token B (prompt + output / 2), up to batches of 64, with R² 0.960 (a100) and 0.972
    (h100); prefill of up to 8192 tokens as a + prefill Q with R² 0.825 and 0.852 (it bends upward
    above about 2048 tokens). Their intercepts a, 25.8 ms and 23.3 ms, are left out: an iteration of
    prefill alone costs `base` here, so it is 18 ms and 7 ms too long.
b200
    Llama-3.1-70B in 8 bits on TensorRT-LLM. End-to-end measurements of ai-dynamo/aiconfigurator
    (`silicon_sample.csv`, Apache-2.0): time per output token at batches of 4 to 128 for prompt /
    output lengths of 1024/1024, 1024/8192 and 8192/1024. A batch at work prefills B prompt / output
    tokens an iteration, so the three pairs of lengths tell the terms apart: a fit in relative error
    over the 18 points, with W = B (prompt + output / 2) and Q = B prompt / output, has R² 0.9997
    and a median error of 1.2 %.

So b200 differs from the others in precision and software as well. Capacity, with 90 % of the memory
in use (the rest is for activations) and 80 layers of 8 KV heads of 128 numbers, keys and values:

    a100, h100   (0.9 x 8 x 85.90e9 B - 68.98e9 x 2 B) / (2 x 80 x 8 x 128 x 2 B) = 1.47e6 tokens
    b200         (0.9 x 8 x 193.27e9 B - 70.55e9 x 1 B) / (2 x 80 x 8 x 128 x 1 B) = 8.06e6 tokens

A B200's KV numbers are taken as 8 bits too: at 16, eight of them could not read the cache as fast
as measured (5.3e-9 s a token at 7.7e12 B/s each, against 3.2e-9 s).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PresetName = Literal["a100", "h100", "b200"]

GPUS = 8
MEMORY_IN_USE = 0.9
_KV_NUMBERS_PER_TOKEN = 2 * 80 * 8 * 128  # keys and values, layers, heads, size of a head


@dataclass(frozen=True)
class Hardware:
    """Terms of an iteration's time, seconds each, and the KV cache of a server, tokens."""

    base_s: float
    per_sequence_s: float
    per_context_token_s: float
    prefill_s_per_token: float
    kv_tokens: int


def _kv_tokens(gpu_bytes: int, parameters: float, bytes_per_number: int) -> int:
    """Tokens that fit beside the weights."""
    free = MEMORY_IN_USE * GPUS * gpu_bytes - parameters * bytes_per_number
    return int(free / (_KV_NUMBERS_PER_TOKEN * bytes_per_number))


PRESETS: dict[PresetName, Hardware] = {
    "a100": Hardware(
        base_s=44.072e-3,
        per_sequence_s=0.18975e-3,
        per_context_token_s=0.33543e-6,
        prefill_s_per_token=0.14305e-3,
        kv_tokens=_kv_tokens(85_899_345_920, 68.98e9, 2),
    ),
    "h100": Hardware(
        base_s=29.889e-3,
        per_sequence_s=0.19928e-3,
        per_context_token_s=0.1785e-6,
        prefill_s_per_token=0.065743e-3,
        kv_tokens=_kv_tokens(85_899_345_920, 68.98e9, 2),
    ),
    "b200": Hardware(
        base_s=5.3775e-3,
        per_sequence_s=0.041130e-3,
        per_context_token_s=0.0031810e-6,
        prefill_s_per_token=0.018407e-3,
        kv_tokens=_kv_tokens(193_273_528_320, 70.55e9, 1),
    ),
}
