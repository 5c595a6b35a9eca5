"""Rate and zero-load time of a continuously batching server, in closed form.

Let a request have P prompt and D output tokens, and an iteration with B requests, W tokens in the
KV cache and Q prompt tokens take  base + s B + k W + p Q  (see `engine/batching.py`). With a draft
of g tokens, each accepted with probability a, an iteration makes T tokens of a request, and

    e = E[T] = 1 + a + ... + a^g = (1 - a^(g+1)) / (1 - a)          (Leviathan et al. 2023).

**Iterations of a request.** Prefill takes n = max(1, E[P] / b + 1/2) on average where an iteration
reads at most b prompt tokens and long prompts end anywhere in their last part, and brings the first
token. The D - 1 others take m = (E[D] - 1 + r) / e, r = (E[T²] - E[T]) / (2 E[T]) being the mean
excess of the last iteration (renewal theory; 0 without drafts). In all N = n + m.

**Work of a request.** Over these iterations it adds s each time; its tokens in the KV cache, P + 1
to P + D - 1 while it decodes, add k C with C = E[(D - 1) P + D (D - 1) / 2] / e; its prompt adds
p E[P]. So beside `base` a request costs, whatever else runs,

    w = s N + k C + p E[P].

**Alone** it pays every `base` itself:  zero-load time = N base + w.

**At full batch** x requests end per iteration, which takes base + x w, and the rate is

    x / (base + x w) = 1 / (w + base / x),    x = min(B / N, b / E[P]).

B is what runs at once: at most `max_batch`, and at most the KV cache over what a running request
reserves on average, a mean in which a request counts once for every iteration that it runs:
V = E[(P + D) (n + (D - 1) / e)] / E[n + (D - 1) / e]. The other bound is the prompt tokens read.

What is neglected: tokens of a prompt in the KV cache while its prefill goes on, the room that a
full KV cache leaves since requests come in pieces, and the correlation of P with n.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlb_gym.server_design import BatchingServer


@dataclass(frozen=True)
class TokenMoments:
    """Moments of a request's tokens: E[P], E[D], E[P D] and E[D²]."""

    prompt: float
    output: float
    product: float
    output_square: float


def tokens_per_iteration(server: BatchingServer) -> float:
    """e: the mean number of tokens that an iteration makes of a decoding request."""
    return sum(server.acceptance**k for k in range(server.draft_tokens + 1))


def batching_rate_rps(server: BatchingServer, tokens: TokenMoments) -> float:
    """The most requests per second that one server can serve."""
    iterations = _prefill_iterations(server, tokens) + _decode_iterations(server, tokens)
    per_iteration = _full_batch(server, tokens) / iterations
    if tokens.prompt > 0.0:
        per_iteration = min(per_iteration, server.prefill_budget_tokens / tokens.prompt)
    return 1.0 / (_work_s(server, tokens) + server.base_s / per_iteration)


def batching_zero_load_s(server: BatchingServer, tokens: TokenMoments) -> float:
    """Mean serving latency of a request that is alone on its server, seconds."""
    iterations = _prefill_iterations(server, tokens) + _decode_iterations(server, tokens)
    return iterations * server.base_s + _work_s(server, tokens)


def _prefill_iterations(server: BatchingServer, tokens: TokenMoments) -> float:
    return max(1.0, tokens.prompt / server.prefill_budget_tokens + 0.5)


def _decode_iterations(server: BatchingServer, tokens: TokenMoments) -> float:
    a, drafts = server.acceptance, server.draft_tokens
    mean = tokens_per_iteration(server)
    square = sum((2 * k + 1) * a**k for k in range(drafts + 1))
    excess = (square - mean) / (2.0 * mean)
    return max(0.0, tokens.output - 1.0 + excess) / mean


def _work_s(server: BatchingServer, tokens: TokenMoments) -> float:
    """w: what a request adds to the iterations that it takes part in."""
    iterations = _prefill_iterations(server, tokens) + _decode_iterations(server, tokens)
    context = tokens.product - tokens.prompt + (tokens.output_square - tokens.output) / 2.0
    return (
        server.per_sequence_s * iterations
        + server.per_context_token_s * max(0.0, context) / tokens_per_iteration(server)
        + server.prefill_s_per_token * tokens.prompt
    )


def _full_batch(server: BatchingServer, tokens: TokenMoments) -> float:
    """B: requests that run at once when there are always more."""
    prefill, mean = _prefill_iterations(server, tokens), tokens_per_iteration(server)
    length = tokens.prompt + tokens.output
    decoding = max(0.0, tokens.product + tokens.output_square - length) / mean
    reserved = (prefill * length + decoding) / (prefill + max(0.0, tokens.output - 1.0) / mean)
    return min(float(server.max_batch), server.kv_tokens / max(reserved, 1.0))
