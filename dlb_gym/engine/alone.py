"""A cell of batching servers on its own: requests at its leaf, no roots, no network, no probes.

What calibration measures, and what shows the kernel's laws without the rest of a system.
"""

from __future__ import annotations

import math

from dlb_gym.engine.batches import Batches, of_cell
from dlb_gym.engine.batching import complete_batching, place_batching
from dlb_gym.engine.borrow import borrowed
from dlb_gym.engine.compile import entry
from dlb_gym.engine.layout import (
    ARRIVAL_S,
    KEY,
    LIVE,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    U_LEAF,
    Arrivals,
    IntArray,
    State,
)
from dlb_gym.engine.leaf import choose_server


@entry
def serve_alone(
    state: State, batches: Batches, arrivals: Arrivals, seed: IntArray, queue_limit: int
) -> None:
    """Serves all arrivals of root 0 in cell 0 of every row, to the last token.

    Args:
        state: Empty rows with the live servers in `cell`, and room in `request` for every arrival,
            which afterwards has its server (-1 for an error), first token and completion there.
        batches: What the servers are; empty.
        arrivals: In order of time; their times are those at the leaf.
        seed: (n,) for speculative decoding.
        queue_limit: Unfinished requests that a server takes.
    """
    system, servers, offered = borrowed(state), borrowed(batches), borrowed(arrivals)
    for r in range(len(seed)):
        own = of_cell(servers, r, 0)
        server, request = system.server[r, 0], system.request[r]
        count = offered.stop[r, 0]
        for slot in range(count + 1):
            now_s = offered.requests[r, 0, slot, ARRIVAL_S] if slot < count else math.inf
            complete_batching(now_s, r, 0, queue_limit, seed[r], 1.0, own, system, None)
            if slot < count:
                for column in (ARRIVAL_S, PROMPT_TOKENS, OUTPUT_TOKENS):
                    request[slot, column] = offered.requests[r, 0, slot, column]
                request[slot, KEY] = slot
                u = offered.requests[r, 0, slot, U_LEAF]
                s = choose_server(now_s, u, system.cell[r, 0, LIVE], server, request)
                place_batching(now_s, r, 0, s, slot, 0, queue_limit, 1.0, own, system, None)
